"""Table render_jobs: the submission machine (pending, submitting, submitted, failed, canceled).

Claims are fenced by a token made in SQL; release, fail and reap work only under that token.
A success is a fact and is recorded whoever learns it. Multi-row updates lock in id order.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sume_jobs.store import pace
from sume_jobs.store.priorities import BANDS
from sume_jobs.stored_statement import StoredStatement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sume_jobs.connection import Database
    from sume_jobs.decisions.pacing import Pace

REAP_BATCH: Final = 500

# After a `lost` (id, key) of rows that this statement fails before they ever had a job: their
# end is enqueued with it, once for each key, which stands in the place of a job id.
_TELL_LOST: Final = """
told as (
  insert into follow_up (job_id, kind, render_job_id)
  select key, 'submission.failed', id from lost order by id
  on conflict (job_id, kind) do nothing)"""


class ClaimSettings(NamedTuple):
    """What a claim needs to know: key prefix, webhook URL, limits; times in seconds.

    `daily_limit` is the number of keys that a UTC day may count, 0 for any.
    """

    prefix: str
    webhook_url: str | None
    retention: float
    max_attempts: int
    probe_seconds: float
    pace: Pace
    daily_limit: int = 0


class Claim(NamedTuple):
    """A row to be sent: the frozen request and the token that fences it."""

    row_id: int
    token: str
    key: str
    body: str
    attempts: int
    # No earlier request with this key can have reached Sume.
    first_send: bool
    # The row was reaped twice: it is sent alone.
    suspect: bool


class ClaimResult(NamedTuple):
    """What one claim statement gave; `ended` counts rows that ended instead of being sent."""

    admission: pace.Admission
    claims: list[Claim]
    ended: dict[str, int]


# The first row of each band that could be sent. By the order of the index: without it a planner that
# knows nearly every row to be pending reads the table from its head to find one, through all that has
# ended. Nothing lies before it but what was claimed and may not be vacuumed yet, for as long as any
# snapshot is held: the claim passes that by once.
_HEADS: Final = f"""
heads as materialized (
  select band.priority, one.run_after, one.id from {BANDS} cross join lateral (
    select run_after, id from render_jobs where status = 'pending' and reaps < 2
       and priority = band.priority and run_after <= now() order by run_after, id limit 1) as one)"""

_IS_DUE: Final = """
  select from heads
  union all
  (select from render_jobs where status = 'pending' and reaps >= 2 and run_after <= now()
    order by reaps, run_after, id limit 1)"""

# Read off the row that was locked. Whatever may not be sent any more ends here, so that nothing
# ineligible stays at the head of the queue.
_FATE: Final = """
         case when cancel_requested_at is not null and unknown_since is null then 'canceled'
              when unknown_since < now() - make_interval(secs => %(retention)s)
                then 'idempotency_window_expired'
              when attempts >= %(max_attempts)s then 'attempts_exhausted'
              else 'submitting' end as fate,
         counted_at is not null as is_counted,
         %(prefix)s || '-' || id || case when generation > 1 then '-' || generation else '' end as made_key"""

CLAIM: Final = StoredStatement(
    "claim",
    f"""
with {_HEADS},
{pace.admission(_IS_DUE)},
-- Near the day's limit, what holds a place goes first: it needs no other, and its key grows old.
resend as materialized (
  select id, {_FATE}
    from render_jobs
   where status = 'pending' and reaps < 2 and counted_at is not null and run_after <= now()
     and (select places < tokens from budget)
   order by run_after, id limit (select tokens from budget) for update skip locked),
share as materialized (
  select least(tokens - (select count(*) from resend), places)::int as size,
         coalesce(places < tokens, false) as is_short
    from budget),
normal as materialized (
  select row.id, row.fate, row.is_counted, row.made_key from share
   cross join heads
   cross join lateral (
     select id, {_FATE}
       from render_jobs
      where status = 'pending' and reaps < 2 and priority = heads.priority and run_after <= now()
        and (run_after, id) >= (heads.run_after, heads.id)
        and (counted_at is null or not share.is_short)
      order by run_after, id limit share.size for update skip locked) as row
   limit (select size from share)),
suspect as materialized (
  select id, {_FATE}
    from render_jobs
   where status = 'pending' and reaps >= 2 and run_after <= now()
     and %(may_be_alone)s and (select tokens from budget) > 0
     and (counted_at is not null or (select size from share) > 0)
     and not exists (select from normal) and not exists (select from resend)
   order by reaps, run_after, id limit 1 for update skip locked),
