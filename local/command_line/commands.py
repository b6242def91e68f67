"""Turns a function into a command: shared options, errors in words, exit status."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from local.command_line.context import Session
from local.command_line.errors import INTERRUPTED, OK, PIPE_CLOSED, explain
from local.command_line.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).resolve().parents[2] / ".local"
SHARED = "On every command"

Json = Annotated[
    bool, typer.Option("--json", help="One JSON document, for programs.", rich_help_panel=SHARED)
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="The database (default: DATABASE_URL, else the local bundle's).",
        rich_help_panel=SHARED,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        help="Where the local bundle keeps its data and logs.",
        show_default=".local",
        rich_help_panel=SHARED,
    ),
]
OPTIONS: dict[str, Any] = {"json": Json, "database_url": DatabaseUrl, "folder": Folder}
DEFAULTS: dict[str, Any] = {"json": False, "database_url": None, "folder": None}


class Program(TyperGroup):
    """All commands; says what is wrong with an option without the words of the library beneath."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


def name_of(function: Callable[..., object]) -> str:
    """The command's name: that of its function, with hyphens."""
    return function.__name__.strip("_").replace("_", "-")


def as_command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Make a command of `function(session, …)`, which gives the exit status (None is 0).

    Its other parameters are the command's own, in typer's way; `--json`, `--database-url` and
    `--folder` are added, and what it raises is told in words.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def command(context: typer.Context, **values: Any) -> None:
        shared = _remembered(context, {name: values.pop(name) for name in OPTIONS})
        session = Session(
            Output(shared["json"]), shared["database_url"], shared["folder"] or FOLDER
        )
        status = run(session, lambda: function(session, **values))
        if status:
            raise typer.Exit(status)

    command.__name__ = function.__name__
    # One line a paragraph: the terminal decides where lines end.
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    command.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    parameter = inspect.Parameter
    keyword = parameter.KEYWORD_ONLY
    parameters = [
        parameter("context", parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *(each.replace(kind=keyword) for each in own),
        *(
            parameter(name, keyword, annotation=kind, default=DEFAULTS[name])
            for name, kind in OPTIONS.items()
        ),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def remember_options(
    alone: Callable[..., int | None] | None = None,
) -> Callable[..., None]:
    """What is run before a command: keeps the shared options that stand before its name.

    Where no command is named it is `alone`, called without options of its own.
    """

    def remember(
        context: typer.Context,
        json: Json = False,
        database_url: DatabaseUrl = None,
        folder: Folder = None,
    ) -> None:
        given = {"json": json, "database_url": database_url, "folder": folder}
        context.obj = _remembered(context, given)
        if alone is not None and context.invoked_subcommand is None:
            as_command(alone)(context, **DEFAULTS)

    return remember


def _remembered(context: typer.Context, given: dict[str, Any]) -> dict[str, Any]:
    before = context.obj or DEFAULTS
    return {name: given[name] or before[name] for name in OPTIONS}


def run(session: Session, call: Callable[[], int | None]) -> int:
    """Call it; gives the exit status and tells on the standard error what went wrong."""
    try:
        try:
            status = call()
            sys.stdout.flush()
        finally:
            session.close()
    except KeyboardInterrupt:
        session.output.say("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads on; the interpreter must not try once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        explained = explain(error)
        if explained is None:
            raise
        session.output.say(str(explained), "red")
        return explained.status
    return OK if status is None else status
