"""Tables pace_budget and pace_gate: the pace that all workers on one API key share.

There is a pair for writes (every POST) and one for reads. A gate is open (`closed_until` is
null), closed (in the future) or half open (in the past): then one probe may go, and its answer
decides. Closed until 'infinity' it waits for a person. The gate's row is written only when
something changes. Beside the budget of writes stands how many keys the UTC day has counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from sume_jobs.decisions import backoff

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


# The day that is counted, until its midnight. A clock that was set back counts on into the later
# day; an end that is further away than that is damage.
_DAY_RUNS: Final = "(day_ends > now() and day_ends <= now() + interval '48 hours')"
_DAY_ENDS: Final = f"case when {_DAY_RUNS} then day_ends else date_trunc('day', now(), 'UTC') + interval '24 hours' end"

DAY_SENT: Final = f"case when {_DAY_RUNS} then day_sent else 0 end"


def admission(work_is_due: str) -> str:
    """Begin a claim: the gate, and how many tokens it may take, as the CTEs `gate` and `budget`.

    `work_is_due` is a query that gives a row when there is something to claim: without work
    nothing is locked and nothing written. Needs the parameters `pace`, `wanted`, `rate`,
    `capacity` and `daily_limit` (0: none). `budget` has no row when the gate is closed or a probe
    is out; its `places` are those that the day has left, null without a limit.
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
         greatest(0, {_from_now("spent_until")}) as debt,
         case when %(daily_limit)s::int > 0
              then greatest(0, %(daily_limit)s::int - {DAY_SENT}) end as places,
         {_DAY_ENDS} as day_ends
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

# Takes the tokens of what was claimed, and its places of the day; wants a CTE `spending(n, places)`.
SPEND: Final = """
spent as (
  update pace_budget b
     set spent_until = greatest(b.spent_until, now()) + make_interval(secs => spending.n / %(rate)s::float8),
         day_sent = case when b.day_ends = budget.day_ends then b.day_sent else 0 end + spending.places,
         day_ends = budget.day_ends
    from spending, budget
   where b.name = %(pace)s and spending.n > 0)"""

# Gives places of the day back; wants a CTE `vacated(counted_at)`. Those of a day that is over are
# nobody's any more. The instants come as one array, because a subquery on the CTE would be run anew
# where the row has changed since this statement began.
GIVE_PLACES_BACK: Final = """
given_back as (
  update pace_budget b
     set day_sent = greatest(0, b.day_sent - (
           select count(*) from unnest(those.places) as place
            where place >= b.day_ends - interval '24 hours'))
    from (select array_agg(counted_at) as places from vacated) as those
   where b.name = 'writes' and those.places is not null)"""


class Admission(NamedTuple):
    """What a claim was allowed. Times are in seconds.

    `debt` is None when no budget was looked at (nothing is due, or the gate is not open).
    `places` are those that the day had left before this claim, None without a limit; the day ends
    in `day_left`.
    """

    is_due: bool
    is_open: bool
    probing: bool
    closed_for: float
    reason: str | None
    has_ambiguous: bool
    debt: float | None
    tokens: int
    places: int | None = None
    day_left: float = 0.0

    @property
    def day_is_full(self) -> bool:
        """The day's limit is reached: only what holds a place already may be sent."""
        return self.places == 0


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
        places=row["places"],
        day_left=row["day_left"] or 0.0,
    )


ADMISSION_COLUMNS: Final = (
    "due.is_due, gate.is_open, gate.closed_for, gate.gate_reason, gate.has_ambiguous, "
    f"budget.debt, budget.tokens, budget.places, {_from_now('budget.day_ends')} as day_left"
)

CLOSE: Final = """
update pace_gate
   set closed_until = greatest(closed_until, now() + make_interval(secs => %(seconds)s::float8
         * case when %(doubling)s then least(power(2, least(closures, 20)), %(longest)s::float8 / %(seconds)s)
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


# What was found since a person last opened the gate, within the window; one proof is enough.
GUARD: Final = """
with found as materialized (
  select c.reason, c.render_job_id, c.job_id
    from pace_gate g
   cross join lateral (
     select reason, render_job_id, job_id, seen_at from job_conflict
      where seen_at > greatest(g.guarded_from, now() - make_interval(secs => %(window)s))
        and (reason = any (%(proofs)s::text[]) or reason = any (%(signs)s::text[]))
      order by seen_at desc limit %(limit)s) c
   where g.name = 'writes'
   order by c.reason = any (%(proofs)s::text[]) desc, c.seen_at desc),
worst as materialized (select * from found limit 1)
update pace_gate g
   set closed_until = 'infinity', reason = worst.reason,
       detail = concat_ws(', ', 'row ' || worst.render_job_id, 'job ' || worst.job_id),
       probe_until = null, ambiguous = '{}', changed_at = now()
  from worst
 where g.name = 'writes' and g.closed_until is distinct from 'infinity'
   and ((select count(*) from found) >= %(limit)s or worst.reason = any (%(proofs)s::text[]))
returning g.reason, worst.render_job_id as row_id, worst.job_id"""


def guard(
    database: Database, proofs: Sequence[str], signs: Sequence[str], limit: int, window: float
) -> Row | None:
    """Close the gate of writes, until a person opens it, on what job_conflict tells.

    One of the `proofs` (reasons) is enough, or `limit` entries within `window` seconds, `signs`
    included. Gives reason, row_id and job_id of the worst where this call closed it (of the newest
    `limit` entries: a proof, or the last), else None.
    """
    rows = database.run(
        GUARD, {"proofs": list(proofs), "signs": list(signs), "limit": limit, "window": window}
    )
    return rows[0] if rows else None


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
     -- A wish to cancel costs nothing and saves something: what waits for a person does not stop it.
     and exists (select from pace_gate where name = %(pace)s
                    and (closed_until is null or closed_until = 'infinity'))
     for update)
update pace_budget b
   set spent_until = greatest(b.spent_until, now()) + make_interval(secs => 1 / %(rate)s::float8)
  from budget where b.name = budget.name
returning true"""


def take(database: Database, name: Name, pace: Pace) -> bool:
    """Take one token of the budget where the gate is open; False when there is none now."""
    return bool(database.run(TAKE, {"pace": name, "rate": pace.rate, "capacity": pace.capacity}))


STATE: Final = f"""
select name, closed_until is not null as is_closed, reason, detail, closures,
       {_from_now("closed_until")} as closed_for
  from pace_gate order by name"""


def state(database: Database) -> list[Row]:
    """Show both gates: name, is_closed, reason, detail, closures, closed_for.

    `closed_for` is in seconds: negative where it is half open, infinite where a person must open
    it; then `detail` names the row and the job.
    """
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


DAY: Final = f"""
select {DAY_SENT} as sent,
       {_from_now(f"({_DAY_ENDS})")} as ends_in
  from pace_budget where name = 'writes'"""


def day(database: Database) -> Row:
    """Tell how many keys this UTC day has counted (`sent`), and in how many seconds it ends."""
    return database.run(DAY)[0]