picked as materialized (
  select * from resend union all select * from normal union all select * from suspect),
{pace.PROBE},
claimed as (
  update render_jobs r
     set status = case a.fate when 'submitting' then 'submitting' when 'canceled' then 'canceled'
                              else 'failed' end,
         error_code = case when a.fate not in ('submitting', 'canceled') then a.fate end,
         claimed_at = case when a.fate = 'submitting' then now() else r.claimed_at end,
         claim_token = case when a.fate = 'submitting' then gen_random_uuid() end,
         attempts = r.attempts + (a.fate = 'submitting')::int,
         sends = r.sends + (a.fate = 'submitting')::int,
         -- Of the day that counts it, also where another claim began that day before this one.
         counted_at = case when a.fate = 'submitting' and not a.is_counted
                           then greatest(now(), (select day_ends from budget) - interval '24 hours')
                           else r.counted_at end,
         -- An application may have given another row this very key: then this one gets its own.
         idempotency_key = coalesce(r.idempotency_key, a.made_key || case
           when exists (select from render_jobs k where k.idempotency_key = a.made_key)
             then '-' || gen_random_uuid() else '' end),
         request_body = coalesce(r.request_body, (r.params
           || jsonb_build_object('model', r.model, 'prompt', r.prompt)
           || case when %(webhook_url)s::text is null then jsonb_build_object('mode', 'async')
                   else jsonb_build_object('mode', 'webhook', 'webhook_url', %(webhook_url)s::text) end
         )::text),
         updated_at = now()
    from admitted a
   where r.id = any (array(select id from admitted)) and r.id = a.id
  returning r.id, a.fate, a.is_counted, r.claim_token, r.idempotency_key, r.request_body,
            r.attempts, r.sends, r.unknown_since, r.reaps, r.priority, r.run_after),
lost as (
  select id, idempotency_key as key from claimed where fate not in ('submitting', 'canceled')),
{_TELL_LOST},
spending as (
  select count(*) as n, count(*) filter (where not is_counted)::int as places
    from claimed where fate = 'submitting'),
{pace.SPEND}
select {pace.ADMISSION_COLUMNS}, claimed.id, claimed.fate, claimed.claim_token::text as token, claimed.idempotency_key as key, claimed.request_body as body,
       claimed.attempts, claimed.reaps, claimed.sends = 1 and claimed.unknown_since is null as first_send
  from gate cross join due left join budget on true left join claimed on true
 order by claimed.priority, claimed.run_after, claimed.id""",
    in_order=True,
)


def claim(
    database: Database, settings: ClaimSettings, wanted: int, may_be_alone: bool
) -> ClaimResult:
    """Claim up to `wanted` due rows, as far as gate and budget allow, in one statement.

    The claim counts an attempt and a send, and freezes key and request body the first time.
    A row that was reaped twice is claimed alone, only if `may_be_alone` and nothing else is
    due. A row that may not be sent any more (canceled, attempts used up, key too old) ends.
    A key takes a place of the UTC day in which it is first claimed, and keeps it however often it
    is sent; when the day is full, only rows that hold a place are claimed.
    """
    rows = database.run(
        CLAIM,
        {
            "pace": "writes",
            "wanted": wanted,
            "rate": settings.pace.rate,
            "capacity": settings.pace.capacity,
            "daily_limit": settings.daily_limit,
            "probe_seconds": settings.probe_seconds,
            "may_be_alone": may_be_alone,
            "prefix": settings.prefix,
            "webhook_url": settings.webhook_url,
            "retention": settings.retention,
            "max_attempts": settings.max_attempts,
        },
    )
    claims = []
    ended: dict[str, int] = {}
    for row in rows:
        if row["fate"] == "submitting":
            claims.append(
                Claim(
                    row_id=row["id"],
                    token=row["token"],
                    key=row["key"],
                    body=row["body"],
                    attempts=row["attempts"],
                    first_send=row["first_send"],
                    suspect=row["reaps"] >= 2,
                )
            )
        elif row["fate"] is not None:
            ended[row["fate"]] = ended.get(row["fate"], 0) + 1
    return ClaimResult(pace.admission_of(rows[0], bool(claims)), claims, ended)


class Accepted(NamedTuple):
    """Sume accepted the row's request as this job."""

    row_id: int
    token: str
    key: str
    job_id: str
    request_id: str | None = None


