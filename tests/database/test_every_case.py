"""Statements with many branches, tried in every combination of what their branches ask.

Each case is a row of its own, all of them go through one run of the statement, and what must become
of a case is told once more, as a rule in words of Python.
"""

from __future__ import annotations

import itertools
import json
import uuid
from dataclasses import dataclass
from typing import Any

from sume_jobs.decisions.pacing import Pace
from sume_jobs.store import gen_jobs, render_jobs
from sume_jobs.store.gen_jobs import Looked, Wish
from sume_jobs.store.render_jobs import Refused

from tests.database.sessions import MAX_ATTEMPTS
from tests.support.postgres import Database

STATUSES = ("queued", "processing", "completed", "failed", "canceled")
BEFORE = '{"code": "before"}'
NEW = '{"code": "new"}'
RESULT = '{"artifacts": []}'
LATER = '{"artifacts": [1]}'


def put_jobs(database: Database, jobs: list[dict[str, Any]]) -> None:
    """Insert jobs named job_0, job_1, …, with these columns."""
    names = ["job_id", "idempotency_key", *jobs[0]]
    with database.connection.cursor() as cursor:
        cursor.executemany(
            f"insert into gen_job ({', '.join(names)}) values ({', '.join(['%s'] * len(names))})",
            [(f"job_{n}", f"key-{n}", *columns.values()) for n, columns in enumerate(jobs)],
        )


# ------------------------------------------------------------------------- looks


@dataclass(frozen=True)
class Look:
    """A job as it stands, and what a look at it found."""

    status: str
    error: str | None
    result: str | None
    finding: str | None
    attention: str | None
    new_result: str | None
    new_error: str | None

    @property
    def mark(self) -> str | None:
        """The mark for people that the job has afterwards."""
        if self.status in ("failed", "canceled") or self.new_result:
            return None
        if self.status == "completed" and self.attention != "result_missing":
            return None
        return self.attention

    @property
    def next_look(self) -> str:
        """never, unchanged (the time stays), or later (after the delay)."""
        if self.status == "canceled" or self.result or self.new_result:
            return "never"
        given_up = self.finding == "found" or self.attention == "job_not_found"
        if self.status == "failed" and (self.error or given_up):
            return "never"
        # Its end has just been learned: another sweep may have it by now.
        if self.status == "completed" and self.finding != "no_result":
            return "unchanged"
        return "later"


def test_every_look(database: Database, store: Any) -> None:
    cases = [
        Look(*values)
        for values in itertools.product(
            STATUSES,
            (None, BEFORE),
            (None, RESULT),
            (None, "found", "missing", "no_result"),
            (None, "overdue", "job_not_found", "result_missing"),
            (None, LATER),
            (None, NEW),
        )
    ]
    put_jobs(
        database,
        [
            {
                "status": case.status,
                "error": case.error,
                "error_code": case.error and "before",
                "result": case.result,
                "attention": "overdue",
                "webhook_status": "pending",
                "missing_reads": 3,
                "result_reads": 3,
                "next_poll_at": "2001-01-01",
                "updated_at": "2001-01-01",
            }
            for case in cases
        ],
    )
    looks = [
        Looked(
            f"job_{number}",
            1000.0,
            case.finding,
            case.attention,
            "delivered" if number % 2 else None,
            case.new_result,
            case.new_error and "new",
            case.new_error,
        )
        for number, case in enumerate(cases)
    ]
    gen_jobs.record_looks(store, looks)
    wanted = [
        {
            "status": case.status,
            "attention": case.mark,
            "result": case.result or case.new_result,
            "error": case.error or (case.new_error if case.status == "failed" else None),
            "error_code": {BEFORE: "before", NEW: "new", None: None}[
                case.error or (case.new_error if case.status == "failed" else None)
            ],
            "webhook_status": "delivered" if number % 2 else "pending",
            "missing_reads": {"missing": 4, "found": 0}.get(case.finding or "", 3),
            "result_reads": 4 if case.finding == "no_result" else 3,
            "next_look": case.next_look,
            "is_news": bool(case.new_result) or case.attention != "overdue",
        }
        for number, case in enumerate(cases)
    ]
    found = database.query(
        """select status, attention, result::text, error::text, error_code, webhook_status,
                  missing_reads, result_reads,
                  case when next_poll_at is null then 'never'
                       when next_poll_at = '2001-01-01' then 'unchanged'
                       when next_poll_at - now() between '900 s' and '1000 s' then 'later'
                       end as next_look,
                  updated_at <> '2001-01-01' as is_news
             from gen_job order by substr(job_id, 5)::int"""
    )
    wrong = [
        (case, now) for case, now, then in zip(cases, found, wanted, strict=True) if now != then
    ]
    assert not wrong, (len(wrong), wrong[0])


# ------------------------------------------------------------------------- moves


