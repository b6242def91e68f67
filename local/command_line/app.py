"""The program: every command in one list, by what a person wants to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import typer

from local.command_line import (
    audit,
    doctor,
    drill,
    files,
    gate,
    jobs,
    overview,
    schema,
    sign_event,
    start,
    steer,
    why,
)
from local.command_line.commands import Program, as_command, name_of, remember_options

Command = Callable[..., int | None]

# What a person wants to do, and the commands for it, as the help shows them. A command is
# `function(session, …)`, see `as_command`.
COMMANDS: tuple[tuple[str, tuple[Command, ...]], ...] = (
    ("Start", (start.demo, start.up, schema.migrate)),
    ("Send", (files.enqueue, steer.retry, steer.cancel)),
    (
        "See",
        (overview.status, overview.watch, jobs.list_, jobs.show, why.why, files.export),
    ),
    ("Check", (doctor.doctor, audit.audit, drill.drill)),
    ("Operate", (schema.prune, sign_event.sign_event)),
)


class Group(NamedTuple):
    """A command that has commands of its own; by itself it is the first of them."""

    panel: str
    name: str
    help: str
    commands: tuple[Command, ...]


GROUPS = (
    Group(
        "Operate",
        "gate",
        "See, open and close the gates, which hold the queue back.",
        (gate.show, gate.open_, gate.close),
    ),
)

app = typer.Typer(
    name="sume-jobs",
    cls=Program,
    help="Run paid Sume generations from a Postgres table: see them, steer them, repair them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.callback()(remember_options())


for _panel, _commands in COMMANDS:
    for _command in _commands:
        app.command(name_of(_command), rich_help_panel=_panel)(as_command(_command))

for _group in GROUPS:
    _app = typer.Typer(help=_group.help)
    _app.callback(invoke_without_command=True)(remember_options(_group.commands[0]))
    for _command in _group.commands:
        _app.command(name_of(_command))(as_command(_command))
    app.add_typer(_app, name=_group.name, rich_help_panel=_group.panel)