class Refused(NamedTuple):
    """The row's request came to nothing, or to something unknown. `delay` is in seconds.

    action: requeue, fail or collision (then `job_id` is the job that somebody else's key made).
    """

    row_id: int
    token: str
    key: str
    action: str
    delay: float = 0.0
    give_back_attempt: bool = False
    give_back_send: bool = False
    unknown: bool = False
    error_code: str | None = None
    error: dict[str, Any] | None = None
    request_id: str | None = None
    job_id: str | None = None


class Recorded(NamedTuple):
    """What became of one answer.

    fate: submitted, requeued, failed, canceled, already (the same job stood there), conflict
    (kept in job_conflict for `reason`), or lost (another claim owns the row now). A row may be
    submitted with the reason job_without_send, kept as well: no request of its had left.
    """

    row_id: int
    job_id: str | None
    fate: str
    reason: str | None


# The common case by itself, since the whole table of cases takes twice as long: a row that waits
# for its first job and was sent, and a job that nobody knows. Every other answer is left to RECORD.
RECORD_NEW: Final = StoredStatement(
    "record_new",
    """
with answer as materialized (
  select * from unnest(%(ids)s::bigint[], %(keys)s::text[], %(job_ids)s::text[], %(request_ids)s::text[])
         as a (row_id, key, job_id, request_id)),
locked as materialized (
  select id, sume_job_id, idempotency_key, cancel_requested_at, sends
    from render_jobs where id = any (%(ids)s::bigint[]) order by id for update),
made as (
  insert into gen_job (job_id, idempotency_key, render_job_id, request_id, next_poll_at,
                       cancel_requested_at, cancel_due_at)
  select distinct on (a.job_id) a.job_id, a.key, l.id, a.request_id,
         now() + make_interval(secs => %(first_poll)s), l.cancel_requested_at,
         case when l.cancel_requested_at is not null then now() end
    from answer a
    join locked l on l.id = a.row_id and l.idempotency_key = a.key and l.sume_job_id is null
     and l.sends > 0
   order by a.job_id, a.row_id
  on conflict do nothing
  returning job_id, render_job_id, request_id)
update render_jobs r
   set status = 'submitted', sume_job_id = m.job_id, claim_token = null,
       error_code = null, error = null, request_id = m.request_id, updated_at = now()
  from made m
 where r.id = any (%(ids)s::bigint[]) and r.id = m.render_job_id
returning r.id, r.sume_job_id as job_id""",
    in_batches=True,
)

