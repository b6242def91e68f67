"""Follow-ups and retention, in every combination of what their statements ask.

As in `test_every_case.py`: each case is a row of its own, and the rule is told in words of Python.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from sume_jobs.store import follow_ups, retention
from sume_jobs.store.follow_ups import Mark

from tests.database.sessions import Rows, Session, insert_past_triggers
from tests.support.postgres import Database

MAX_ATTEMPTS = 20
FLAGS = (False, True)


# ------------------------------------------------------------------------- a lease


@dataclass(frozen=True)
class Waiting:
    """A follow-up, and what it tells of."""

    is_submission: bool
    # Of the job, or of the row.
    is_there: bool
    row_failed: bool
    has_its_key: bool
    attempts: int
    state: str  # waiting, later, dispatched or dead

    @property
    def has_row(self) -> bool:
        """A job's follow-up goes out also where its row is gone."""
        return self.is_there if self.is_submission else self.row_failed

    @property
    def dead_reason(self) -> str | None:
        if not self.is_there:
            return "row_is_gone" if self.is_submission else "job_is_gone"
        return "attempts_exhausted: worker_ended" if self.attempts >= MAX_ATTEMPTS else None


def put_waiting(database: Database, cases: list[Waiting]) -> None:
    tables: Rows = {"render_jobs": [], "gen_job": [], "follow_up": []}
    for number, case in enumerate(cases, 1):
        if case.has_row:
            tables["render_jobs"].append(
                {
                    "id": number,
                    "prompt": "x",
                    "status": "failed" if case.row_failed else "pending",
                    "idempotency_key": f"{'key' if case.has_its_key else 'other'}-{number}",
                    "reference": f"ref-{number}",
                    "error_code": f"row-{number}",
                }
            )
        if case.is_there and not case.is_submission:
            tables["gen_job"].append(
                {
                    "job_id": f"job-{number}",
                    "idempotency_key": f"job-key-{number}",
                    "render_job_id": number,
                    "status": "canceled",
                    "error_code": f"job-{number}",
                }
            )
        tables["follow_up"].append(
            {
                "id": number,
                "job_id": f"{'key' if case.is_submission else 'job'}-{number}",
                "kind": "submission.failed" if case.is_submission else "job.canceled",
                "render_job_id": number,
                "attempts": case.attempts,
                "run_after": "2999-01-01" if case.state == "later" else "2001-01-01",
                "dispatched_at": "2001-01-01" if case.state == "dispatched" else None,
                "dead_reason": "before" if case.state == "dead" else None,
            }
        )
    insert_past_triggers(database, tables)


def test_every_follow_up_that_may_be_due(
    database: Database, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_ups, "BATCH", 1000)
    states = ("waiting", "later", "dispatched", "dead")
    cases = [
        Waiting(*values)
        for values in itertools.product(FLAGS, FLAGS, FLAGS, FLAGS, (19, 20, 21), states)
    ]
    put_waiting(database, cases)
    waiting = sum(case.state in ("waiting", "later") for case in cases)
    assert follow_ups.backlog(store) == waiting
    claimed = follow_ups.claim(store, 60.0, MAX_ATTEMPTS)
    leased = {each.id: each for each in claimed.follow_ups}
    dead = {number: (kind, reason) for number, kind, reason in claimed.dead}
    assert len(leased) + len(dead) == len(claimed.follow_ups) + len(claimed.dead)
    rows = {row["id"]: row for row in database.query("select * from follow_up")}
    for number, case in enumerate(cases, 1):
        row = rows[number]
        kind = "submission.failed" if case.is_submission else "job.canceled"
        if case.state != "waiting":
            assert number not in leased.keys() | dead.keys(), case
            assert (row["attempts"], row["lease_token"]) == (case.attempts, None), case
        elif case.dead_reason:
            assert dead[number] == (kind, case.dead_reason), case
            assert row["dead_reason"] == case.dead_reason, case
            assert (row["attempts"], row["lease_token"]) == (case.attempts, None), case
            assert row["run_after"].year == 2001, case
        else:
            found = leased[number]
            assert (found.token, found.attempts) == (str(row["lease_token"]), case.attempts + 1)
            assert (row["attempts"], row["dead_reason"]) == (case.attempts + 1, None), case
            assert row["run_after"].year not in (2001, 2999), case
            reference = f"ref-{number}" if case.has_row else None
            assert (found.kind, found.reference) == (kind, reference), case
            key = f"key-{number}" if case.is_submission else f"job-key-{number}"
            assert found.idempotency_key == key, case
            assert found.status == ("failed" if case.is_submission else "canceled"), case
            code: str | None = f"job-{number}"
            if case.is_submission:
                is_that_failure = case.row_failed and case.has_its_key
                code = f"row-{number}" if is_that_failure else None
            assert found.error_code == code, case


