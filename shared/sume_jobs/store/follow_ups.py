"""Table follow_up: the outbox, filled by a job's end, drained by dispatch.

A claim is a lease with a token made in SQL, and counts an attempt in the same statement. What
became of a follow-up is written only under that token, so that a slow worker whose lease is
over cannot overwrite what the next one did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sume_jobs.store.counts import counted, estimated
from sume_jobs.stored_statement import StoredStatement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sume_jobs.connection import Database

BATCH: Final = 10
# Up to here the backlog is counted.
MOST: Final = 10_000
SUBMISSION_FAILED: Final = "submission.failed"


class FollowUp(NamedTuple):
    """A leased follow-up and what its message says.

    `job_id` is the idempotency key where there never was a job (kind submission.failed).
    `status` is the job's (the row's, without a job); `occurred_at` is when the end was recorded.
    """

    id: int
    token: str
    attempts: int
    kind: str
    job_id: str
    idempotency_key: str | None
    render_job_id: int | None
    reference: str | None
    status: str
    error_code: str | None
    occurred_at: datetime
    sent_to: tuple[str, ...]


class Claimed(NamedTuple):
    """What one claim gave; `dead` are follow-ups that ended instead: id, kind and reason."""

    follow_ups: list[FollowUp]
    dead: list[tuple[int, str, str]]


# Job and row are looked up by key, never joined to the whole table, whatever the planner
# believes of them. An attempt that ended without a word has used one.
CLAIM: Final = StoredStatement(
    "dispatch_claim",
    """
with due as materialized (
  select id, job_id, kind, render_job_id, attempts from follow_up
   where dispatched_at is null and dead_reason is null and run_after <= now()
   order by run_after limit %(batch)s for update skip locked),
job as materialized (
  select job_id, status, error_code, idempotency_key from gen_job
   where job_id = any (array(select job_id from due))),
row as materialized (
  select id, status, error_code, reference, idempotency_key from render_jobs
   where id = any (array(select render_job_id from due))),
judged as materialized (
  select due.*, row.reference,
         case when due.kind = %(submission_failed)s then due.job_id else job.idempotency_key end as key,
         case when due.kind = %(submission_failed)s then 'failed' else job.status end as status,
         -- The row may be further by now: a late success, or another generation.
         case when due.kind <> %(submission_failed)s then job.error_code
              when row.status = 'failed' and row.idempotency_key = due.job_id then row.error_code
              end as error_code,
         case when due.kind = %(submission_failed)s and row.id is null then 'row_is_gone'
              when due.kind <> %(submission_failed)s and job.job_id is null then 'job_is_gone'
              when due.attempts >= %(max_attempts)s then 'attempts_exhausted: worker_ended'
              end as dead_reason
    from due
    left join job on job.job_id = due.job_id
    left join row on row.id = due.render_job_id),
claimed as (
  update follow_up f
     set dead_reason = j.dead_reason,
         lease_token = case when j.dead_reason is null then gen_random_uuid() end,
         attempts = f.attempts + (j.dead_reason is null)::int,
         run_after = case when j.dead_reason is null then now() + make_interval(secs => %(lease)s)
                          else f.run_after end
    from judged j
   where f.id = any (array(select id from judged)) and f.id = j.id
  returning f.id, f.lease_token, f.attempts, f.created_at, f.sent_to)