# The row is locked by its key before any guard is tested. Success needs no token: the row, its
# key and its empty job id are the guard. Everything else needs the token of its claim.
RECORD: Final = StoredStatement(
    "record",
    f"""
with answer as materialized (
  select * from jsonb_to_recordset(%(answers)s::jsonb) as a (
    row_id bigint, token uuid, key text, action text, job_id text, delay float8,
    give_back_attempt boolean, give_back_send boolean, unknown boolean,
    error_code text, error jsonb, request_id text)),
locked as materialized (
  select id, status, claim_token, claimed_at, sume_job_id, idempotency_key, attempts, sends,
         unknown_since, counted_at, cancel_requested_at
    from render_jobs where id = any (%(ids)s::bigint[]) order by id for update),
-- A replay of the first send means that somebody else used the key, unless the next claim of this
-- very row has sent it meanwhile: then the job is the row's own.
meant as materialized (
  select a.*, case when a.action = 'collision' and l.sends > 1 and l.idempotency_key = a.key
                   then 'accepted' else a.action end as meaning
    from answer a left join locked l on l.id = a.row_id),
-- Looked up by key, never joined to the whole table, whatever the planner believes of it.
known as materialized (
  select job_id, render_job_id, idempotency_key from gen_job where job_id = any (%(job_ids)s::text[])),
success as materialized (
  select a.row_id, a.token, a.key, a.job_id, a.request_id, l.cancel_requested_at, l.sends,
         case when l.id is null then 'row_is_gone'
              when l.idempotency_key is distinct from a.key
                then case when g.render_job_id = a.row_id and g.idempotency_key = a.key then 'already'
                          else 'other_generation' end
              when l.sume_job_id = a.job_id then 'already'
              when l.sume_job_id is not null then 'second_job_for_row'
              when g.job_id is null then 'new'
              when g.render_job_id = a.row_id and g.idempotency_key = a.key then 'known'
              else 'job_of_another_row' end as finding
    from meant a
    left join locked l on l.id = a.row_id
    left join known g on g.job_id = a.job_id
   where a.meaning = 'accepted'),
made as (
  insert into gen_job (job_id, idempotency_key, render_job_id, request_id, next_poll_at,
                       cancel_requested_at, cancel_due_at)
  select distinct on (job_id) job_id, key, row_id, request_id,
         now() + make_interval(secs => %(first_poll)s), cancel_requested_at,
         case when cancel_requested_at is not null then now() end
    from success where finding = 'new' order by job_id, row_id
  on conflict do nothing
  returning job_id, render_job_id),
judged as materialized (
  select s.*, case when s.finding = 'new' and m.job_id is null then 'job_of_another_row'
                   when s.finding = 'new' then 'known' else s.finding end as verdict
    from success s left join made m on m.job_id = s.job_id and m.render_job_id = s.row_id),
submitted as (
  update render_jobs r
     set status = 'submitted', sume_job_id = j.job_id, claim_token = null,
         error_code = null, error = null, request_id = j.request_id, updated_at = now()
    from judged j
   where r.id = any (%(ids)s::bigint[]) and r.id = j.row_id and j.verdict = 'known'
  returning r.id),
conflict as (
  insert into job_conflict (render_job_id, job_id, idempotency_key, reason)
  select row_id, job_id, key, verdict from judged where verdict not in ('known', 'already')
  union all
  select row_id, job_id, key, 'job_without_send' from judged where verdict = 'known' and sends = 0
  union all
  select row_id, job_id, key, 'idempotency_key_collision' from meant where meaning = 'collision'
  on conflict do nothing),
refusal as materialized (
  select a.*, l.attempts - a.give_back_attempt::int as attempts_left_at,
         coalesce(l.unknown_since, case when a.unknown then l.claimed_at end) as unknown_from,
         l.cancel_requested_at is not null as is_unwanted, l.counted_at
    from (select row_id, token, action, delay, give_back_attempt, give_back_send, unknown,
                 error_code, error, request_id, false as is_accepted from meant where meaning <> 'accepted'
          union all
          -- A job that belongs to another row cannot be this one's: no more sends with this key.
          select row_id, token, 'fail', 0, false, false, false, 'job_id_conflict', null, request_id, true
            from judged where verdict = 'job_of_another_row') a
    join locked l on l.id = a.row_id and l.status = 'submitting' and l.claim_token = a.token),
decided as materialized (
  select *, case when action <> 'requeue' then 'failed'
                 when is_unwanted and unknown_from is null then 'canceled'
                 when attempts_left_at >= %(max_attempts)s then 'failed'
                 else 'pending' end as status,
         -- Sume certainly made nothing of this key.
         unknown_from is null and not is_accepted as is_vacated
    from refusal),
vacated as materialized (
  select counted_at from decided where is_vacated and counted_at is not null),
refused as (
  update render_jobs r
     set status = d.status, claim_token = null, attempts = d.attempts_left_at,
         sends = r.sends - d.give_back_send::int,
         unknown_since = d.unknown_from,
         counted_at = case when not d.is_vacated then r.counted_at end,
         run_after = now() + make_interval(secs => d.delay),
         error_code = case when d.status = 'failed' and d.action = 'requeue' then 'attempts_exhausted'
                           when d.status = 'failed' then d.error_code end,
         error = coalesce(d.error, r.error), request_id = coalesce(d.request_id, r.request_id),
         updated_at = now()
    from decided d
   where r.id = any (%(ids)s::bigint[]) and r.id = d.row_id
  returning r.id, r.status, r.idempotency_key),
{pace.GIVE_PLACES_BACK},
lost as (select id, idempotency_key as key from refused where status = 'failed'),
{_TELL_LOST}
select a.row_id, a.job_id,
       case when j.verdict = 'known' and j.sends = 0 then 'job_without_send' else j.verdict end as verdict,
       case when s.id is not null then 'submitted'
            when j.verdict = 'already' then 'already'
            when j.verdict is not null or a.meaning = 'collision' then 'conflict'
            when f.status = 'pending' then 'requeued'
            when f.status is not null then f.status
            else 'lost' end as fate
  from meant a
  left join judged j on j.row_id = a.row_id and a.meaning = 'accepted'
  left join submitted s on s.id = a.row_id
  left join refused f on f.id = a.row_id""",
    in_batches=True,
)


