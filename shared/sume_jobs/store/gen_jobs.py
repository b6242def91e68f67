"""Table gen_job: the generation machine, and follow_up, which a job's end fills.

There is one guarded update, `move()`; nothing else writes gen_job.status. It locks the row by
its key, tests the guard on the locked row, and on a win at a terminal status inserts the
follow-up in the same statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sume_jobs.store import pace
from sume_jobs.stored_statement import StoredStatement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sume_jobs.connection import Database
    from sume_jobs.decisions.pacing import Pace

# After a `wish (job_id, status, error_code, error, request_id, by)` with one row a job: the rows,
# locked in id order, and the verdict of the guard on each. `win` is null for an unknown job.
JUDGE: Final = """
locked as materialized (
  select job_id, status, render_job_id from gen_job
   where job_id = any (array(select job_id from wish)) order by job_id for update),
judged as materialized (
  select w.*, l.render_job_id, l.status as was,
         l.status in ('queued', 'processing')
           and (w.status = 'processing' and l.status = 'queued'
                or w.status in ('completed', 'failed', 'canceled')) as win,
         l.status in ('completed', 'failed', 'canceled')
           and w.status in ('completed', 'failed', 'canceled') and w.status <> l.status as contradicts
    from wish w left join locked l on l.job_id = w.job_id)"""

# After a `winner` (rows of `judged` that may be applied): the one place that moves a job, and keeps
# the move in the history of its row.
MOVE: Final = """
moved as (
  update gen_job g
     set status = w.status,
         error_code = w.error_code,
         error = coalesce(w.error, g.error),
         request_id = coalesce(w.request_id, g.request_id),
         regeneration_open = w.status = 'failed',
         -- A completed job is still asked for its result, a failed one for its error.
         next_poll_at = case when w.status = 'processing' then g.next_poll_at
                             when w.status = 'completed' or w.status = 'failed' and w.error is null then now() end,
         cancel_due_at = case when w.status = 'processing' then g.cancel_due_at end,
         attention = case when w.status = 'processing' then g.attention end,
         updated_at = now()
    from winner w
   where g.job_id = any (array(select job_id from winner)) and g.job_id = w.job_id
  returning g.job_id, g.status, g.render_job_id, w.was, w.by),
kept as (
  insert into job_history (render_job_id, machine, job_id, by, from_status, to_status)
  select render_job_id, 'generation', job_id, by, was, status from moved
   where render_job_id is not null),
enqueued as (
  insert into follow_up (job_id, kind, render_job_id)
  select job_id, 'job.' || status, render_job_id from moved
   where status in ('completed', 'failed', 'canceled')
   order by job_id
  on conflict (job_id, kind) do nothing)"""

APPLY: Final = StoredStatement(
    "apply",
    f"""
with wish as materialized (
  select job_id, status, error_code, error::jsonb, request_id, %(by)s::text as by
    from unnest(%(job_ids)s::text[], %(statuses)s::text[], %(error_codes)s::text[], %(errors)s::text[],
                %(request_ids)s::text[]) as w (job_id, status, error_code, error, request_id)),
{JUDGE},
winner as materialized (select * from judged where win),
{MOVE}
select j.job_id, j.status, coalesce(j.win, false) as won, coalesce(j.contradicts, false) as contradicts
  from judged j""",
    in_batches=True,
)


class Wish(NamedTuple):
    """A status that Sume reported for a job. `error` is JSON text."""

    job_id: str
    status: str
    error_code: str | None = None
    error: str | None = None
    request_id: str | None = None


class Moved(NamedTuple):
    """What the guard said: `won` for this very call; `contradicts` another end that stands."""

    job_id: str
    status: str
    won: bool
    contradicts: bool


def apply(database: Database, wishes: Sequence[Wish], by: str = "poll") -> list[Moved]:
    """Move jobs forward where the guard allows it; one wish a job, safe to repeat.

    `by` is who learned it, for the history.
    """
    if not wishes:
        return []
    rows = database.run(
        APPLY,
        {
            "job_ids": [wish.job_id for wish in wishes],
            "statuses": [wish.status for wish in wishes],
            "error_codes": [wish.error_code for wish in wishes],
            "errors": [wish.error for wish in wishes],
            "request_ids": [wish.request_id for wish in wishes],
            "by": by,
        },
    )
    return [Moved(row["job_id"], row["status"], row["won"], row["contradicts"]) for row in rows]


# Poll ---------------------------------------------------------------------------------------

# The first job that is due, by the order of the index. Before it lies nothing but what was polled and
# may not be vacuumed yet.
_HEAD: Final = """
head as materialized (
  select next_poll_at from gen_job where next_poll_at <= now() order by next_poll_at limit 1)"""

# The lease is the next poll time itself: an overlapping sweep does not see the job, and a sweep
# that dies leaves it due again when the lease is over.
CLAIM: Final = StoredStatement(
    "poll_claim",
    f"""
