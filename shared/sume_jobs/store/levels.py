"""Levels for metrics: how much waits and how old it is, from the partial indexes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sume_jobs.connection import Database


@dataclass(frozen=True, slots=True)
class Levels:
    """Depths and ages (seconds, 0 where nothing waits).

    `pending` counts rows that could be sent now; `needs_attention` counts rows and jobs that
    came to need a person within the last day (of those made within the last week). The age of the
    oldest follow-up counts from the end that it tells of to now.
    """

    pending: int
    oldest_pending_seconds: float
    in_flight: int
    oldest_in_flight_seconds: float
    needs_attention: int
    oldest_follow_up_seconds: float


# Each part repeats the predicate of the partial index that it is to be read from.
READ: Final = """
with pending as materialized (
  select count(*) as n, min(run_after) as oldest from render_jobs
   where status = 'pending' and reaps < 2 and run_after <= now()
  union all
  select count(*), min(run_after) from render_jobs
   where status = 'pending' and reaps >= 2 and run_after <= now()),
in_flight as materialized (
  select count(*) as n, min(created_at) as oldest from gen_job where status in ('queued', 'processing'))
select (select sum(n) from pending)::bigint as pending,
       coalesce(extract(epoch from now() - (select min(oldest) from pending)), 0)::float8 as oldest_pending,
       (select n from in_flight) as in_flight,
       coalesce(extract(epoch from now() - (select oldest from in_flight)), 0)::float8 as oldest_in_flight,
       (select count(*) from render_jobs
         where status in ('failed', 'canceled') and status <> 'canceled'
           and created_at > now() - interval '7 days' and updated_at > now() - interval '1 day')
       + (select count(*) from gen_job
           where (attention is not null or status in ('failed', 'canceled')) and status <> 'canceled'
             and created_at > now() - interval '7 days' and updated_at > now() - interval '1 day')
         as needs_attention,
       -- Of a long backlog only the head is looked at: the first to be due are the oldest.
       (select coalesce(extract(epoch from now() - min(created_at)), 0)::float8
          from (select created_at from follow_up
                 where dispatched_at is null and dead_reason is null
                 order by run_after limit 1000) as head) as oldest_follow_up"""


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
    )