select j.id, j.kind, j.job_id, j.render_job_id, j.key, j.reference, j.status, j.error_code,
       j.dead_reason, c.lease_token::text as token, c.attempts, c.created_at, c.sent_to
  from judged j join claimed c on c.id = j.id
 order by j.id""",
    in_order=True,
)


def claim(database: Database, lease: float, max_attempts: int) -> Claimed:
    """Lease one batch of due follow-ups for `lease` seconds; another worker gets other ones.

    A follow-up whose job (or row) is gone, or whose attempts are used up, ends with a reason.
    """
    rows = database.run(
        CLAIM,
        {
            "batch": BATCH,
            "lease": lease,
            "max_attempts": max_attempts,
            "submission_failed": SUBMISSION_FAILED,
        },
    )
    return Claimed(
        [
            FollowUp(
                id=row["id"],
                token=row["token"],
                attempts=row["attempts"],
                kind=row["kind"],
                job_id=row["job_id"],
                idempotency_key=row["key"],
                render_job_id=row["render_job_id"],
                reference=row["reference"],
                status=row["status"],
                error_code=row["error_code"],
                occurred_at=row["created_at"],
                sent_to=tuple(row["sent_to"]),
            )
            for row in rows
            if row["dead_reason"] is None
        ],
        [(row["id"], row["kind"], row["dead_reason"]) for row in rows if row["dead_reason"]],
    )


class Mark(NamedTuple):
    """What became of one leased follow-up.

    `sent_to` are the targets that have it; `error` says why it is not done (None: it is).
    `delay` is the wait in seconds before the next attempt, `give_back_attempt` tells that the
    failure says nothing about this follow-up.
    """

    id: int
    token: str
    sent_to: tuple[str, ...] = ()
    error: str | None = None
    delay: float = 0.0
    give_back_attempt: bool = False


# A success keeps its token, so that a repeated statement finds what it did.
MARK: Final = StoredStatement(
    "mark",
    """
with mark as materialized (
  select * from unnest(%(ids)s::bigint[], %(tokens)s::uuid[], %(sent_to)s::text[], %(errors)s::text[],
                       %(delays)s::float8[], %(give_backs)s::boolean[])
         as m (id, token, sent_to, error, delay, give_back)),
locked as materialized (
  select f.id, m.sent_to, m.error, m.delay, f.attempts - m.give_back::int as attempts
    from follow_up f join mark m on m.id = f.id and m.token = f.lease_token
   where f.id = any (%(ids)s::bigint[]) order by f.id for update of f)
update follow_up f
   set dispatched_at = coalesce(f.dispatched_at, case when l.error is null then now() end),
       sent_to = string_to_array(l.sent_to, ','),
       last_error = coalesce(l.error, f.last_error),
       dead_reason = case when l.error is not null and l.attempts >= %(max_attempts)s
                          then 'attempts_exhausted: ' || l.error end,
       attempts = l.attempts,
       run_after = case when l.error is null then f.run_after
                        else now() + make_interval(secs => l.delay) end,
       lease_token = case when l.error is null then f.lease_token end
  from locked l
 where f.id = any (array(select id from locked)) and f.id = l.id
returning f.id, f.kind, f.dead_reason, f.dispatched_at is not null as is_dispatched""",
    in_batches=True,
)


class Marked(NamedTuple):
    """What one statement of marks came to: ids sent, ids back in the queue, and dead ones."""

    dispatched: frozenset[int]
    waiting: frozenset[int]
    dead: list[tuple[int, str, str]]


def mark(database: Database, marks: Sequence[Mark], max_attempts: int) -> Marked:
    """Record what became of leased follow-ups, in one statement.

    One whose lease went to another worker meanwhile appears nowhere in the answer.
    """
    if not marks:
        return Marked(frozenset(), frozenset(), [])
    rows = database.run(
        MARK,
        {
            "ids": [each.id for each in marks],
            "tokens": [each.token for each in marks],
            "sent_to": [",".join(each.sent_to) for each in marks],
            "errors": [each.error for each in marks],
            "delays": [each.delay for each in marks],
            "give_backs": [each.give_back_attempt for each in marks],
            "max_attempts": max_attempts,
        },
    )
    return Marked(
        frozenset(row["id"] for row in rows if row["is_dispatched"]),
        frozenset(row["id"] for row in rows if not row["is_dispatched"] and not row["dead_reason"]),
        [(row["id"], row["kind"], row["dead_reason"]) for row in rows if row["dead_reason"]],
    )


_WAITING: Final = "select from follow_up where dispatched_at is null and dead_reason is null"

# Without a target all follow-ups of a long history wait.
BACKLOG: Final = f"""
select n, case when n < {MOST} then n else greatest(n, {estimated("follow_up_due")}) end::bigint as backlog
  from (values ({counted(_WAITING, "run_after", MOST)})) as x (n)"""


def backlog(database: Database) -> int:
    """Count the follow-ups that wait for a target, up to 10,000; more than that are estimated."""
    count: int = database.run(BACKLOG)[0]["backlog"]
    return count
