"""Mutants that nobody can tell from the original, each with the reason.

By file, then by the mutant's description as the check prints it. `test_mutants.py` keeps the list
to mutants that there are: a statement that changes takes its reasons with it.
"""

from __future__ import annotations

PLAN = (
    "another condition of the statement says the same; this one keeps the planner to the index,"
    " for which tests/database/test_plans.py counts pages"
)
PASSED_BY = "nothing that could be claimed lies before the first; this passes by what is dead"
FIRST_ROW = "`exists` stops at the first row; this keeps the planner to the index (test_plans.py)"
ORDER = (
    "the update that follows locks the same rows and tests the newest version of each; this lock"
    " only has batches meet in one order"
)
TWICE = "`on conflict do nothing` keeps the first of two in one statement as well"
ONE_ANSWER = "a batch holds one answer for a row, so the row tells by itself"
JOINED = "only a submitted row has a job to be joined with"
UNIQUE = "an id or a reference is one row's; this has it looked up, not joined to the table"
REPLACED = "0005 puts another constraint in its place"
ONE_NAMED = "the call names one, and the condition before has selected it"
TOKEN = "a token is made for one claim and taken away with it, so it tells by itself which row"

EQUIVALENT: dict[str, dict[str, str]] = {
    "decisions/backoff.py": {
        "parse_retry_after: len(value) < 10 → len(value) <= 10": (
            "a number of ten digits is longer than the longest wait either way"
        ),
    },
    "decisions/outcomes.py": {
        "_decide_call: 200 <= answer.status → 200 < answer.status": "a 200 is told as a 200 anyway",
    },
    "store/follow_ups.py": {
        "CLAIM: job_id = any (array(select job_id from due)) → true": PLAN,
        "CLAIM: id = any (array(select render_job_id from due)) → true": PLAN,
        "CLAIM: f.id = any (array(select id from judged)) → true": PLAN,
        "MARK: f.id = any (%(ids)s::bigint[]) → true": PLAN,
        "MARK: for update of f → nothing": ORDER,
        "MARK: f.id = any (array(select id from locked)) → true": PLAN,
        "MARK: l.error is not null → true": "without an error the text of the reason is null",
    },
    "store/enqueue.py": {
        "FIND: limit 1 → nothing": UNIQUE,
        "FIND: limit 1 → nothing #2": UNIQUE,
        "FIND: own.id is null → true": "the row's own id is taken first",
    },
    "store/gen_jobs.py": {
        "CLAIM: next_poll_at >= (select next_poll_at from head) → true": PASSED_BY,
        "CLAIM: g.job_id = any (array(select job_id from admitted)) → true": PLAN,
        "CLAIM: g.job_id = a.job_id → true": (
            "the ids of `admitted` are all that the update takes from it, and the condition before"
            " has selected them"
        ),
        "LOOKED: for update → nothing": ORDER,
        "LOOKED: g.job_id = any (array(select job_id from locked)) → true": PLAN,
        "CLOSE_REGENERATIONS: for update → nothing": ORDER,
        "CANCEL_ASKED: for update → nothing": ORDER,
        "ARCHIVED: g.job_id = any (array(select job_id from locked)) → true": PLAN,
        "ARCHIVED: g.job_id = l.job_id → true": ONE_NAMED,
    },
    "store/migrations/0001_queue.sql": {
        "render_jobs: idempotency_key is null → false": REPLACED,
        "render_jobs: idempotency_key is null → true": REPLACED,
        "render_jobs: idempotency_key ~ '^[!-~]([ -~]{0,253}[!-~])?$' → false": REPLACED,
        "render_jobs: sume_refuse('idempotency_key cannot be sent as a header … without a space"
        " at either end.') → false": REPLACED,
    },
    "store/migrations/0005_history_costs_nothing.sql": {
        "render_jobs_keep_moves: n.generation <> o.generation → false": (
            "a new generation is pending, which no other branch knows, and the last says the same"
        ),
        "render_jobs_keep_moves: limit 1 → nothing": (
            "a row gets one generation in a statement; this has it looked up by the index"
        ),
    },
    "store/migrations/0006_whoever_writes.sql": {
        "render_jobs_forget_all_moves: limit 1 → nothing": "the first is enough, and found sooner",
    },
    "store/migrations/0003_history.sql": {
        "job_customer: r.status = 'submitted' → true": JOINED,
        "job_customer: r.status = 'submitted' → true #2": JOINED,
        "job_customer: r.status = 'submitted' → true #3": JOINED,
        "job_customer: r.status = 'submitted' → true #4": JOINED,
        "job_customer: r.status = 'submitted' → true #5": JOINED,
        "job_customer: r.status = 'submitted' → true #6": JOINED,
    },
    "store/pace.py": {
        "GUARD: limit 1 → nothing": (
            "the update takes the first of several rows as well, though nothing promises it"
        ),
    },
    "store/render_jobs.py": {
        "_IS_DUE: reaps >= 2 → true": "the first part of the union is there for the others",
        "_IS_DUE: limit 1 → nothing": FIRST_ROW,
        "CLAIM: (run_after, id) >= (heads.run_after, heads.id) → true": PASSED_BY,
        "CLAIM: limit share.size → nothing": (
            "the limit of all bands stops at the same row and locks no other; this one tells the"
            " planner how little of each band is wanted"
        ),
        "CLAIM: reaps >= 2 → true": (
            "asked only where `normal` is empty: of the others none can be had"
        ),
        "CLAIM: r.id = any (array(select id from admitted)) → true": PLAN,
        "RECORD_NEW: distinct on (a.job_id) → nothing": TWICE,
        "RECORD_NEW: l.id = a.row_id → true": "a key is one row's, by its unique index",
        "RECORD_NEW: r.id = any (%(ids)s::bigint[]) → true": PLAN,
        "RECORD: job_id = any (%(job_ids)s::text[]) → true": PLAN,
        "RECORD: distinct on (job_id) → nothing": TWICE,
        "RECORD: m.job_id = s.job_id → true": ONE_ANSWER,
        "RECORD: r.id = any (%(ids)s::bigint[]) → true": PLAN,
        "RECORD: r.id = any (%(ids)s::bigint[]) → true #2": PLAN,
        "RECORD: l.id = a.row_id → true #3": TOKEN,
        "RECORD: verdict = 'job_of_another_row' → true": (
            "with any other verdict the row has lost its token, or the same statement writes it as"
            " submitted, which a second write in one statement leaves as it is"
        ),
        "RECORD: counted_at is not null → true": (
            "what holds no place is compared with the day as null, and not given back"
        ),
        "RECORD: a.meaning = 'accepted' → true #2": ONE_ANSWER,
        "REAP: r.id = any (array(select id from stale)) → true": PLAN,
        "SEND_AGAIN: r.id = any (array(select id from locked)) → true": PLAN,
        "SEND_AGAIN: r.id = l.id → true": ONE_NAMED,
        "NEW_GENERATION: r.id = any (array(select id from locked)) → true": PLAN,
    },
    "store/retention.py": {
        "STRAY_JOBS: job_id = any (array(select job_id from stray)) → true": (
            "of those that are owed only the jobs of `stray` are asked for"
        ),
        "PURGE: updated_at < now() - make_interval(days => %(days)s) → true": (
            "only a commit between the begin of this statement and its lock tells, which no test"
            " can time"
        ),
    },
    "store/webhook_events.py": {
        "RECEIVE_UNDECIDED: for update → nothing": (
            "two deliveries of one event meet at its primary key as well"
        ),
        "_RESOLVE: e.job_id = any (array(select job_id from locked)) → true": PLAN,
    },
}
