"""Commands that tell how the whole stands: status, watch."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from time import monotonic, sleep, strftime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from local.command_line.context import Session
from local.command_line.errors import ACT, OK, CommandError, explain
from local.command_line.output import STATES, duration, shown, state_text, table

if TYPE_CHECKING:
    from rich.console import RenderableType

STAGES = {
    "waiting": "waiting to be sent",
    "later": "to be sent later",
    "sending": "being sent",
    "at_sume": "at Sume",
}
GATES = {"open": "open", "closed": "CLOSED", "half_open": "half open"}
SHOWN = 5


def status(session: Session) -> None:
    """Tell how many rows are where, what holds them up, and what needs a person."""
    found = collect(session)
    session.output.result(found, *paragraphs(found))


def watch(
    session: Session,
    until_done: Annotated[
        bool, typer.Option("--until-done", help="End when nothing is working any more.")
    ] = False,
    every: Annotated[
        float,
        typer.Option(min=0.1, max=3600, metavar="SECONDS", help="The time between two looks."),
    ] = 1.0,
) -> int:
    """Show the status, live, until interrupted.

    In a pipe a line is written whenever something changed; with --json one document a line. With
    --until-done it waits for the results too, and the exit status is 1 where more rows need
    attention than at its start.
    """
    first: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    try:
        with _display(session) as draw:
            for look in _looks(session, every):
                draw(look)
                if isinstance(look, CommandError):
                    continue
                first, last = first or look, look
                if until_done and _is_done(session, look):
                    break
    except KeyboardInterrupt:
        if until_done:
            raise
        return OK
    more = _count(last, "needs_attention") - _count(first, "needs_attention")
    if more > 0:
        session.output.warn(
            f"{more} more rows need attention: ./sume-jobs list --state needs_attention"
        )
        return ACT
    return OK


def collect(session: Session) -> dict[str, Any]:
    """The figures of `/stats`, with what is left of the budgets."""
    from sume_jobs.decisions.pacing import pace as pace_of
    from sume_jobs.flows import stats
    from sume_jobs.store import pace

    settings = session.settings
    limits = {"writes": settings.writes_per_minute, "reads": settings.reads_per_minute}
    budgets = [
        {
            "name": name,
            "per_minute": limits[name],
            "available_now": pace_of(limits[name]).available(debt),
        }
        for name, debt in pace.debts(session.database).items()
    ]
    return {**stats.collect(session.database, settings.daily_limit), "budgets": budgets}


def paragraphs(found: dict[str, Any]) -> list["RenderableType"]:
    """The figures for people: states, gates with the budget, ages and rates, the newest in need."""
    from rich.text import Text

    parts: list[RenderableType] = [
        table(
            "state",
            ">rows",
            "",
            rows=(
                (state_text(name), _figure(found["states"][name]), _stages(found, name))
                for name in STATES
            ),
        )
    ]
    left = {each["name"]: each for each in found["budgets"]}
    parts.append(
        table(
            "gate",
            "is",
            "budget",
            "why, and what to do",
            rows=(
                (
                    gate["name"],
                    Text(GATES[gate["state"]], "green" if gate["state"] == "open" else "bold red"),
                    f"{left[gate['name']]['per_minute']} a minute",
                    gate_words(gate),
                )
                for gate in found["gates"]
            ),
        )
    )
    parts.append(
        f"Oldest waiting {duration(found['oldest_waiting_seconds'])}, oldest at Sume "
        f"{duration(found['oldest_at_sume_seconds'])}; {found['came_a_minute']} came and "
        f"{found['ended_a_minute']} ended in the last minute.{_day(found['day'])}"
    )
    in_need = found["needs_attention"][:SHOWN]
    if in_need:
        parts.append(
            table(
                ">id",
                "reference",
                "why it needs attention",
                "what to do",
                rows=(
                    (each["id"], each["reference"], each["reason"], each["action"])
                    for each in in_need
                ),
            )
        )
        parts.append(
            "More of one: ./sume-jobs why ID. Once more, billed anew: ./sume-jobs retry ID."
        )
    return parts


def waits_for_a_person(gate: dict[str, Any]) -> bool:
    """Whether a gate stays closed until somebody opens it."""
    return gate["state"] == "closed" and gate["opens_in_seconds"] is None


def gate_words(gate: dict[str, Any]) -> str:
    """Why a gate is not open, and what to do; empty where it is open."""
    if gate["state"] == "open":
        return ""
    parts = [f"{gate['reason']}: {gate['advice']}"]
    if gate.get("detail"):
        parts.append(f"Seen: {gate['detail']}.")
    if gate["state"] == "half_open":
        parts.append("One row at a time is tried now.")
    elif not waits_for_a_person(gate):
        parts.append(f"Next try in {duration(gate['opens_in_seconds'])}.")
    return " ".join(parts)


def _day(day: dict[str, Any]) -> str:
    if day["limit"] is None:
        return f" {day['sent']} sent this UTC day."
    text = f" {day['sent']} of {day['limit']} sent this UTC day"
    if not day["is_full"]:
        return f"{text}."
    return f"{text}: nothing more is sent for {duration(day['ends_in_seconds'])}."


def _figure(figure: dict[str, Any]) -> str:
    return f"{'' if figure['is_exact'] else 'about '}{figure['count']:,}"


def _stages(found: dict[str, Any], state: str) -> str:
    if state != "working":
        return ""
    stages = found["stages"]
    return ", ".join(
        f"{_figure(stages[name])} {word}" for name, word in STAGES.items() if stages[name]["count"]
    )


def _count(found: dict[str, Any] | None, state: str) -> int:
    return int(found["states"][state]["count"]) if found else 0


def _is_done(session: Session, found: dict[str, Any]) -> bool:
    from sume_jobs.store import operator_views

    return not _count(found, "working") and not operator_views.awaits_results(session.database)


def _looks(session: Session, every: float) -> Iterator[dict[str, Any] | CommandError]:
    """How it stands, again and again; an error in its place while the database is away."""
    look: dict[str, Any] | CommandError = collect(session)
    while True:
        began = monotonic()
        yield look
        # A database that answers slowly is asked less often.
        sleep(max(every, 4 * (monotonic() - began)))
        try:
            look = collect(session)
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            look = explained


@contextlib.contextmanager
def _display(session: Session) -> Iterator[Callable[[dict[str, Any] | CommandError], None]]:
    """Draws what `_looks` gives: live on a terminal, else a line or a document each."""
    output = session.output
    if output.is_json or not sys.stdout.isatty():
        said = ""

        def write(look: dict[str, Any] | CommandError) -> None:
            nonlocal said
            if isinstance(look, CommandError):
                output.warn(str(look))
            elif output.is_json:
                output.document(look, one_line=True)
            elif (line := _line(look)) != said:
                output.show(f"{strftime('%H:%M:%S')}  {line}")
                said = line
            sys.stdout.flush()

        yield write
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=output.console, auto_refresh=False) as live:

        def draw(look: dict[str, Any] | CommandError) -> None:
            if isinstance(look, CommandError):
                live.update(Text(f"{look} It is tried again.", "yellow"), refresh=True)
            else:
                live.update(
                    Group(*paragraphs(look), Text("Ctrl-C ends this.", "dim")), refresh=True
                )

        yield draw


def _line(found: dict[str, Any]) -> str:
    parts = [
        f"{word} {_figure(found['states'][name])}"
        + (f" ({stages})" if (stages := _stages(found, name)) else "")
        for name, word in STATES.items()
    ]
    parts += [
        f"gate of {gate['name']} {GATES[gate['state']]} ({shown(gate['reason'])})"
        for gate in found["gates"]
        if gate["state"] != "open"
    ]
    return ", ".join(parts)
