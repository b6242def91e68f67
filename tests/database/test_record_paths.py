"""The short way of recording accepted jobs leaves just what the whole table of cases leaves."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from sume_jobs.store import render_jobs
from sume_jobs.store.render_jobs import Accepted, Recorded, Refused

from tests.database.sessions import MAX_ATTEMPTS, Session, claim
from tests.support.postgres import Database

TOKEN = "11111111-1111-1111-1111-111111111111"
OTHER_TOKEN = "22222222-2222-2222-2222-222222222222"
# status, sume_job_id, claim_token, attempts, sends, unknown_since, cancel_requested_at
ROWS = {
    "in flight": "'submitting', null, '{token}', 1, 1, null, null",
    "in flight again": "'submitting', null, '{token}', 8, 2, now() - interval '1 hour', null",
    "of another claim": "'submitting', null, '{other}', 2, 2, now(), null",
    "unwanted": "'submitting', null, '{token}', 1, 1, null, now() - interval '1 minute'",
    "reaped": "'pending', null, null, 1, 1, now() - interval '1 minute', null",
    "failed": "'failed', null, null, 8, 8, now() - interval '1 minute', null",
    "canceled": "'canceled', null, null, 1, 1, null, now() - interval '1 minute'",
    "this job's": "'submitted', 'job-{n}', null, 1, 1, null, null",
    "another job's": "'submitted', 'job-old-{n}', null, 1, 1, null, null",
    "gone": None,
}
# job_id, idempotency_key, render_job_id of what is known of the answer's job before it comes
JOBS = {
    "new": None,
    "known": "'job-{n}', 'key-{n}', {n}",
    "of another generation": "'job-{n}', 'key-{n}-2', {n}",
    "of another row": "'job-{n}', 'key-of-another-{n}', {n} + 1000",
    "of another row with this key": "'job-else-{n}', 'key-{n}', {n} + 1000",
}
KEYS = ["key-{n}", "key-{n}-2"]
ANSWERS = ["accepted", "accepted as another", "requeue", "fail", "collision"]

ADD_ROW = """
insert into render_jobs (id, prompt, idempotency_key, request_body, claimed_at, updated_at,
  error_code, error, status, sume_job_id, claim_token, attempts, sends, unknown_since,
  cancel_requested_at)
select {n}, 'a lighthouse', 'key-{n}', '{{}}', now() - interval '5 seconds',
       now() - interval '5 seconds', 'before', '{{"a": 1}}', """

LEFT = {
    "render_jobs": "select * from render_jobs order by id",
    "gen_job": "select * from gen_job order by job_id",
    "job_conflict": """
        select render_job_id, job_id, idempotency_key, reason, seen_at from job_conflict
         order by job_id, render_job_id, reason""",
    "follow_up": """
        select job_id, kind, render_job_id, created_at from follow_up order by job_id, kind""",
    "job_history": """
        select render_job_id, at, machine, job_id, by, from_status, to_status from job_history
         order by render_job_id, machine, to_status""",
}

Case = tuple[str, str, str, str]


class OnlyTheWhole:
    """A store that finds nothing new, so that the whole table of cases judges each answer."""

    def __init__(self, store: Session) -> None:
        self.store = store

    def run(self, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
        return [] if sql == render_jobs.RECORD_NEW else self.store.run(sql, parameters)


def set_up(session: Session, number: int, case: Case) -> None:
    row, job, _, _ = case
    names = {"n": number, "token": TOKEN, "other": OTHER_TOKEN}
    if columns := ROWS[row]:
        session.run(ADD_ROW.format(**names) + columns.format(**names))
    if known := JOBS[job]:
        session.run(
            "insert into gen_job (job_id, idempotency_key, render_job_id) values ("
            + known.format(**names)
            + ") on conflict do nothing"
        )


def answer(number: int, case: Case) -> Accepted | Refused:
    _, _, key, action = case
    key = key.format(n=number)
    if action.startswith("accepted"):
        job_id = f"job-{number}" if action == "accepted" else f"job-shared-{number % 25}"
        return Accepted(number, TOKEN, key, job_id, f"request-{number}")
    job = f"job-{number}" if action == "collision" else None
    return Refused(number, TOKEN, key, action, 5.0, error_code=f"code-{number}", job_id=job)


def outcome(store: Any, session: Session, answers: list[Accepted | Refused]) -> dict[str, Any]:
    """What recording gives and leaves; it is taken back."""
    session.run("savepoint before")
    recorded: list[Recorded] = render_jobs.record(store, answers, MAX_ATTEMPTS, 5.0)
    left: dict[str, Any] = {name: session.run(query) for name, query in LEFT.items()}
    session.run("rollback to before")
    left["recorded"] = sorted(recorded, key=lambda each: each.row_id)
    return left


@pytest.mark.parametrize("seed", range(4))
def test_both_ways_leave_the_same(
    database: Database, session: Callable[[], Session], seed: int
) -> None:
    cases = list(itertools.product(ROWS, JOBS, KEYS, ANSWERS))
    # Which of several rows gets the one job depends on their order.
    Random(seed).shuffle(cases)
    own = session()
    for number, case in enumerate(cases, start=1):
        set_up(own, number, case)
    answers = [answer(number, case) for number, case in enumerate(cases, start=1)]
    short, whole = outcome(own, own, answers), outcome(OnlyTheWhole(own), own, answers)
    fates = Counter(each.fate for each in whole["recorded"])
    assert fates.keys() == {
        "submitted", "already", "conflict", "requeued", "failed", "canceled", "lost"
    }  # fmt: skip
    for name, left in whole.items():
        assert short[name] == left, name


def test_what_is_new_takes_one_statement(database: Database, store: Any) -> None:
    database.insert_many(3)
    answers = [Accepted(c.row_id, c.token, c.key, f"job_{c.key}") for c in claim(store)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render_jobs, "RECORD", "select 1 / 0")
        recorded = render_jobs.record(store, answers, MAX_ATTEMPTS, 5.0)
    assert [(each.fate, each.reason) for each in recorded] == [("submitted", "known")] * 3
