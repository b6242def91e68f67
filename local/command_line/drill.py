"""The command that does to a bundle of its own what breaks others: drill."""

from typing import TYPE_CHECKING, Annotated

import typer

from local.command_line.context import Session
from local.command_line.errors import ACT, OK, USAGE, CommandError
from local.command_line.output import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from local.command_line.drill_run import Outcome


def drill(
    session: Session,
    names: Annotated[
        list[str] | None, typer.Argument(help="Scenarios by name.", show_default="all")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Tell which there are.")] = False,
) -> int:
    """Kill, lose, delay, forge and repeat what can be, and tell which promises held.

    Starts a bundle of its own in a temporary folder, with the real functions and a fake Sume, and
    touches nothing else: never another database, never the real Sume. Ends with 1 if a promise was
    broken.
    """
    from local.command_line import drill_run
    from local.command_line.drill_world import open_world

    known = {drill_run.name_of(each): each for each in drill_run.SCENARIOS}
    if list_:
        titles = {name: drill_run.title_of(each) for name, each in known.items()}
        session.output.result(titles, table("scenario", "what happens", rows=titles.items()))
        return OK
    if session.database_url:
        raise CommandError(
            "A drill empties tables, so it only runs in a bundle of its own: leave out "
            "--database-url.",
            USAGE,
        )
    if unknown := [name for name in names or [] if name not in known]:
        raise CommandError(
            f"No such scenario: {', '.join(unknown)}. `./sume-jobs drill --list` tells which there "
            "are.",
            USAGE,
        )
    outcomes = []
    with open_world() as world:
        for outcome in drill_run.run(world, [known[name] for name in names or known]):
            outcomes.append(outcome)
            if not session.output.is_json:
                session.output.show(*_told(outcome))
    broken = [outcome.name for outcome in outcomes if not outcome.held]
    summary = f"{len(outcomes) - len(broken)} of {len(outcomes)} scenarios held"
    session.output.result(
        {
            "held": not broken,
            "broken": broken,
            "scenarios": [outcome.document() for outcome in outcomes],
        },
        f"{summary}; broken: {', '.join(broken)}." if broken else f"{summary}.",
    )
    return ACT if broken else OK


def _told(outcome: "Outcome") -> "Iterator[RenderableType]":
    from rich.text import Text

    word, style = ("held", "bold green") if outcome.held else ("BROKEN", "bold red")
    yield Text.assemble(
        (f"{word:<7}", style), (outcome.name, "bold"), f"  {outcome.seconds:.1f} s  {outcome.title}"
    )
    yield f"  did      {'; '.join(outcome.did)}"
    seen = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in outcome.outside.items())
    yield f"  outside  {seen}"
    for promise in outcome.promises:
        line = f"  {'held' if promise.held else 'BROKEN':<7}  {promise.name}: {promise.seen}"
        yield Text(line, style="" if promise.held else "red")
    yield ""