with {_HEAD},
{pace.admission("select from head")},
picked as materialized (
  select job_id from gen_job
   where next_poll_at <= now() and next_poll_at >= (select next_poll_at from head)
   order by next_poll_at limit (select coalesce(max(tokens), 0) from budget) for update skip locked),
{pace.PROBE},
claimed as (
  update gen_job g
     set next_poll_at = case when g.status = 'canceled' or g.status = 'failed' and g.error is not null
                               or g.result is not null then null
                             else now() + make_interval(secs => %(lease)s) end,
         polls = g.polls + 1
    from admitted a
   where g.job_id = any (array(select job_id from admitted)) and g.job_id = a.job_id
  returning g.job_id, g.status, extract(epoch from now() - g.created_at)::float8 as age,
            g.missing_reads, g.result_reads, g.attention, g.next_poll_at is null as is_over),
spending as (select count(*) as n, 0 as places from claimed where not is_over),
{pace.SPEND}
select {pace.ADMISSION_COLUMNS}, claimed.*
  from gate cross join due left join budget on true left join claimed on true""",
    in_order=True,
)


class Due(NamedTuple):
    """A job to ask Sume about. `age` is in seconds."""

    job_id: str
    status: str
    age: float
    missing_reads: int
    result_reads: int
    attention: str | None


def claim_due(
    database: Database, rate: Pace, wanted: int, lease: float, probe_seconds: float
) -> tuple[pace.Admission, list[Due]]:
    """Lease up to `wanted` due jobs for `lease` seconds, as far as gate and budget allow."""
    rows = database.run(
        CLAIM,
        {
            "pace": "reads",
            "wanted": wanted,
            "rate": rate.rate,
            "capacity": rate.capacity,
            "daily_limit": 0,
            "probe_seconds": probe_seconds,
            "lease": lease,
        },
    )
    jobs = [
        Due(
            row["job_id"],
            row["status"],
            row["age"],
            row["missing_reads"],
            row["result_reads"],
            row["attention"],
        )
        for row in rows
        if row["job_id"] is not None and not row["is_over"]
    ]
    return pace.admission_of(rows[0], bool(jobs)), jobs


class Looked(NamedTuple):
    """What one look at a job leaves on its row besides the status.

    found: the job was read; missing: Sume does not know it; no_result: it is completed but its
    result is not there; None: the read said nothing. `attention` is the mark the job has from
    now on, `delay` the time until the next look in seconds, `result` and `error` JSON text. The
    error only fills what a failed job lacks.
    """

    job_id: str
    delay: float
    finding: str | None = None
    attention: str | None = None
    webhook_status: str | None = None
    result: str | None = None
    error_code: str | None = None
    error: str | None = None


LOOKED: Final = StoredStatement(
    "looked",
    """
