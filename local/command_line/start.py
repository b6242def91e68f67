"""Commands that run the whole bundle on this machine: demo, up."""

import os
from pathlib import Path
from typing import Annotated

import typer

from local.command_line.context import Session


def demo(
    session: Session,
    prompts: Annotated[
        Path | None,
        typer.Argument(help="CSV, JSON lines, or one prompt a line.", show_default="a sample"),
    ] = None,
    calm: Annotated[bool, typer.Option("--calm", help="The fake Sume does not misbehave.")] = False,
) -> int:
    """Send a file of prompts through the whole bundle, and prove every promise.

    Runs on this machine, with a fake Sume that bills nobody, or with the real one where
    SUME_BASE_URL and SUME_API_KEY are set. What it says is for people, also with --json.
    """
    from local import demo as program

    arguments = ["--folder", str(session.folder), *(["--calm"] if calm else [])]
    if prompts is not None:
        arguments.append(str(prompts))
    _name_database(session)
    return program.main(arguments)


def up(session: Session) -> int:
    """Run the whole bundle on this machine until interrupted, with a board and an API."""
    from local import up as program

    _name_database(session)
    return program.main(["--folder", str(session.folder)])


def _name_database(session: Session) -> None:
    if session.database_url:
        os.environ["DATABASE_URL"] = session.database_url