def record(
    database: Database,
    answers: Sequence[Accepted | Refused],
    max_attempts: int,
    first_poll: float,
) -> list[Recorded]:
    """Record what became of claimed rows; safe to repeat.

    Each row is recorded by one statement; a batch takes two where not all of it is new.
    `first_poll` is the time, in seconds, until a new job is first looked at. An accepted job is
    inserted as queued, whatever Sume says of it: its status goes through the guarded update.
    """
    accepted = [answer for answer in answers if isinstance(answer, Accepted)]
    new = _record_new(database, accepted, first_poll) if accepted else set()
    rest = [answer for answer in answers if (answer.row_id, answer.job_id) not in new]
    recorded = [Recorded(row_id, job_id, "submitted", "known") for row_id, job_id in new]
    if rest:
        recorded += _record_rest(database, rest, max_attempts, first_poll)
    return recorded


def _record_new(
    database: Database, answers: Sequence[Accepted], first_poll: float
) -> set[tuple[int, str | None]]:
    """Record the new jobs among the accepted answers; gives (row id, job id) of those."""
    rows = database.run(
        RECORD_NEW,
        {
            "ids": [answer.row_id for answer in answers],
            "keys": [answer.key for answer in answers],
            "job_ids": [answer.job_id for answer in answers],
            "request_ids": [answer.request_id for answer in answers],
            "first_poll": first_poll,
        },
    )
    return {(row["id"], row["job_id"]) for row in rows}


def _record_rest(
    database: Database,
    answers: Sequence[Accepted | Refused],
    max_attempts: int,
    first_poll: float,
) -> list[Recorded]:
    rows = database.run(
        RECORD,
        {
            "answers": json.dumps([_as_json(answer) for answer in answers]),
            "ids": [answer.row_id for answer in answers],
            "job_ids": [answer.job_id for answer in answers if answer.job_id],
            "max_attempts": max_attempts,
            "first_poll": first_poll,
        },
    )
    return [Recorded(row["row_id"], row["job_id"], row["fate"], row["verdict"]) for row in rows]


def _as_json(answer: Accepted | Refused) -> dict[str, Any]:
    if isinstance(answer, Refused):
        return answer._asdict()
    return {"action": "accepted", **answer._asdict()}


REAP: Final = StoredStatement(
    "reap",
    f"""
with stale as materialized (
  select id, sume_job_id, idempotency_key, unknown_from,
         case when sume_job_id is not null then 'submitted'
              when unknown_from < now() - make_interval(secs => %(retention)s) then 'expired'
              when attempts >= %(max_attempts)s then 'exhausted'
              else 'pending' end as fate
    from (
      select id, sume_job_id, idempotency_key, attempts,
             coalesce(unknown_since, least(claimed_at, now())) as unknown_from
        from render_jobs
       where status = 'submitting'
         and (claimed_at is null or claimed_at < now() - make_interval(secs => %(claim_timeout)s)
              -- No clock but the database's sets it: an instant in the future is damage.
              or claimed_at > now() + interval '1 minute')
       -- By the index, whatever the planner believes of the table; it waits for no lock.
       order by claimed_at limit %(batch)s for update skip locked) as claimed),
job as (
  insert into gen_job (job_id, idempotency_key, render_job_id)
  select sume_job_id, coalesce(idempotency_key, %(prefix)s || '-' || id), id
    from stale where fate = 'submitted'
  on conflict do nothing),
moved as (
  update render_jobs r
     set status = case s.fate when 'expired' then 'failed' when 'exhausted' then 'failed' else s.fate end,
         error_code = case s.fate when 'expired' then 'idempotency_window_expired'
                                  when 'exhausted' then 'attempts_exhausted' end,
         reaps = r.reaps + (s.fate <> 'submitted')::int,
         unknown_since = case when s.fate = 'submitted' then r.unknown_since else s.unknown_from end,
         claim_token = null,
         run_after = now() + make_interval(secs => 5 + 5 * random()),
         updated_at = now()
    from stale s
   where r.id = any (array(select id from stale)) and r.id = s.id
  returning r.id, r.generation, r.idempotency_key, s.fate),
lost as (
  select id, coalesce(idempotency_key, %(prefix)s || '-' || id
         || case when generation > 1 then '-' || generation else '' end) as key
    from moved where fate in ('expired', 'exhausted')),
{_TELL_LOST}
select fate, count(*) as n from moved group by fate""",
    in_order=True,
)


