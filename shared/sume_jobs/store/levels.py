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
    came to need a person within the last day (of those made within the last week).
    """

    pending: int
    oldest_pending_seconds: float
    in_flight: int
    oldest_in_flight_seconds: float
    needs_attention: int


READ: Final = """
select (select count(*) from render_jobs where status = 'pending' and run_after <= now()) as pending,
       coalesce((select extract(epoch from now() - min(run_after)) from render_jobs
                  where status = 'pending' and run_after <= now()), 0)::float8 as oldest_pending,
       (select count(*) from gen_job where status in ('queued', 'processing')) as in_flight,
       coalesce((select extract(epoch from now() - min(created_at)) from gen_job
                  where status in ('queued', 'processing')), 0)::float8 as oldest_in_flight,
       (select count(*) from render_jobs
         where status in ('failed', 'canceled') and status <> 'canceled'
           and created_at > now() - interval '7 days' and updated_at > now() - interval '1 day')
       + (select count(*) from gen_job
           where (attention is not null or status in ('failed', 'canceled')) and status <> 'canceled'
             and created_at > now() - interval '7 days' and updated_at > now() - interval '1 day') as needs_attention"""


def read(database: Database) -> Levels:
    """Read the levels now."""
    row = database.run(READ)[0]
    return Levels(
        pending=row["pending"],
        oldest_pending_seconds=row["oldest_pending"],
        in_flight=row["in_flight"],
        oldest_in_flight_seconds=row["oldest_in_flight"],
        needs_attention=row["needs_attention"],
    )
