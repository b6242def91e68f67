"""Tables pace_budget and pace_gate: the pace that all workers on one API key share.

There is a pair for writes (every POST) and one for reads. A gate is open (`closed_until` is
null), closed (in the future) or half open (in the past): then one probe may go, and its answer
decides. The gate's row is written only when something changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from sume_jobs.decisions import backoff

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sume_jobs.connection import Database, Row
    from sume_jobs.decisions.pacing import Pace

Name = Literal["writes", "reads"]

# An outage is this many ambiguous answers in a row, from different rows.
OUTAGE_ANSWERS: Final = 5


def _from_now(instant: str) -> str:
    """Tell how far ahead an instant of the pace lies, in seconds; it may be infinite.

    Not by subtracting instants: before PostgreSQL 17 an infinite one cannot be subtracted from.
    """
    return f"(extract(epoch from {instant}) - extract(epoch from now()))::float8"


def admission(work_is_due: str) -> str:
    """Begin a claim: the gate, and how many tokens it may take, as the CTEs `gate` and `budget`.

    `work_is_due` is a query that gives a row when there is something to claim: without work
    nothing is locked and nothing written. Needs the parameters `pace`, `wanted`, `rate` and
    `capacity`. `budget` has no row when the gate is closed or a probe is out.
    """
    return f"""
gate as materialized (
  select closed_until is null as is_open,
         closed_until <= now() and coalesce(probe_until <= now(), true) as may_probe,
         {_from_now("closed_until")} as closed_for,
         reason as gate_reason,
         cardinality(ambiguous) > 0 as has_ambiguous
    from pace_gate where name = %(pace)s),
due as materialized (
  select exists ({work_is_due}) as is_due),
budget as materialized (
  select greatest(0, least(
           case when gate.is_open then %(wanted)s else 1 end,
           floor(%(capacity)s::float8 - %(rate)s::float8 * greatest(0, {_from_now("spent_until")}) + 1e-9)
         ))::int as tokens,
         greatest(0, {_from_now("spent_until")}) as debt
    from pace_budget, gate, due
   where name = %(pace)s and due.is_due and (gate.is_open or gate.may_probe)
     for update of pace_budget)"""


# Takes the probe's slot where the gate is half open; wants a CTE `picked` with what was found.
# Two claims that both saw it half open meet at the row lock, and the second finds it taken.
PROBE: Final = """
probe as (
  update pace_gate set probe_until = now() + make_interval(secs => %(probe_seconds)s), changed_at = now()
   where name = %(pace)s and closed_until <= now() and coalesce(probe_until <= now(), true)
     and exists (select from picked)
  returning true),
admitted as materialized (
  select picked.* from picked, gate where gate.is_open or exists (select from probe))"""

# Takes the tokens of what was claimed; wants a CTE `spending(n)`.
SPEND: Final = """
spent as (
  update pace_budget
     set spent_until = greatest(spent_until, now()) + make_interval(secs => n / %(rate)s::float8)
    from spending
   where name = %(pace)s and n > 0)"""


@dataclass(frozen=True, slots=True)
class Admission:
    """What a claim was allowed. Times are in seconds.

    `debt` is None when no budget was looked at (nothing is due, or the gate is not open).
    """

    is_due: bool
    is_open: bool
    probing: bool
    closed_for: float
    reason: str | None
    has_ambiguous: bool
    debt: float | None
    tokens: int


def admission_of(row: Row, claimed: bool) -> Admission:
    """Read the admission columns of a claim's rows."""
    return Admission(
        is_due=row["is_due"],
        is_open=row["is_open"],
        probing=not row["is_open"] and claimed,
        closed_for=row["closed_for"] or 0.0,
        reason=row["gate_reason"],
        has_ambiguous=row["has_ambiguous"],
        debt=row["debt"],
        tokens=row["tokens"] or 0,
    )


ADMISSION_COLUMNS: Final = (
    "due.is_due, gate.is_open, gate.closed_for, gate.gate_reason, gate.has_ambiguous, "
    "budget.debt, budget.tokens"
)

