"""Commands for the gates, which hold everything back when Sume asks for it."""

import re
from enum import StrEnum
from typing import Annotated, Any

import typer

from local.command_line.context import Session
from local.command_line.errors import ACT, OK, USAGE, CommandError
from local.command_line.output import table
from local.command_line.overview import GATES, gate_words, waits_for_a_person

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class Which(StrEnum):
    """One of the gates, or both."""

    WRITES = "writes"
    READS = "reads"
    BOTH = "both"


WhichGate = Annotated[Which, typer.Argument(help="writes (submits and cancels), reads, or both.")]


def show(session: Session) -> None:
    """Tell whether the gates are open, and where not, why, until when and what to do."""
    gates = _gates(session)
    rows = [(gate["name"], GATES[gate["state"]], gate_words(gate)) for gate in gates]
    session.output.result({"gates": gates}, table("gate", "is", "why, and what to do", rows=rows))


def open_(
    session: Session,
    which: WhichGate = Which.BOTH,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Try again at once: the next row goes alone, and what Sume answers opens the gate or not.

    It asks first where a gate does not open by itself, because a person must look at its reason.
    """
    from sume_jobs.store import pace

    gates = [gate for gate in _gates(session) if gate["name"] in _names(which)]
    for gate in gates:
        if gate["state"] != "open":
            session.output.warn(f"The gate of {gate['name']} was closed. {gate_words(gate)}")
    stopped = [gate["name"] for gate in gates if waits_for_a_person(gate)]
    question = f"Was that looked at, and shall the gate of {' and '.join(stopped)} open?"
    if stopped and not session.output.confirm(question, yes=yes):
        session.output.say("Nothing was done.")
        return ACT
    opened = pace.open_now(session.database, _names(which))
    text = (
        f"Half open: {' and '.join(opened)}. The next row is tried alone; the gate opens if Sume "
        "accepts it, and closes again if nothing was mended."
        if opened
        else "Nothing to do: it is open."
    )
    session.output.result({"half_open": opened, "gates": _gates(session)}, text)
    return OK


def close(
    session: Session,
    which: WhichGate = Which.WRITES,
    for_: Annotated[
        str, typer.Option("--for", help="How long, such as 90s, 15m, 2h, 1d.", metavar="TIME")
    ] = "1h",
    reason: Annotated[
        str, typer.Option(help="Kept with the gate and shown to everybody.")
    ] = "closed by hand",
) -> None:
    """Hold everything back for a while: rows wait, nothing is failed, nothing is lost."""
    from sume_jobs.store import pace

    seconds = _seconds(for_)
    names = _names(which)
    # Also after a stop of Sume's own, whose longer pause then stays.
    pace.close(session.database, names, seconds, f"operator: {reason.strip()[:200]}")
    closed = [gate for gate in _gates(session) if gate["name"] in names]
    rows = [(gate["name"], GATES[gate["state"]], gate_words(gate)) for gate in closed]
    session.output.result({"gates": closed}, table("gate", "is", "why, and what to do", rows=rows))


def _gates(session: Session) -> list[dict[str, Any]]:
    from sume_jobs.flows import stats
    from sume_jobs.store import pace

    return [stats.gate(row) for row in pace.state(session.database)]


def _names(which: Which) -> list[Any]:
    return ["writes", "reads"] if which is Which.BOTH else [which.value]


def _seconds(text: str) -> float:
    found = re.fullmatch(r"0*([1-9][0-9]{0,5})(s|m|min|h|d)", text.strip(), re.ASCII)
    if found is None:
        raise CommandError(
            f"--for {text!r} is no time: give a number and a unit, such as 90s, 15m, 2h or 1d.",
            USAGE,
        )
    return float(int(found[1]) * UNITS[found[2]])
