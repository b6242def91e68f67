"""Retention across the tables: what has ended long ago goes, in bounded batches.

Never rows in flight, never undispatched follow-ups, never anything younger than the key's life.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from sume_jobs.connection import Database

BATCH: Final = 1000

# Rows go in the order of their ids, which is nearly that of their age; `after` carries the walk
# past old rows that have to stay, and the walk ends at the first batch with nothing old enough.
_OLD: Final = """
with head as materialized (
  select id, status, idempotency_key, created_at, updated_at from render_jobs
   where id > %(after)s order by id limit %(batch)s),
aged as materialized (
  select id, idempotency_key from head
   where created_at < now() - make_interval(days => %(days)s, secs => %(key_life)s)
     and updated_at < now() - make_interval(days => %(days)s)
     and status in ('submitted', 'failed', 'canceled')),
-- Looked up by row, never joined to the whole table, whatever the planner believes of it.
its_job as materialized (
  select job_id, render_job_id, status, updated_at from gen_job
   where render_job_id = any (array(select id from aged))),
-- A row that failed without a job has its follow-up under its key, also under one of before.
owing as materialized (
  select render_job_id from follow_up
   where kind = 'submission.failed' and render_job_id = any (array(select id from aged))
     and dispatched_at is null and dead_reason is null),
owed as materialized (
  select job_id from follow_up
   where job_id = any (array(select job_id from its_job union all select idempotency_key from aged))
     and dispatched_at is null and dead_reason is null),
old as materialized (
  select id from aged a
   where not exists (select from owed where owed.job_id = a.idempotency_key)
     and a.id not in (select render_job_id from owing) and not exists (
     select from its_job j
      where j.render_job_id = a.id
        and (j.status in ('queued', 'processing')
             or j.updated_at >= now() - make_interval(days => %(days)s)
             or j.job_id in (select job_id from owed))))"""

PURGE: Final = f"""{_OLD},
-- Asked once more of the locked row: somebody may have taken it up again in this very moment.
locked as materialized (
  select id, idempotency_key from render_jobs
   where id = any (array(select id from old)) and updated_at < now() - make_interval(days => %(days)s)
   order by id for update skip locked),
job as (
  delete from gen_job where render_job_id = any (array(select id from locked)) returning job_id),
followed as (
  delete from follow_up
   where job_id = any (array(select job_id from job union all select idempotency_key from locked))
      or kind = 'submission.failed' and render_job_id = any (array(select id from locked))),
gone as (
  delete from render_jobs where id = any (array(select id from locked)) returning id)
select (select count(*) from gone) as gone, (select max(id) from head) as last,
       exists (select from head where created_at < now() - make_interval(days => %(days)s)) as has_old"""


def purge(database: Database, days: int, key_life: int, may_go_on: Callable[[], bool]) -> int:
    """Delete what ended more than `days` days ago, batch by batch while `may_go_on()`.

    `key_life` is in seconds: a row stays that much longer, so that its key cannot be made anew
    while Sume still remembers it. Gives the number of rows that went.
    """
    gone, after = 0, 0
    while may_go_on():
        row = database.run(
            PURGE, {"after": after, "batch": BATCH, "days": days, "key_life": key_life}
        )[0]
        gone += row["gone"]
        if row["last"] is None or not row["has_old"]:
            break
        after = row["last"]
    return gone


COUNT: Final = f"""{_OLD}
select (select count(*) from old) as n, (select max(id) from head) as last,
       exists (select from head where created_at < now() - make_interval(days => %(days)s)) as has_old"""


def count(database: Database, days: int, key_life: int) -> int:
    """Count what `purge` would delete now, in the same batches."""
    found = after = 0
    while True:
        row = database.run(
            COUNT, {"after": after, "batch": BATCH, "days": days, "key_life": key_life}
        )[0]
        found += int(row["n"])
        if row["last"] is None or not row["has_old"]:
            return found
        after = row["last"]


# What is left of rows that were deleted by plain SQL, in the order of their ids. Whether the row is
# there is looked up one by one, whatever the planner believes of the table.
STRAY_JOBS: Final = """
with head as materialized (
  select job_id, render_job_id, status, created_at, updated_at from gen_job
   where render_job_id > %(after)s order by render_job_id fetch first %(batch)s rows with ties),
stray as materialized (
  select job_id from head
   where created_at < now() - make_interval(days => %(days)s, secs => %(key_life)s)
     and updated_at < now() - make_interval(days => %(days)s)
     and status in ('completed', 'failed', 'canceled')
     and (select count(*) from render_jobs r where r.id = head.render_job_id) = 0),
owed as materialized (
  select job_id from follow_up
   where job_id = any (array(select job_id from stray)) and dispatched_at is null and dead_reason is null),
locked as materialized (
  select job_id, render_job_id from gen_job
   where job_id = any (array(select job_id from stray)) and job_id not in (select job_id from owed)
   order by job_id for update skip locked),
-- Moves that came after the row had gone.
moves as (
  delete from job_history where render_job_id = any (array(select render_job_id from locked))),
followed as (
  delete from follow_up where job_id = any (array(select job_id from locked))),
gone as (
  delete from gen_job where job_id = any (array(select job_id from locked)) returning job_id)
select (select count(*) from gone) as gone, (select max(render_job_id) from head) as last,
       exists (select from head where created_at < now() - make_interval(days => %(days)s)) as has_old"""

STRAY_FAILURES: Final = """
with head as materialized (
  select id, render_job_id, created_at, dispatched_at, dead_reason from follow_up
   where kind = 'submission.failed' and render_job_id > %(after)s
   order by render_job_id fetch first %(batch)s rows with ties),
stray as materialized (
  select id from head
   where created_at < now() - make_interval(days => %(days)s, secs => %(key_life)s)
     and (dispatched_at < now() - make_interval(days => %(days)s) or dead_reason is not null)
     and (select count(*) from render_jobs r where r.id = head.render_job_id) = 0),
gone as (
  delete from follow_up where id = any (array(
    select id from follow_up where id = any (array(select id from stray)) order by id for update skip locked))
  returning id)
select (select count(*) from gone) as gone, (select max(render_job_id) from head) as last,
       exists (select from head where created_at < now() - make_interval(days => %(days)s)) as has_old"""


def purge_strays(
    database: Database, days: int, key_life: int, may_go_on: Callable[[], bool]
) -> int:
    """Delete what is left of rows that somebody deleted, as old as `purge` has it.

    Jobs with their follow-ups and moves, and the ends of rows that failed without a job; never what
    is not handed on yet. Gives their number.
    """
    gone = 0
    for statement in (STRAY_JOBS, STRAY_FAILURES):
        after = 0
        while may_go_on():
            row = database.run(
                statement, {"after": after, "batch": BATCH, "days": days, "key_life": key_life}
            )[0]
            gone += row["gone"]
            if row["last"] is None or not row["has_old"]:
                break
            after = row["last"]
    return gone
