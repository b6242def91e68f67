"""Levels for metrics: how much waits and how old it is, from the partial indexes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sume_jobs.store import pace
from sume_jobs.store.counts import LONG_AGO, counted, estimated

if TYPE_CHECKING:
    from sume_jobs.connection import Database


# So many are counted exactly (pending rows: of each priority), of more the statistics tell.
MOST: Final = 10_000
# More rows and jobs that came to need a person within a day are not counted.
MOST_IN_NEED: Final = 1_000


class Levels(NamedTuple):
    """Depths and ages (seconds, 0 where nothing waits).

    `pending` counts rows that could be sent now, `needs_attention` rows and jobs that came to need
    a person within the last day (up to 1,000 of either). More than 10,000 pending rows of one
    priority, or jobs in flight, are estimated, never below what was counted. The age of the oldest
    follow-up counts from the end that it tells of to now. `sent_today` counts the keys that took a
    place of this UTC day; `waits_for_person` tells that nothing is sent until a person opens the
    gate.
    """

    pending: int
    oldest_pending_seconds: float
    in_flight: int
    oldest_in_flight_seconds: float
    needs_attention: int
    oldest_follow_up_seconds: float
    sent_today: int
    waits_for_person: bool


_FAILED_ROWS: Final = """
  select from render_jobs where status = 'failed' and updated_at > now() - interval '1 day'"""
_JOBS_IN_NEED: Final = """
  select from gen_job where (attention is not null or status = 'failed')
     and updated_at > now() - interval '1 day'"""

# Each part repeats the predicate and the order of the partial index that it is to be read from.
READ: Final = f"""
with pending as materialized (
  select band.n, band.oldest, {estimated("render_jobs_claim")} as estimate
    from (values (0::smallint), (1::smallint), (2::smallint), (3::smallint)) as p (priority)
   cross join lateral (
     select count(*) as n, min(greatest(run_after, {LONG_AGO})) as oldest from (
       select run_after from render_jobs
        where status = 'pending' and reaps < 2 and priority = p.priority and run_after <= now()
        order by run_after, id limit {MOST}) x) band
  union all
  select count(*), min(greatest(run_after, {LONG_AGO})), {estimated("render_jobs_suspect")} from (
    select run_after from render_jobs where status = 'pending' and reaps >= 2 and run_after <= now()
     order by reaps, run_after, id limit {MOST}) x),
in_flight as materialized (
  select count(*) as n, min(created_at) as oldest from (
    select created_at from gen_job where status in ('queued', 'processing')
     order by created_at limit {MOST}) x)
select (select case when max(n) < {MOST} then sum(n) else greatest(sum(n), max(estimate)) end
          from pending)::bigint as pending,
       coalesce(extract(epoch from now() - (select min(oldest) from pending)), 0)::float8 as oldest_pending,
       (select case when n < {MOST} then n else greatest(n, {estimated("gen_job_in_flight")}) end
          from in_flight)::bigint as in_flight,
       coalesce(extract(epoch from now() - (select oldest from in_flight)), 0)::float8 as oldest_in_flight,
       {counted(_FAILED_ROWS, "updated_at desc", MOST_IN_NEED)}
       + {counted(_JOBS_IN_NEED, "updated_at desc", MOST_IN_NEED)} as needs_attention,
       -- Of a long backlog only the head is looked at: the first to be due are the oldest.
       (select coalesce(extract(epoch from now() - min(created_at)), 0)::float8
          from (select created_at from follow_up
                 where dispatched_at is null and dead_reason is null
                 order by run_after limit 1000) as head) as oldest_follow_up,
       (select {pace.DAY_SENT} from pace_budget where name = 'writes') as sent_today,
       (select closed_until is not distinct from 'infinity' from pace_gate
         where name = 'writes') as waits_for_person"""


def read(database: Database) -> Levels:
    """Read the levels now."""
    row = database.run(READ)[0]
    return Levels(
        pending=row["pending"],
        oldest_pending_seconds=row["oldest_pending"],
        in_flight=row["in_flight"],
        oldest_in_flight_seconds=row["oldest_in_flight"],
        needs_attention=row["needs_attention"],
        oldest_follow_up_seconds=row["oldest_follow_up"],
        sent_today=row["sent_today"],
        waits_for_person=row["waits_for_person"],
    )
