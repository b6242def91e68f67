"""Crash-point explorer: every statement and every call of every function, killed and cut.

    python -m tests.reliability.crash_points                 all scenarios, figures at the end
    python -m tests.reliability.crash_points submit/early    one scenario, with its points

A scenario is run once to count what crosses the wires of its function (to PostgreSQL, to Sume and
to AWS). Then it is run again for each of those points: a real process is ended by SIGKILL there, or
its connection is cut there, before the message arrives or after it was answered. Then whoever
called comes back, the schedules run until nothing moves any more, and the promises are checked.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "shared")]

from tests.reliability.invariants import Violation
from tests.reliability.parallel import cores, spread
from tests.reliability.scenarios import SCENARIOS
from tests.reliability.stage import How, Scenario, Stage, stage
from tests.reliability.wire import Side
from tests.support.postgres import Server

HOWS: tuple[How, ...] = ("kill", "cut")
SIDES: tuple[Side, ...] = ("before", "after")


@dataclass(frozen=True)
class Strike:
    """One point of a scenario, by its place among SCENARIOS, and what happens there."""

    scenario: int
    at: int
    side: Side
    how: How


def count(stage: Stage, scenario: Scenario) -> list[str]:
    """Run a scenario with nothing in its way; the names of its points. Raises Violation."""
    try:
        return stage.run(scenario, None, "before", "kill")
    except Violation as error:
        raise Violation(f"{scenario.title}: with nothing struck: {error}") from error


def strike(stage: Stage, scenario: Scenario, at: int, side: Side, how: How) -> bool:
    """Strike one point; tells whether it was reached. Raises Violation."""
    before = stage.struck
    try:
        stage.run(scenario, at, side, how)
    except Violation as error:
        passed = stage.points.names
        name = passed[at - 1] if len(passed) >= at else "not reached"
        raise Violation(f"{scenario.title}: {how} {side} point {at} ({name}): {error}") from error
    return stage.struck > before


def explore(stage: Stage, scenario: Scenario, chance: random.Random, most: int) -> int:
    """Strike `most` points of a scenario at the most, drawn, each in one way that is drawn.

    Gives how many were struck. Raises Violation.
    """
    points = range(1, len(count(stage, scenario)) + 1)
    drawn = chance.sample(points, min(most, len(points)))
    return sum(
        strike(stage, scenario, at, chance.choice(SIDES), chance.choice(HOWS)) for at in drawn
    )


@dataclass
class Outcome:
    """What became of one unit of work; `names` are a scenario's points, where they were counted."""

    scenario: int
    struck: int = 0
    names: tuple[str, ...] = ()
    violation: str | None = None


def _work(stage: Stage, unit: int | Strike) -> Outcome:
    number = unit if isinstance(unit, int) else unit.scenario
    scenario, outcome = SCENARIOS[number], Outcome(number)
    try:
        if isinstance(unit, int):
            outcome.names = tuple(count(stage, scenario))
        else:
            outcome.struck = strike(stage, scenario, unit.at, unit.side, unit.how)
    except Violation as error:
        outcome.violation = str(error)
    return outcome


def main(arguments: list[str] | None = None) -> int:
    """Command line; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.crash_points")
    parser.add_argument("scenario", nargs="*", help="part of a title; all without")
    parser.add_argument("--processes", type=int, default=cores(), help="at once; all cores without")
    given = parser.parse_args(arguments)
    chosen = [
        number
        for number, scenario in enumerate(SCENARIOS)
        if not given.scenario or any(part in scenario.title for part in given.scenario)
    ]
    started, struck, violations = time.monotonic(), Counter[int](), list[str]()
    server = Server().start()
    try:
        run = partial(spread, partial(stage, server), _work, processes=given.processes)
        strikes = []
        for counted in run(chosen):
            if counted.violation:
                violations.append(counted.violation)
            strikes += [
                Strike(counted.scenario, at, side, how)
                for at in range(1, len(counted.names) + 1)
                for side in SIDES
                for how in HOWS
            ]
            if given.scenario:
                print(SCENARIOS[counted.scenario].title)
                for at, name in enumerate(counted.names, 1):
                    print(f"  {at:2}  {name}")
        print(f"{len(chosen)} scenarios, {len(strikes)} ways to crash", flush=True)
        for done, outcome in enumerate(run(strikes), 1):
            struck[outcome.scenario] += outcome.struck
            if outcome.violation:
                violations.append(outcome.violation)
                print(f"VIOLATION {outcome.violation}", flush=True)
            if done % 100 == 0:
                print(f"{done} done, {time.monotonic() - started:.0f} s", flush=True)
    finally:
        server.stop()
    print(report(struck, violations, time.monotonic() - started))
    return bool(violations)


def report(struck: Counter[int], violations: list[str], seconds: float) -> str:
    """The figures, one line for each scenario and for each function."""
    functions: Counter[str] = Counter()
    for number, times in struck.items():
        functions[SCENARIOS[number].function] += times
    return "\n".join(
        [
            *(f"  {SCENARIOS[number].title:40} {struck[number]:4}" for number in sorted(struck)),
            "by function: " + ", ".join(f"{name} {n}" for name, n in sorted(functions.items())),
            f"{struck.total()} crash points of {len(struck)} scenarios, "
            f"{len(violations)} violations, {seconds:.0f} s",
            *(f"  {violation}" for violation in violations),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
