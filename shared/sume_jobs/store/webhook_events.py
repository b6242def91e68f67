"""Table webhook_event: the inbox. An event is stored once, by its id, and applied with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sume_jobs.store.gen_jobs import JUDGE, MOVE
from sume_jobs.stored_statement import StoredStatement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sume_jobs.connection import Database

HELD_BATCH: Final = 500
PURGE_BATCH: Final = 1000


class Event(NamedTuple):
    """A verified event. `status` is None where it decides nothing; `error` is JSON text."""

    event_id: str
    body: str
    job_id: str | None = None
    event_type: str | None = None
    status: str | None = None
    error_code: str | None = None
    error: str | None = None
    request_id: str | None = None
    header_event_id: str | None = None


class Received(NamedTuple):
    """What became of an event: applied, noop, held, ignored or duplicate."""

    outcome: str
    contradicts: bool = False


_STORE: Final = """
  insert into webhook_event (event_id, job_id, event_type, job_status, error_code, error, request_id,
                             body, header_event_id, outcome, applied_at)"""

# Stored and applied in one statement: a crash cannot come between. The job's row is locked
# before the event is stored, so that two deliveries of one event meet there.
RECEIVE: Final = StoredStatement(
    "receive",
    f"""
with wish as materialized (
  select %(job_id)s::text as job_id, %(status)s::text as status, %(error_code)s::text as error_code,
         %(error)s::jsonb as error, %(request_id)s::text as request_id, 'webhook' as by),
{JUDGE},
stored as ({_STORE}
  select %(event_id)s, job_id, %(event_type)s, status, error_code, error, request_id,
         %(body)s, %(header_event_id)s,
         case when win is null then 'held' when win then 'applied' else 'noop' end,
         case when win then now() end
    from judged
  on conflict (event_id) do nothing
  returning outcome),
winner as materialized (
  select judged.* from judged, stored where stored.outcome = 'applied'),
{MOVE}
select coalesce((select outcome from stored), 'duplicate') as outcome,
       coalesce((select contradicts from judged), false)
         and exists (select from stored) as contradicts""",
)

# An event that decides nothing: it only makes its job due, if it names one.
RECEIVE_UNDECIDED: Final = StoredStatement(
    "receive_undecided",
    f"""
with locked as materialized (
  select job_id from gen_job where job_id = %(job_id)s::text for update),
stored as ({_STORE}
  select %(event_id)s, %(job_id)s::text, %(event_type)s, %(status)s::text, %(error_code)s,
         %(error)s::jsonb, %(request_id)s, %(body)s, %(header_event_id)s, 'ignored', null::timestamptz
    from (select count(*) from locked) as first
  on conflict (event_id) do nothing
  returning outcome),
reread as (
  update gen_job g set next_poll_at = least(g.next_poll_at, now())
    from stored, locked
   where g.job_id = locked.job_id and g.next_poll_at is not null)
select coalesce((select outcome from stored), 'duplicate') as outcome, false as contradicts""",
)


def receive(database: Database, event: Event) -> Received:
    """Store an event once and apply it; safe to repeat. An undecidable one makes its job due."""
    rows = database.run(
        RECEIVE if event.job_id and event.status else RECEIVE_UNDECIDED,
        {
            "event_id": event.event_id,
            "job_id": event.job_id,
            "event_type": event.event_type,
            "status": event.status,
            "error_code": event.error_code,
            "error": event.error,
            "request_id": event.request_id,
            "body": event.body,
            "header_event_id": event.header_event_id,
        },
    )
    return Received(rows[0]["outcome"], rows[0]["contradicts"])


# Of several held events of one job the first terminal one counts, as if each had been applied
# when it came.
_RESOLVE: Final = f"""
wish as materialized (
  select distinct on (e.job_id) e.event_id, e.job_id, e.job_status as status, e.error_code, e.error,
         e.request_id, 'webhook' as by
    from webhook_event e
   where e.outcome = 'held' and e.job_id = any (array(select job_id from known))
   order by e.job_id, e.job_status in ('completed', 'failed', 'canceled') desc, e.received_at, e.event_id),
{JUDGE},
winner as materialized (select * from judged where win),
{MOVE},
resolved as (
  update webhook_event e
     set outcome = case when e.event_id = w.event_id then 'applied' else 'noop' end, applied_at = now()
    from locked l left join winner w on w.job_id = l.job_id
   where e.outcome = 'held' and e.job_id = any (array(select job_id from locked)) and e.job_id = l.job_id
  returning e.job_id, e.outcome)
select job_id from resolved where outcome = 'applied'"""

# Not stored: which of the two indexes of the held events serves it better, the planner tells only
# while it sees how many there are.
APPLY_HELD: Final = f"""
with held as materialized (
  select job_id from webhook_event where outcome = 'held' and job_id = any (%(job_ids)s::text[])),
known as materialized (
  select job_id from gen_job where job_id = any (array(select job_id from held))),
{_RESOLVE}"""

APPLY_ALL_HELD: Final = f"""
with known as materialized (
  select job_id from gen_job
   where job_id = any (array(select job_id from webhook_event where outcome = 'held' order by job_id))
   limit %(batch)s),
{_RESOLVE}"""


def apply_held(database: Database, job_ids: Sequence[str]) -> list[str]:
    """Apply the events that came before their jobs were recorded; gives the jobs that moved.

    Called after the commit that recorded the jobs: whichever of the two sides commits last
    sees the other.
    """
    rows = database.run(APPLY_HELD, {"job_ids": list(job_ids)})
    return [row["job_id"] for row in rows]


def apply_all_held(database: Database) -> list[str]:
    """Apply one batch of held events whose job is known by now; gives the jobs that moved."""
    rows = database.run(APPLY_ALL_HELD, {"batch": HELD_BATCH})
    return [row["job_id"] for row in rows]


PURGE_HELD: Final = """
with old as materialized (
  select event_id from webhook_event
   where outcome = 'held' and received_at < now() - make_interval(days => %(days)s)
   order by received_at limit %(batch)s for update skip locked)
delete from webhook_event where event_id = any (array(select event_id from old)) returning event_id"""


def purge_held(database: Database, days: int) -> int:
    """Delete one batch of events that were held for `days` days for a job that never came."""
    return len(database.run(PURGE_HELD, {"days": days, "batch": PURGE_BATCH}))


PURGE_OLD: Final = """
with old as materialized (
  select event_id from webhook_event
   where received_at < now() - make_interval(days => %(days)s) and outcome <> 'held'
   order by received_at limit %(batch)s for update skip locked)
delete from webhook_event where event_id = any (array(select event_id from old)) returning event_id"""


def purge_old(database: Database, days: int) -> int:
    """Delete one batch of events that came more than `days` days ago."""
    return len(database.run(PURGE_OLD, {"days": days, "batch": PURGE_BATCH}))