CLOSE: Final = """
update pace_gate
   set closed_until = greatest(closed_until, now() + make_interval(secs => %(seconds)s::float8
         * case when %(doubling)s then least(power(2, closures), %(longest)s::float8 / %(seconds)s)
                else 1 end)),
       closures = closures + %(doubling)s::int,
       reason = %(reason)s, probe_until = null, ambiguous = '{}', changed_at = now()
 where name = any(%(names)s)
   -- An answer of the same wave neither doubles the wait nor shortens a longer one.
   and (closed_until is null or closed_until <= now()
        or (closed_until < now() + make_interval(secs => %(seconds)s)
            and not (%(doubling)s and closures > 0)))
returning name"""


def close(
    database: Database, names: Iterable[Name], seconds: float, reason: str, doubling: bool = False
) -> bool:
    """Close gates for `seconds` (doubling with each stop in a row); tells whether one changed."""
    return bool(
        database.run(
            CLOSE,
            {
                "names": list(names),
                "seconds": seconds,
                "reason": reason,
                "doubling": doubling,
                "longest": backoff.LONGEST_DELAY,
            },
        )
    )


REOPEN: Final = """
update pace_gate
   set closed_until = null, reason = null, closures = 0, probe_until = null, changed_at = now()
 where name = %(name)s and closed_until <= now()
returning name"""


def reopen(database: Database, name: Name) -> bool:
    """Open a half-open gate after its probe; a gate that closed again meanwhile stays closed."""
    return bool(database.run(REOPEN, {"name": name}))


NOTE_AMBIGUOUS: Final = """
update pace_gate g
   set ambiguous = array(select distinct unnest(
         case when %(answered)s then '{}'::text[] else g.ambiguous end || %(ids)s::text[]))
 where g.name = %(name)s and g.closed_until is null
returning cardinality(g.ambiguous) >= %(outage)s as is_outage"""


def note_ambiguous(database: Database, name: Name, answered: bool, ids: list[str]) -> bool:
    """Remember ambiguous answers in a row; tells whether there are now enough for an outage.

    `answered` tells that a clear answer came before the given `ids`, which ends the row.
    """
    rows = database.run(
        NOTE_AMBIGUOUS,
        {"name": name, "answered": answered, "ids": ids, "outage": OUTAGE_ANSWERS},
    )
    return bool(rows and rows[0]["is_outage"])


TAKE: Final = f"""
with budget as materialized (
  select name from pace_budget
   where name = %(pace)s
     and %(capacity)s::float8 - %(rate)s::float8 * greatest(0, {_from_now("spent_until")}) >= 1 - 1e-9
     and exists (select from pace_gate where name = %(pace)s and closed_until is null)
     for update)
update pace_budget b
   set spent_until = greatest(b.spent_until, now()) + make_interval(secs => 1 / %(rate)s::float8)
  from budget where b.name = budget.name
returning true"""


def take(database: Database, name: Name, pace: Pace) -> bool:
    """Take one token of an open gate's budget; False when there is none now."""
    return bool(database.run(TAKE, {"pace": name, "rate": pace.rate, "capacity": pace.capacity}))


STATE: Final = f"""
select name, closed_until is not null as is_closed, reason, closures,
       {_from_now("closed_until")} as closed_for
  from pace_gate order by name"""


def state(database: Database) -> list[Row]:
    """Show both gates: name, is_closed, reason, closures, closed_for (seconds, negative: half open)."""
    return database.run(STATE)


DEBTS: Final = """
select name, greatest(0, extract(epoch from spent_until) - extract(epoch from now()))::float8 as debt
  from pace_budget order by name"""


def debts(database: Database) -> dict[str, float]:
    """Tell in how many seconds each budget is whole again (`Pace.available` counts its tokens)."""
    return {row["name"]: row["debt"] for row in database.run(DEBTS)}


OPEN_NOW: Final = """
update pace_gate set closed_until = least(closed_until, now()), probe_until = null, changed_at = now()
 where name = any(%(names)s) and closed_until is not null
returning name"""


def open_now(database: Database, names: Iterable[Name]) -> list[str]:
    """End the pause of gates that are not open: the next row probes, and its answer decides."""
    return sorted(row["name"] for row in database.run(OPEN_NOW, {"names": list(names)}))
