"""What an audit asks the tables: the jobs we hold, and who may own a job that we do not.

Nothing here writes. Times are seconds since the epoch, by the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sume_jobs.connection import Database

BATCH: Final = 5000
# More rows of unknown outcome than these tell nothing about a single job any more.
MOST_DOUBTFUL: Final = 10_000

_HELD: Final = """
select job_id, status, idempotency_key as key, render_job_id as row_id,
       extract(epoch from created_at)::float8 as created_at,
       extract(epoch from updated_at)::float8 as updated_at,
       extract(epoch from next_poll_at - now())::float8 as next_look"""

BY_IDS: Final = f"""{_HELD} from gen_job where job_id = any (%(job_ids)s::text[])"""

# Along the primary key: each statement is short, whatever the window holds.
IN_WINDOW: Final = f"""{_HELD} from gen_job
 where job_id > %(after)s
   and created_at >= to_timestamp(%(since)s) and created_at < to_timestamp(%(until)s)
 order by job_id limit %(batch)s"""


@dataclass(frozen=True, slots=True)
class Held:
    """A job that we hold. `next_look` is the time to its next poll, negative: overdue."""

    job_id: str
    status: str
    key: str
    row_id: int | None
    created_at: float
    updated_at: float
    next_look: float | None


def by_ids(database: Database, job_ids: Sequence[str]) -> dict[str, Held]:
    """Look jobs up by their ids."""
    rows = database.run(BY_IDS, {"job_ids": list(job_ids)})
    return {row["job_id"]: Held(**row) for row in rows}


def in_window(database: Database, since: float, until: float) -> Iterator[Held]:
    """Give the jobs that were recorded from `since` on and before `until`."""
    after = ""
    while True:
        rows = database.run(
            IN_WINDOW, {"after": after, "since": since, "until": until, "batch": BATCH}
        )
        yield from (Held(**row) for row in rows)
        if len(rows) < BATCH:
            return
        after = rows[-1]["job_id"]


OWNERS: Final = """
select id as row_id, idempotency_key as key, status, generation, sume_job_id as job_id,
       extract(epoch from coalesce(unknown_since, case when status = 'submitting' then claimed_at end))::float8
         as unknown_from,
       extract(epoch from updated_at)::float8 as updated_at
  from render_jobs where idempotency_key = any (%(keys)s::text[])"""

# Status by status, so that each is found by its own index.
DOUBTFUL: Final = """
with doubtful as materialized (
  select id from render_jobs where status = 'submitting'
  union all
  select id from render_jobs where status = 'pending' and reaps < 2 and unknown_since is not null
  union all
  select id from render_jobs where status = 'pending' and reaps >= 2 and unknown_since is not null
  union all
  select id from render_jobs
   where status in ('failed', 'canceled') and status = 'failed' and unknown_since is not null)
select id as row_id, idempotency_key as key, status, generation, sume_job_id as job_id,
       extract(epoch from coalesce(unknown_since, claimed_at))::float8 as unknown_from,
       extract(epoch from updated_at)::float8 as updated_at
  from render_jobs where id = any (array(select id from doubtful limit %(most)s))
 order by unknown_from"""


@dataclass(frozen=True, slots=True)
class Owner:
    """A row that owns a key. `unknown_from` is its first send of unknown outcome, if any."""

    row_id: int
    key: str | None
    status: str
    generation: int
    job_id: str | None
    unknown_from: float | None
    updated_at: float


def owners(database: Database, keys: Sequence[str]) -> dict[str, Owner]:
    """Find the rows whose current key is one of these."""
    rows = database.run(OWNERS, {"keys": list(keys)})
    return {row["key"]: Owner(**row) for row in rows}


def doubtful(database: Database) -> list[Owner]:
    """List the rows that may own a job which nobody has learned of, the oldest first."""
    return [Owner(**row) for row in database.run(DOUBTFUL, {"most": MOST_DOUBTFUL})]


BY_KEYS: Final = """
select idempotency_key as key, job_id from gen_job where idempotency_key = any (%(keys)s::text[])"""


def jobs_of_keys(database: Database, keys: Sequence[str]) -> dict[str, str]:
    """Give the job that we hold for each key."""
    return {row["key"]: row["job_id"] for row in database.run(BY_KEYS, {"keys": list(keys)})}


HEARD_OF: Final = """
select distinct job_id from webhook_event where job_id = any (%(job_ids)s::text[])"""


def heard_of(database: Database, job_ids: Sequence[str]) -> set[str]:
    """Tell for which jobs a verified webhook came here."""
    return {row["job_id"] for row in database.run(HEARD_OF, {"job_ids": list(job_ids)})}


CONFLICTS: Final = """
select render_job_id as row_id, job_id, idempotency_key as key, reason,
       extract(epoch from seen_at)::float8 as seen_at
  from job_conflict
 where seen_at >= to_timestamp(%(since)s) and seen_at < to_timestamp(%(until)s)
 order by id"""


@dataclass(frozen=True, slots=True)
class Conflict:
    """What contradicted the promises: see table job_conflict."""

    row_id: int | None
    job_id: str
    key: str | None
    reason: str
    seen_at: float


def conflicts(database: Database, since: float, until: float) -> list[Conflict]:
    """List the conflicts of a window."""
    rows = database.run(CONFLICTS, {"since": since, "until": until})
    return [Conflict(**row) for row in rows]