def test_a_batch_and_that_of_another_worker(
    database: Database, store: Any, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_waiting(database, [Waiting(True, True, True, True, 0, "waiting")] * 5)
    monkeypatch.setattr(follow_ups, "BATCH", 2)
    one: Session = session()
    first = {each.id for each in follow_ups.claim(one, 60.0, MAX_ATTEMPTS).follow_ups}
    second = {each.id for each in follow_ups.claim(store, 60.0, MAX_ATTEMPTS).follow_ups}
    assert (len(first), len(second), first & second) == (2, 2, set())


# ------------------------------------------------------------------------- marks


@dataclass(frozen=True)
class Marking:
    """A leased follow-up, and what is told of it."""

    error: str | None
    error_before: str | None
    give_back: bool
    attempts: int
    was_dispatched: bool
    has_token: bool

    @property
    def left_at(self) -> int:
        return self.attempts - self.give_back

    @property
    def is_dead(self) -> bool:
        return self.error is not None and self.left_at >= MAX_ATTEMPTS


def test_every_mark(database: Database, store: Any) -> None:
    cases = [
        Marking(*values)
        for values in itertools.product(
            (None, "sqs refused"), (None, "before"), FLAGS, (19, 20, 21), FLAGS, FLAGS
        )
    ]
    tokens = {number: str(uuid.uuid4()) for number in range(1, len(cases) + 1)}
    insert_past_triggers(
        database,
        {
            "follow_up": [
                {
                    "id": number,
                    "job_id": f"job-{number}",
                    "kind": "job.completed",
                    "attempts": case.attempts,
                    "run_after": "2001-01-01",
                    "lease_token": tokens[number if case.has_token else 1 + number % len(cases)],
                    "last_error": case.error_before,
                    "dispatched_at": "2001-01-01" if case.was_dispatched else None,
                }
                for number, case in enumerate(cases, 1)
            ]
        },
    )
    before = {row["id"]: row for row in database.query("select * from follow_up")}
    marked = follow_ups.mark(
        store,
        [
            Mark(number, tokens[number], ("sqs", "bus"), case.error, 1000.0, case.give_back)
            for number, case in enumerate(cases, 1)
        ],
        MAX_ATTEMPTS,
    )
    dead = {number for number, _, _ in marked.dead}
    rows = database.query(
        "select f.*, run_after - now() between '900 s' and '1000 s' as is_put_off from follow_up f"
    )
    for row in rows:
        number, is_put_off = row["id"], row.pop("is_put_off")
        case = cases[number - 1]
        if not case.has_token:
            assert row == before[number], case
            assert number not in marked.dispatched | marked.waiting | dead, case
            continue
        is_sent = case.error is None or case.was_dispatched
        assert (row["dispatched_at"] is not None) == is_sent, case
        assert (number in marked.dispatched) == is_sent, case
        assert (number in dead) == case.is_dead, case
        assert (number in marked.waiting) == (not is_sent and not case.is_dead), case
        if case.was_dispatched:
            assert row["dispatched_at"].year == 2001, "the first time stands"
        assert (row["sent_to"], row["attempts"]) == (["sqs", "bus"], case.left_at), case
        assert row["last_error"] == (case.error or case.error_before), case
        reason = f"attempts_exhausted: {case.error}" if case.is_dead else None
        assert row["dead_reason"] == reason, case
        assert is_put_off == (case.error is not None), case
        assert (row["lease_token"] is None) == (case.error is not None), case


def test_two_marks_in_one_statement(database: Database, store: Any) -> None:
    put_waiting(database, [Waiting(True, True, True, True, 0, "waiting")] * 2)
    one, two = follow_ups.claim(store, 60.0, MAX_ATTEMPTS).follow_ups
    marked = follow_ups.mark(
        store, [Mark(one.id, one.token, ("sqs",)), Mark(two.id, two.token, (), "no", 5.0)], 20
    )
    assert (marked.dispatched, marked.waiting) == ({one.id}, {two.id})


# ------------------------------------------------------------------------- retention


@dataclass(frozen=True)
class Old:
    """A row that may have ended long ago; ages are in days."""

    status: str
    created: float
    updated: float
    job: tuple[str, float] | None  # its status and the age of its last change
    follow_up: tuple[str, str] | None  # under the job or the key; open, sent or dead

    @property
    def may_go(self) -> bool:
        """With 30 days of retention, and a key that lives for one day."""
        has_ended = self.status in ("submitted", "failed", "canceled")
        job_may_go = self.job is None or (self.job[0] == "completed" and self.job[1] > 30)
        is_owed = self.follow_up is not None and self.follow_up[1] == "open"
        return has_ended and self.created > 31 and self.updated > 30 and job_may_go and not is_owed


def put_old(database: Database, cases: list[Old]) -> None:
    now: datetime = database.one("select now()")
    tables: Rows = {"render_jobs": [], "gen_job": [], "follow_up": []}
    for number, case in enumerate(cases, 1):
        tables["render_jobs"].append(
            {
                "id": number,
                "prompt": "x",
                "status": case.status,
                "sume_job_id": f"job-{number}" if case.status == "submitted" else None,
                "idempotency_key": f"key-{number}",
                "created_at": now - timedelta(case.created),
                "updated_at": now - timedelta(case.updated),
            }
        )
        if case.job:
            tables["gen_job"].append(
                {
                    "job_id": f"job-{number}",
                    "idempotency_key": f"key-{number}",
                    "render_job_id": number,
                    "status": case.job[0],
                    "updated_at": now - timedelta(case.job[1]),
                }
            )
        if case.follow_up:
            under, state = case.follow_up
            tables["follow_up"].append(
                {
                    "job_id": f"{under}-{number}",
                    "kind": "job.completed" if under == "job" else "submission.failed",
                    "dispatched_at": "2001-01-01" if state == "sent" else None,
                    "dead_reason": "why" if state == "dead" else None,
                }
            )
    insert_past_triggers(database, tables)


def test_every_row_that_may_be_old(database: Database, store: Any) -> None:
    cases = [
        Old(*values)
        for values in itertools.product(
            ("pending", "submitting", "submitted", "failed", "canceled"),
            (40.0, 30.5),
            (40.0, 29.0),
            (None, *itertools.product(("queued", "processing", "completed"), (40.0, 29.0))),
            (None, *itertools.product(("job", "key"), ("open", "sent", "dead"))),
        )
        # A follow-up under a job needs the job.
        if not (values[3] is None and values[4] is not None and values[4][0] == "job")
    ]
    put_old(database, cases)
    gone = {number for number, case in enumerate(cases, 1) if case.may_go}
    stay = set(range(1, len(cases) + 1)) - gone
    assert retention.count(store, 30, 86400) == len(gone)
    assert retention.purge(store, 30, 86400, lambda: True) == len(gone)
    assert {row["id"] for row in database.rows()} == stay
    assert {job["job_id"] for job in database.jobs()} == {
        f"job-{number}" for number in stay if cases[number - 1].job
    }
    assert {row["job_id"] for row in database.query("select job_id from follow_up")} == {
        f"{under[0]}-{number}" for number in stay if (under := cases[number - 1].follow_up)
    }


def test_a_long_backlog_is_estimated_and_a_short_one_counted(
    database: Database, store: Any
) -> None:
    database.execute(
        "insert into follow_up (job_id, kind) select n, 'job.completed'"
        " from generate_series(1, 20000) n"
    )
    database.execute("analyze follow_up")
    assert follow_ups.backlog(store) == pytest.approx(20_000, rel=0.1)
    database.execute("update follow_up set dispatched_at = now() where mod(job_id::int, 10000) > 0")
    assert follow_ups.backlog(store) == 2, "whatever the statistics say"


class Counting:
    """A store that counts its statements."""

    def __init__(self, store: Any) -> None:
        self.store, self.count = store, 0

    def run(self, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
        self.count += 1
        rows: list[dict[str, Any]] = self.store.run(sql, parameters)
        return rows


@pytest.mark.parametrize("walk", ["purge", "count"])
def test_a_walk_ends_at_the_first_batch_with_nothing_old(
    database: Database, store: Any, monkeypatch: pytest.MonkeyPatch, walk: str
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    young = Old("submitted", 1.0, 1.0, None, None)
    put_old(database, [Old("pending", 40.0, 40.0, None, None), *[young] * 9])
    counting: Any = Counting(store)
    if walk == "purge":
        retention.purge(counting, 30, 86400, lambda: True)
    else:
        retention.count(counting, 30, 86400)
    assert counting.count < 5


def test_everything_that_a_deleted_row_may_leave(database: Database, store: Any) -> None:
    """Jobs and failures without a row; ages are in days, with 30 days and a key's life of one."""
    now: datetime = database.one("select now()")
    states = ("open", "sent", "sent lately", "dead")
    jobs = list(
        itertools.product(
            ("queued", "processing", "completed", "failed", "canceled"),
            (40.0, 30.5, 29.0), (40.0, 29.0), FLAGS, (None, *states),
        )
    )  # fmt: skip
    failures = list(itertools.product((40.0, 30.5, 29.0), FLAGS, states))
    tables: Rows = {"render_jobs": [], "gen_job": [], "follow_up": [], "job_history": []}

    def follow_up(number: int, kind: str, state: str, created: float) -> dict[str, Any]:
        sent = {"sent": now - timedelta(40), "sent lately": now - timedelta(1)}
        return {
            "job_id": f"job-{number}",
            "kind": kind,
            "render_job_id": number,
            "created_at": now - timedelta(created),
            "dispatched_at": sent.get(state),
            "dead_reason": "why" if state == "dead" else None,
        }

    stays = set()
    for number, (status, created, updated, has_row, state) in enumerate(jobs, 1):
        has_ended = status in ("completed", "failed", "canceled")
        if has_row or not has_ended or created < 31 or updated < 30 or state == "open":
            stays.add(number)
        tables["gen_job"].append(
            {
                "job_id": f"job-{number}",
                "idempotency_key": f"key-{number}",
                "render_job_id": number,
                "status": status,
                "created_at": now - timedelta(created),
                "updated_at": now - timedelta(updated),
            }
        )
        moved = {"render_job_id": number, "machine": "x", "by": "x", "from_status": "x"}
        tables["job_history"].append({**moved, "to_status": "y"})
        if state:
            tables["follow_up"].append(follow_up(number, "job.completed", state, created))
    for number, (created, has_row, state) in enumerate(failures, len(jobs) + 1):
        if has_row or created < 31 or state in ("open", "sent lately"):
            stays.add(number)
        tables["follow_up"].append(follow_up(number, "submission.failed", state, created))
    has_rows = [case[3] for case in jobs] + [case[1] for case in failures]
    tables["render_jobs"] = [
        {"id": number, "prompt": "x"} for number, has in enumerate(has_rows, 1) if has
    ]
    insert_past_triggers(database, tables)
    retention.purge_strays(store, 30, 86400, lambda: True)
    left = {int(job["job_id"][4:]) for job in database.jobs()}
    assert left == {number for number in stays if number <= len(jobs)}
    moves = {row["render_job_id"] for row in database.query("select * from job_history")}
    assert moves == left
    told = {row["render_job_id"] for row in database.query("select * from follow_up")}
    assert told == {row["render_job_id"] for row in tables["follow_up"]} & stays