def test_every_move(database: Database, store: Any) -> None:
    cases = list(
        itertools.product(
            ("queued", "processing"), STATUSES[1:], (None, NEW), (None, BEFORE), (None, "req_new")
        )
    )
    put_jobs(
        database,
        [
            {
                "status": was,
                "error": before,
                "request_id": "req_before",
                "attention": "overdue",
                "next_poll_at": "2999-01-01",
                "cancel_due_at": "2999-01-01",
                "updated_at": "2001-01-01",
            }
            for was, _, _, before, _ in cases
        ],
    )
    moved = gen_jobs.apply(
        store,
        [
            Wish(f"job_{number}", status, "code" if error else None, error, request)
            for number, (_, status, error, _, request) in enumerate(cases)
        ],
    )
    won = {each.job_id for each in moved if each.won}
    found = database.query(
        """select status, error::text, request_id, attention, regeneration_open,
                  case when next_poll_at = '2999-01-01' then 'unchanged'
                       when next_poll_at <= now() then 'now' else 'never' end as next_look,
                  cancel_due_at is not null as is_to_be_canceled,
                  updated_at > '2001-01-01' as is_news
             from gen_job order by substr(job_id, 5)::int"""
    )
    for number, ((was, status, error, before, request), now) in enumerate(
        zip(cases, found, strict=True)
    ):
        is_won = (was, status) != ("processing", "processing")
        assert (f"job_{number}" in won) is is_won
        goes_on = status == "processing"
        next_look = "unchanged" if goes_on else "never"
        if status == "completed" or (status == "failed" and not error):
            next_look = "now"
        assert now == {
            "status": status,
            "error": error or before if is_won else before,
            "request_id": request or "req_before" if is_won else "req_before",
            "attention": "overdue" if goes_on else None,
            "regeneration_open": status == "failed",
            "next_look": next_look,
            "is_to_be_canceled": goes_on,
            "is_news": is_won,
        }


# ------------------------------------------------------------------------- poll's claim


def test_every_job_that_is_due(database: Database, store: Any) -> None:
    cases = list(itertools.product(STATUSES, (None, BEFORE), (None, RESULT)))
    put_jobs(
        database,
        [
            {"status": status, "error": error, "result": result, "next_poll_at": "2001-01-01"}
            for status, error, result in cases
        ],
    )
    rate = Pace(rate=0.01, capacity=100.0)
    _, jobs = gen_jobs.claim_due(store, rate, 100, 50.0, 25.0)
    to_ask = {
        f"job_{number}"
        for number, (status, error, result) in enumerate(cases)
        if not (status == "canceled" or (status == "failed" and error) or result)
    }
    assert {each.job_id for each in jobs} == to_ask
    assert {job["job_id"] for job in database.jobs() if job["next_poll_at"]} == to_ask
    assert {job["polls"] for job in database.jobs()} == {1}
    spent = database.one(
        "select extract(epoch from spent_until - now())::float8 / 100 from pace_budget"
        " where name = 'reads'"
    )
    assert round(spent) == len(to_ask), "a token for each call, none for what is over"


# ------------------------------------------------------------------------- refusals


@dataclass(frozen=True)
class Refusal:
    """A claimed row as it stands, and what its request came to."""

    action: str
    unknown: bool
    was_unknown: bool
    is_unwanted: bool
    attempts: int
    give_back: bool
    error: str | None
    error_before: str | None

    @property
    def attempts_left_at(self) -> int:
        return self.attempts - self.give_back

    @property
    def status(self) -> str:
        if self.action == "fail":
            return "failed"
        if self.is_unwanted and not self.unknown and not self.was_unknown:
            return "canceled"
        return "failed" if self.attempts_left_at >= MAX_ATTEMPTS else "pending"

    @property
    def error_code(self) -> str | None:
        if self.action == "fail":
            return "bad"
        return "attempts_exhausted" if self.status == "failed" else None


def test_every_refusal(database: Database, store: Any) -> None:
    flags = (False, True)
    cases = [
        Refusal(*values)
        for values in itertools.product(
            ("requeue", "fail"), flags, flags, flags, (7, 8, 9), flags, (None, NEW), (None, BEFORE)
        )
    ]
    tokens = [str(uuid.uuid4()) for _ in cases]
    with database.connection.cursor() as cursor:
        cursor.executemany(
            """insert into render_jobs
                 (id, prompt, status, claim_token, claimed_at, attempts, sends, unknown_since,
                  cancel_requested_at, idempotency_key, request_body, error, request_id)
               values (%s, 'x', 'submitting', %s, '2002-01-01', %s, 5, %s, %s, %s, '{}', %s, %s)""",
            [
                (
                    number,
                    token,
                    case.attempts,
                    "2001-01-01" if case.was_unknown else None,
                    "2001-01-01" if case.is_unwanted else None,
                    f"key-{number}",
                    case.error_before,
                    case.error_before and "req_before",
                )
                for number, (case, token) in enumerate(zip(cases, tokens, strict=True))
            ],
        )
    answers = [
        Refused(
            number,
            token,
            f"key-{number}",
            case.action,
            delay=60.0,
            give_back_attempt=case.give_back,
            give_back_send=case.give_back,
            unknown=case.unknown,
            error_code="bad",
            error=json.loads(case.error) if case.error else None,
            request_id=case.error and "req_new",
        )
        for number, (case, token) in enumerate(zip(cases, tokens, strict=True))
    ]
    recorded = render_jobs.record(store, answers, MAX_ATTEMPTS, 5.0)
    fates = {each.row_id: each.fate for each in recorded}
    found = database.query(
        """select id, status, error_code, error::text, request_id, attempts, sends, claim_token,
                  date_part('year', unknown_since) as unknown_from,
                  run_after - updated_at = '60 s' as waits,
                  exists (select from follow_up f where f.job_id = r.idempotency_key
                             and f.kind = 'submission.failed' and f.render_job_id = r.id) as is_told
             from render_jobs r order by id"""
    )
    for case, now in zip(cases, found, strict=True):
        row_id = now.pop("id")
        assert fates[row_id] == ("requeued" if case.status == "pending" else case.status), case
        assert now == {
            "status": case.status,
            "error_code": case.error_code,
            "error": case.error or case.error_before,
            "request_id": (case.error and "req_new") or (case.error_before and "req_before"),
            "attempts": case.attempts_left_at,
            "sends": 5 - case.give_back,
            "claim_token": None,
            "unknown_from": 2001 if case.was_unknown else 2002 if case.unknown else None,
            "waits": True,
            "is_told": case.status == "failed",
        }, case