def reap(
    database: Database, claim_timeout: int, retention: int, max_attempts: int, prefix: str
) -> dict[str, int]:
    """Take back one batch of claims that ended without a word.

    Gives counts by fate of the rows: pending, expired (the key is too old to be sent
    again), exhausted (attempts used up), submitted (the job id stood there already).
    """
    rows = database.run(
        REAP,
        {
            "claim_timeout": claim_timeout,
            "retention": retention,
            "max_attempts": max_attempts,
            "prefix": prefix,
            "batch": REAP_BATCH,
        },
    )
    return {row["fate"]: row["n"] for row in rows}


REQUEST_CANCEL: Final = """
update render_jobs set cancel_requested_at = coalesce(cancel_requested_at, now())
 where id = %(id)s
returning case when status = 'canceled' then 'canceled'
               when cancel_requested_at is not null then 'requested' else 'too_late' end as outcome"""


def request_cancel(database: Database, row_id: int) -> str | None:
    """Wish that a row be canceled (a trigger does the rest). None where there is no such row.

    canceled: it never left, and never will. requested: Sume will be asked, and only what Sume
    reports is written. too_late: it has ended.
    """
    rows = database.run(REQUEST_CANCEL, {"id": row_id})
    return rows[0]["outcome"] if rows else None


# Only from the generation that the operator saw: whoever repeats it, or does the same beside it,
# pays once.
START_GENERATION: Final = """
with started as (
  update render_jobs set generation = generation + 1
   where id = %(id)s and generation = %(seen)s returning id)
select exists (select from started) as is_new, generation from render_jobs where id = %(id)s"""


def start_generation(database: Database, row_id: int, seen: int) -> bool:
    """Make a row that has ended once more, with a new key, billed anew (an operator's act).

    `seen` is the generation that it is to follow. Tells whether the row is now at the next one;
    False where it is gone or further on. Raises psycopg.errors.CheckViolation where it has not
    ended.
    """
    rows = database.run(START_GENERATION, {"id": row_id, "seen": seen})
    # Not new, though at the next one: an answer was lost and the statement repeated.
    return bool(rows) and (rows[0]["is_new"] or rows[0]["generation"] == seen + 1)


# Found by its key, then judged: the index of the failed rows may be long. Tells of a row that waits
# already too, because an answer may be lost and the statement repeated.
SEND_AGAIN: Final = """
with locked as materialized (
  select id, unknown_since is not null and sume_job_id is null
              and (status = 'failed' and error_code is distinct from 'idempotency_key_collision'
                   or status = 'pending' and attempts = 0) as may_go,  -- a collision's job is somebody else's
         status = 'failed' as has_failed
    from render_jobs where id = %(id)s for update),
again as (
  update render_jobs r
     set status = 'pending', attempts = 0, run_after = now(), updated_at = now()
    from locked l
   where r.id = any (array(select id from locked)) and r.id = l.id and l.may_go and l.has_failed)
select id from locked where may_go"""


def send_again(database: Database, row_id: int) -> bool:
    """Send a failed row that Sume may have under its own key, which bills once (an operator's act).

    False where it is no such row. One whose key is too old by then ends failed once more instead
    of being sent.
    """
    return bool(database.run(SEND_AGAIN, {"id": row_id}))


# Raising the generation is all there is to write: a trigger makes the row a new request.
NEW_GENERATION: Final = """
with locked as materialized (
  select id from render_jobs where id = any (%(ids)s::bigint[]) order by id for update),
failed as (
  update gen_job g set regeneration_open = false
   where g.job_id = any (%(job_ids)s::text[]) and g.regeneration_open
     and g.render_job_id = any (array(select id from locked))
  returning g.job_id, g.render_job_id),
raised as (
  update render_jobs r set generation = r.generation + 1
    from failed f
   where r.id = any (array(select id from locked)) and r.id = f.render_job_id
     and r.sume_job_id = f.job_id and r.status = 'submitted'
     and r.generation < %(max_generations)s and r.cancel_requested_at is null
  returning r.id),
-- Told here, or the trigger that keeps the history would take it for an operator's doing.
kept as (
  insert into job_history (render_job_id, machine, by, from_status, to_status)
  select id, 'submission', 'reap', 'submitted', 'pending' from raised)
select id from raised"""


def regenerate(
    database: Database, failed: Sequence[tuple[str, int]], max_generations: int
) -> list[int]:
    """Queue another generation for rows whose job failed (job id, row id); gives the rows.

    Each failed job is judged once, so a repeat changes nothing.
    """
    rows = database.run(
        NEW_GENERATION,
        {
            "job_ids": [job_id for job_id, _ in failed],
            "ids": [row_id for _, row_id in failed],
            "max_generations": max_generations,
        },
    )
    return [row["id"] for row in rows]