with look as materialized (
  select job_id, delay, finding, attention, webhook_status, result::jsonb, error_code, error::jsonb
    from unnest(%(job_ids)s::text[], %(delays)s::float8[], %(findings)s::text[], %(attentions)s::text[],
                %(webhook_statuses)s::text[], %(results)s::text[], %(error_codes)s::text[], %(errors)s::text[])
         as l (job_id, delay, finding, attention, webhook_status, result, error_code, error)),
locked as materialized (
  select job_id from gen_job where job_id = any (%(job_ids)s::text[]) order by job_id for update)
update gen_job g
   set result = coalesce(g.result, l.result),
       error_code = case when g.status = 'failed' then coalesce(g.error_code, l.error_code) else g.error_code end,
       error = case when g.status = 'failed' then coalesce(g.error, l.error) else g.error end,
       webhook_status = coalesce(l.webhook_status, g.webhook_status),
       missing_reads = case l.finding when 'missing' then g.missing_reads + 1
                                      when 'found' then 0 else g.missing_reads end,
       result_reads = g.result_reads + (coalesce(l.finding, '') = 'no_result')::int,
       -- A webhook may have ended the job since it was read: then only a missing result counts.
       attention = case when g.status in ('failed', 'canceled') or l.result is not null then null
                        when g.status = 'completed' and l.attention is distinct from 'result_missing' then null
                        else l.attention end,
       next_poll_at = case when g.status = 'canceled' then null
                           when g.status = 'failed' and (g.error is not null or l.finding = 'found'
                                                         or l.attention = 'job_not_found') then null
                           when g.result is not null or l.result is not null then null
                           -- The move to completed made it due: it may be another sweep's by now.
                           when g.status = 'completed' and coalesce(l.finding, '') <> 'no_result' then g.next_poll_at
                           else now() + make_interval(secs => l.delay) end,
       updated_at = case when l.result is not null or l.attention is distinct from g.attention
                         then now() else g.updated_at end
  from look l
 where g.job_id = any (array(select job_id from locked)) and g.job_id = l.job_id""",
    in_batches=True,
)


def record_looks(database: Database, looks: Sequence[Looked]) -> None:
    """Record what looks at jobs found and when to look again; writes no status."""
    if not looks:
        return
    database.run(
        LOOKED,
        {
            "job_ids": [look.job_id for look in looks],
            "delays": [look.delay for look in looks],
            "findings": [look.finding for look in looks],
            "attentions": [look.attention for look in looks],
            "webhook_statuses": [look.webhook_status for look in looks],
            "results": [look.result for look in looks],
            "error_codes": [look.error_code for look in looks],
            "errors": [look.error for look in looks],
        },
    )


LOOK_SOON: Final = """
update gen_job set next_poll_at = least(next_poll_at, now())
 where job_id = %(job_id)s and next_poll_at is not null
returning job_id"""


def look_soon(database: Database, job_id: str) -> bool:
    """Make a job due for the next poll, if anything is left to ask about it."""
    return bool(database.run(LOOK_SOON, {"job_id": job_id}))


# Another generation -------------------------------------------------------------------------

# A job whose end was learned without its error is judged once poll has asked for it.
OPEN_REGENERATIONS: Final = """
select job_id, render_job_id, error from gen_job
 where regeneration_open and (error is not null or next_poll_at is null)
 order by job_id limit %(batch)s"""


def open_regenerations(database: Database, batch: int) -> list[tuple[str, int | None, object]]:
    """Give failed jobs that nobody has judged yet: job id, row id, the parsed error."""
    rows = database.run(OPEN_REGENERATIONS, {"batch": batch})
    return [(row["job_id"], row["render_job_id"], row["error"]) for row in rows]


CLOSE_REGENERATIONS: Final = """
with locked as materialized (
  select job_id from gen_job where job_id = any (%(job_ids)s::text[]) order by job_id for update)
