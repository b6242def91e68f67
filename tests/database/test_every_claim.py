"""What a claim takes, in every combination of what waits, of tokens, places of the day and gate.

As in `test_every_case.py` the rule is told once more in words of Python. A case is a whole table
here, since rows compete for tokens and places; each claim is rolled back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sume_jobs.decisions.pacing import Pace
from sume_jobs.store import render_jobs

from tests.database.sessions import MAX_ATTEMPTS, Session, claiming, insert_past_triggers
from tests.support.postgres import Database

RATE = Pace(rate=1.0, capacity=100.0)
PLACES = (None, 0, 1, 3, 9)
# What the day has counted before; the limit leaves `places` beside it.
SENT = 4


@dataclass(frozen=True)
class Row:
    """A pending row; `due` is in seconds from now, the smaller the earlier."""

    number: int
    due: int = -100
    priority: int = 1
    reaps: int = 0
    is_held: bool = False
    is_worn: bool = False
    is_canceled: bool = False

    @property
    def fate(self) -> str:
        if self.is_canceled:
            return "canceled"
        return "attempts_exhausted" if self.is_worn else "submitting"


# Of two rows of a priority the one that has waited longer comes second by its number.
HELD = [Row(1, -10, 3, is_held=True), Row(2, -20, 0, 1, is_held=True), Row(3, -20, 2, is_held=True)]
FRESH = [Row(11, -10), Row(12, -30), Row(13, -5, 0, 1), Row(14, -300, 3)]
ENDING = [Row(21, -40, is_worn=True), Row(22, -5, 0, is_canceled=True)]
ENDING_HELD = [Row(23, -50, is_held=True, is_worn=True)]
LATER = [Row(31, 60), Row(32, 60, 0, is_held=True), Row(33, 60, 1, 2), Row(34, 60, 1, 2, True)]
SUSPECT = [Row(41, -10, 1, 3), Row(42, -90, 3, 2), Row(43, -200, 0, 2)]
HELD_SUSPECT = [Row(44, -500, 2, 4, True), Row(45, -1, 2, 2, True)]

TABLES = [
    [*ordinary, *suspects, *LATER]
    for ordinary, suspects in itertools.product(
        ([], HELD, FRESH, [*HELD, *FRESH], [*ENDING, *FRESH[:1]], [*ENDING, *ENDING_HELD, *HELD]),
        ([], SUSPECT, HELD_SUSPECT, [*SUSPECT, *HELD_SUSPECT]),
    )
]


def taken(rows: list[Row], tokens: int, places: int | None, alone: bool) -> list[Row]:
    """The rows that a claim takes through an open gate, in the order of its answer."""
    due = [row for row in rows if row.due < 0]
    ordinary = sorted(
        (row for row in due if row.reaps < 2), key=lambda row: (row.priority, row.due, row.number)
    )
    if places is None or places >= tokens:
        found = ordinary[:tokens]
    else:
        held = sorted(
            (row for row in ordinary if row.is_held), key=lambda row: (row.due, row.number)
        )[:tokens]
        fresh = [row for row in ordinary if not row.is_held]
        found = held + fresh[: min(places, tokens - len(held))]
    if not found and alone and tokens:
        suspects = [row for row in due if row.reaps >= 2 and (row.is_held or places != 0)]
        found = sorted(suspects, key=lambda row: (row.reaps, row.due, row.number))[:1]
    return sorted(found, key=lambda row: (row.priority, row.due, row.number))


def insert(database: Database, rows: list[Row]) -> None:
    insert_past_triggers(
        database,
        {
            "render_jobs": [
                {
                    "id": row.number,
                    "prompt": "x",
                    "priority": row.priority,
                    "reaps": row.reaps,
                    "attempts": MAX_ATTEMPTS if row.is_worn else 1,
                    "sends": 1,
                    "run_after": database.one("select now() + make_interval(secs => %s)", row.due),
                    "counted_at": "2001-01-01" if row.is_held else None,
                    "cancel_requested_at": "2001-01-01" if row.is_canceled else None,
                }
                for row in rows
            ]
        },
    )


GATES: dict[str, tuple[str | None, str | None]] = {
    "closed": ("now() + interval '1 hour'", None),
    "waiting for a person": ("'infinity'", None),
    "half open": ("now() - interval '1 second'", None),
    "half open after a lost probe": ("now() - interval '1 hour'", "now() - interval '1 minute'"),
    "half open with its probe out": ("now() - interval '1 hour'", "now() + interval '1 minute'"),
}


@pytest.mark.parametrize("table", range(len(TABLES)))
def test_every_claim(database: Database, session: Callable[[], Session], table: int) -> None:
    rows = TABLES[table]
    insert(database, rows)
    before = {row["id"]: row for row in database.rows()}
    worker: Any = session()
    # Only of a suspect it matters.
    alones = (False, True) if any(row.reaps >= 2 and row.due < 0 for row in rows) else (True,)
    for wanted, places, alone in itertools.product((0, 1, 4, 9), PLACES, alones):
        expected = taken(rows, wanted, places, alone)
        check(worker, rows, before, expected, wanted, places, alone)
    for gate, places, alone in itertools.product(GATES, (None, 0), alones):
        closed_until, probe_until = GATES[gate]
        worker.run(
            f"update pace_gate set closed_until = {closed_until},"
            f" probe_until = {probe_until or 'null'} where name = 'writes'"
        )
        is_passable = gate in ("half open", "half open after a lost probe")
        expected = taken(rows, 1, places, alone) if is_passable else []
        check(worker, rows, before, expected, 9, places, alone)


def check(
    worker: Any,
    rows: list[Row],
    before: dict[int, Any],
    expected: list[Row],
    wanted: int,
    places: int | None,
    alone: bool,
) -> None:
    """Claim, compare with what is expected, and roll back."""
    case = (wanted, places, alone)
    limit = 0 if places is None else SENT + places
    # The day ends far enough from now for `now()` to be within it.
    (budget,) = worker.run(
        "update pace_budget set day_sent = %s, day_ends = now() + interval '12 hours',"
        " spent_until = now() where name = 'writes' returning day_ends",
        (SENT,),
    )
    result = render_jobs.claim(worker, claiming(rate=RATE, daily_limit=limit), wanted, alone)
    sent = [row for row in expected if row.fate == "submitting"]
    fresh = [row for row in sent if not row.is_held]
    assert [claim.row_id for claim in result.claims] == [row.number for row in sent], case
    fates = [row.fate for row in expected if row.fate != "submitting"]
    assert result.ended == {fate: fates.count(fate) for fate in set(fates)}, case
    assert [claim.suspect for claim in result.claims] == [row.reaps >= 2 for row in sent], case
    assert result.admission.is_due == any(row.due < 0 for row in rows), case
    now = worker.run("select now()")[0]["now"]
    for row in worker.run("select * from render_jobs"):
        was = before[row["id"]]
        case_row = next(each for each in rows if each.number == row["id"])
        if case_row not in expected:
            assert row == was, (case, case_row)
        elif case_row.fate == "submitting":
            assert row["status"] == "submitting", (case, case_row)
            assert row["counted_at"] == (was["counted_at"] or now), (case, case_row)
        else:
            assert row["status"] in ("failed", "canceled"), (case, case_row)
            assert row["counted_at"] == was["counted_at"], (case, case_row)
    (after,) = worker.run(
        "select day_sent, day_ends, extract(epoch from spent_until - now())::int as debt"
        "  from pace_budget where name = 'writes'"
    )
    assert after == {
        "day_sent": SENT + len(fresh),
        "day_ends": budget["day_ends"],
        "debt": len(sent),
    }, case
    worker.rollback()


def test_a_key_of_a_claim_from_before_midnight_is_of_the_day_that_counts_it(
    database: Database, session: Callable[[], Session]
) -> None:
    """Another claim began the next day already; this one's clock still shows the day before."""
    insert(database, FRESH[:1])
    worker: Any = session()
    worker.run(
        "update pace_budget set day_sent = 1, day_ends = now() + interval '25 hours'"
        " where name = 'writes'"
    )
    render_jobs.claim(worker, claiming(), 1, True)
    (found,) = worker.run(
        "select r.counted_at = b.day_ends - interval '24 hours' as is_of_that_day, b.day_sent"
        "  from render_jobs r, pace_budget b where b.name = 'writes'"
    )
    assert found == {"is_of_that_day": True, "day_sent": 2}


@pytest.mark.parametrize("row", [HELD[0], FRESH[0], SUSPECT[0]], ids=["held", "fresh", "suspect"])
def test_a_row_that_somebody_holds_is_passed_over(
    database: Database, session: Callable[[], Session], row: Row
) -> None:
    insert(database, [row])
    holder: Any = session()
    worker: Any = session()
    holder.run("select from render_jobs for update")
    # A claim that waited would be refused by this, and not stand until the test ends.
    worker.run("set lock_timeout = '2s'")
    limit = 1 if row.is_held else 0
    worker.run(
        "update pace_budget set day_sent = 1, day_ends = now() + interval '12 hours'"
        " where name = 'writes'"
    )
    result = render_jobs.claim(worker, claiming(daily_limit=limit), 1, True)
    assert (result.claims, result.ended) == ([], {})
