"""The program: every command in one list, by what a person wants to do."""

from __future__ import annotations

import typer

from local.command_line import doctor, schema, start
from local.command_line.commands import (
    DEFAULTS,
    DatabaseUrl,
    Folder,
    Json,
    as_command,
    name_of,
)

# What a person wants to do, and the commands for it, as the help shows them. A command is
# `function(session, …)`, see `as_command`.
COMMANDS = (
    ("Start", (start.demo, start.up, schema.migrate)),
    ("Check", (doctor.doctor,)),
)

app = typer.Typer(
    name="sume-jobs",
    help="Run paid Sume generations from a Postgres table: see them, steer them, repair them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _shared(
    context: typer.Context,
    json: Json = False,
    database_url: DatabaseUrl = None,
    folder: Folder = None,
) -> None:
    context.obj = {**DEFAULTS, "json": json, "database_url": database_url, "folder": folder}


for _panel, _functions in COMMANDS:
    for _function in _functions:
        app.command(name_of(_function), rich_help_panel=_panel)(as_command(_function))