update gen_job set regeneration_open = false where job_id = any (array(select job_id from locked))"""


def close_regenerations(database: Database, job_ids: Sequence[str]) -> None:
    """Record that these failed jobs are not made again by themselves."""
    database.run(CLOSE_REGENERATIONS, {"job_ids": list(job_ids)})


# Cancel -------------------------------------------------------------------------------------

CLAIM_CANCELS: Final = """
with due as materialized (
  select job_id from gen_job where cancel_due_at <= now()
   order by cancel_due_at limit %(wanted)s for update skip locked)
update gen_job g
   set cancel_due_at = case when g.status in ('queued', 'processing')
                            then now() + make_interval(secs => %(lease)s) end
  from due where g.job_id = due.job_id
returning g.job_id, g.cancel_due_at is not null as is_wanted"""


def claim_cancels(database: Database, wanted: int, lease: float) -> list[str]:
    """Lease up to `wanted` jobs whose cancel is to be asked of Sume; gives their ids."""
    rows = database.run(CLAIM_CANCELS, {"wanted": wanted, "lease": lease})
    return [row["job_id"] for row in rows if row["is_wanted"]]


CANCEL_ASKED: Final = """
update gen_job
   set cancel_due_at = case when cancel_due_at is not null
                            then now() + make_interval(secs => %(again)s::float8) end,
       next_poll_at = case when next_poll_at is not null then least(next_poll_at, now()) end
 where job_id = any (array(select job_id from gen_job where job_id = %(job_id)s for update))"""


def cancel_asked(database: Database, job_id: str, again: float | None) -> None:
    """Record that a cancel was asked: ask once more in `again` seconds, or never; look soon."""
    database.run(CANCEL_ASKED, {"job_id": job_id, "again": again})


# Archive ------------------------------------------------------------------------------------

FOR_ARCHIVE: Final = """
select status, idempotency_key, render_job_id, result -> 'artifacts' as artifacts,
       coalesce(result ? 'archive', false) as is_archived
  from gen_job where job_id = %(job_id)s"""


class Archivable(NamedTuple):
    """A job as the archive sees it; `artifacts` is None until its result is known."""

    status: str
    idempotency_key: str
    render_job_id: int | None
    artifacts: list[dict[str, object]] | None
    is_archived: bool


def for_archive(database: Database, job_id: str) -> Archivable | None:
    """Read what is to be archived of a job; None where there is no such job."""
    rows = database.run(FOR_ARCHIVE, {"job_id": job_id})
    return Archivable(**rows[0]) if rows else None


# Put together in SQL, so that the numbers of the result keep their digits. Artifacts are matched
# by their place in the list.
ARCHIVED: Final = """
with locked as materialized (
  select job_id, coalesce(result, %(result)s::jsonb) as result from gen_job
   where job_id = %(job_id)s and status = 'completed' for update)
update gen_job g
   set result = l.result || jsonb_build_object(
         'archive', jsonb_build_object('manifest', %(manifest)s::text),
         'artifacts', (
           select coalesce(jsonb_agg(case when p.location is null then a.item
                                          else a.item || jsonb_build_object('location', p.location) end
                                     order by a.place), '[]')
             from jsonb_array_elements(l.result -> 'artifacts') with ordinality as a (item, place)
             left join unnest(%(locations)s::text[]) with ordinality as p (location, place)
               on p.place = a.place)),
       attention = case when g.attention = 'result_missing' then null else g.attention end,
       updated_at = now()
  from locked l
 where g.job_id = any (array(select job_id from locked)) and g.job_id = l.job_id
returning g.job_id"""


def archived(
    database: Database, job_id: str, locations: Sequence[str], manifest: str, result: str | None
) -> bool:
    """Note where each artifact and the manifest lie (URLs), under the result; safe to repeat.

    `result` is JSON text that fills a result which is not known yet. False where the job is gone.
    """
    return bool(
        database.run(
            ARCHIVED,
            {
                "job_id": job_id,
                "locations": list(locations),
                "manifest": manifest,
                "result": result,
            },
        )
    )
