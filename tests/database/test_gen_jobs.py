"""The guarded update, poll's leases and looks, and wishes to cancel."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sume_jobs.decisions.pacing import pace
from sume_jobs.decisions.status import ORDER, TERMINAL, may_move
from sume_jobs.store import gen_jobs, render_jobs
from sume_jobs.store.gen_jobs import Due, Looked, Wish

from tests.database.sessions import (
    WIDE,
    Session,
    a_job,
    in_background,
    move,
    submitted,
    wait_for_lock,
)
from tests.support.postgres import Database

Make = Callable[[], Any]
ERROR = '{"code": "c"}'


def bring_to(store: Any, job_id: str, status: str) -> None:
    if status != "queued":
        assert move(store, job_id, status)


@pytest.mark.parametrize(("current", "new"), list(itertools.product(ORDER, ORDER)))
def test_the_guard_is_the_pure_order(
    database: Database, store: Any, current: str, new: str
) -> None:
    _, job = a_job(database, store)
    bring_to(store, job, current)
    allowed = may_move(current, new)  # type: ignore[arg-type]
    (moved,) = gen_jobs.apply(store, [Wish(job, new, "late", ERROR)])
    stored = database.job(job)
    assert moved.won is allowed
    assert stored["status"] == (new if allowed else current)
    assert moved.contradicts == (current in TERMINAL and new in TERMINAL and new != current)
    end = stored["status"]
    kinds = [row["kind"] for row in database.follow_ups(job)]
    assert kinds == ([f"job.{end}"] if end in TERMINAL else [])
    assert (stored["error_code"] == "late") is allowed
    assert stored["regeneration_open"] is (end == "failed")


@pytest.mark.parametrize(
    ("status", "error", "polled"),
    [
        ("completed", None, True),  # for its result
        ("failed", None, True),  # for its error
        ("failed", ERROR, False),
        ("canceled", None, False),
        ("processing", None, True),
    ],
)
def test_what_is_left_to_ask_after_a_move(
    database: Database, store: Any, status: str, error: str | None, polled: bool
) -> None:
    row, job = a_job(database, store)
    render_jobs.request_cancel(store, row)
    gen_jobs.apply(store, [Wish(job, status, None, error)])
    stored = database.job(job)
    assert (stored["next_poll_at"] is not None) is polled
    assert (stored["cancel_due_at"] is not None) is (status == "processing")


def test_a_job_that_nobody_knows(database: Database, store: Any) -> None:
    (moved,) = gen_jobs.apply(store, [Wish("job_of_others", "completed")])
    assert (moved.won, moved.contradicts) == (False, False)
    assert database.follow_ups("job_of_others") == []
    assert gen_jobs.apply(store, []) == []


def test_many_jobs_in_one_statement(database: Database, store: Any) -> None:
    jobs = [job for _, job in submitted(database, store, 4)]
    words = ["completed", "failed", "processing", "canceled"]
    moved = gen_jobs.apply(
        store, [Wish(job, word) for job, word in zip(jobs, words, strict=True)][::-1]
    )
    assert all(each.won for each in moved)
    assert [database.job(job)["status"] for job in jobs] == words
    assert database.one("select count(*) from follow_up") == 3


@pytest.mark.parametrize("late", ["completed", "failed", "canceled", "processing", "queued"])
def test_the_guard_is_tested_on_the_locked_row(
    database: Database, store: Any, session: Callable[[], Session], late: str
) -> None:
    """The second began before the first had committed: it sees the row as it is then."""
    _, job = a_job(database, store)
    one, two = session(), session()
    assert move(one, job, "completed")
    with in_background(database) as start:
        second = start(move, two, job, late)
        wait_for_lock(database)
        one.commit()
        assert second.result(10) is False
    two.commit()
    assert database.job(job)["status"] == "completed"
    assert [row["kind"] for row in database.follow_ups(job)] == ["job.completed"]


def test_ten_ends_at_once_one_wins(database: Database, make_store: Make) -> None:
    _, job = a_job(database, make_store())
    barrier = threading.Barrier(10)

    def end(store: Any, word: str) -> bool:
        store.run("select 1")
        barrier.wait(10)
        return move(store, job, word)

    words = itertools.islice(itertools.cycle(sorted(TERMINAL)), 10)
    with in_background(database) as start:
        won = [each.result(20) for each in [start(end, make_store(), word) for word in words]]
    assert won.count(True) == 1
    assert len(database.follow_ups(job)) == 1


def test_batches_in_opposite_orders_do_not_deadlock(database: Database, make_store: Make) -> None:
    jobs = [job for _, job in submitted(database, make_store(), 60)]
    barrier = threading.Barrier(2)

    def end(store: Any, order: list[str]) -> int:
        store.run("select 1")
        barrier.wait(10)
        return sum(
            each.won for each in gen_jobs.apply(store, [Wish(j, "completed") for j in order])
        )

    with in_background(database) as start:
        one, two = start(end, make_store(), jobs), start(end, make_store(), jobs[::-1])
        assert {one.result(20), two.result(20)} == {60, 0}
    assert database.one("select count(*) from follow_up") == 60


def test_a_move_that_is_undone_leaves_no_follow_up(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    _, job = a_job(database, store)
    one = session()
    assert move(one, job, "completed")
    one.rollback()
    assert database.job(job)["status"] == "queued"
    assert database.follow_ups(job) == []


# ------------------------------------------------------------------------- poll


def make_due(database: Database, seconds: float = 1.0) -> None:
    database.execute(
        "update gen_job set next_poll_at = now() - make_interval(secs => %s)"
        " where next_poll_at is not null",
        seconds,
    )


def claim_due(store: Any, wanted: int = 100, lease: float = 50.0, rate: Any = WIDE) -> list[Due]:
    return gen_jobs.claim_due(store, rate, wanted, lease, 25.0)[1]


def test_only_due_jobs_oldest_first_and_leased(database: Database, store: Any) -> None:
    jobs = [job for _, job in submitted(database, store, 3)]
    assert claim_due(store) == []
    for job, age in zip(jobs, (10, 30, 20), strict=True):
        database.execute(
            "update gen_job set next_poll_at = now() - make_interval(secs => %s) where job_id = %s",
            age,
            job,
        )
    assert {each.job_id for each in claim_due(store, 2)} == {jobs[1], jobs[2]}
    assert [each.job_id for each in claim_due(store)] == [jobs[0]]
    assert claim_due(store) == []
    database.age("51 seconds", "gen_job")
    assert len(claim_due(store)) == 3
    assert {each["polls"] for each in database.jobs()} == {2}


def test_two_sweeps_at_once_never_read_one_job_twice(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    submitted(database, store, 10)
    make_due(database)
    one, two = session(), session()
    first = claim_due(one, 4)
    with in_background(database) as start:
        second = start(claim_due, two, 10)
        wait_for_lock(database)
        one.commit()
        rest = second.result(10)
    two.commit()
    ids = [each.job_id for each in first + rest]
    assert len(ids) == len(set(ids)) == 10


def test_reads_are_within_their_budget(database: Database, store: Any) -> None:
    submitted(database, store, 10)
    make_due(database)
    rate = pace(300)  # a bucket of three
    assert len(claim_due(store, rate=rate)) == 3
    assert claim_due(store, rate=rate) == []


def test_over_is_over(database: Database, store: Any) -> None:
    """A job that has all it needs, but is due, is taken off the list and not read."""
    jobs = [job for _, job in submitted(database, store, 3)]
    for job, status in zip(jobs, ("canceled", "failed", "completed"), strict=True):
        gen_jobs.apply(store, [Wish(job, status, None, ERROR)])
    database.execute("update gen_job set result = '{}' where status = 'completed'")
    database.execute("update gen_job set next_poll_at = now() - interval '1 s'")
    spent = "select spent_until::text from pace_budget where name = 'reads'"
    before = database.one(spent)
    assert claim_due(store) == []
    assert {each["next_poll_at"] for each in database.jobs()} == {None}
    assert database.one(spent) == before, "and costs no token"


def look(store: Any, job_id: str, delay: float = 60.0, **facts: Any) -> None:
    gen_jobs.record_looks(store, [Looked(job_id, delay, **facts)])


def next_poll(database: Database, job_id: str) -> float | None:
    value = database.one(
        "select extract(epoch from next_poll_at - now())::float8 from gen_job where job_id = %s",
        job_id,
    )
    return None if value is None else float(value)


@pytest.mark.parametrize(
    ("status", "finding", "attention"),
    [
        ("completed", "found", None),
        ("completed", "missing", "job_not_found"),
        ("completed", None, "overdue"),
        ("failed", "found", "overdue"),
        ("failed", None, "job_not_found"),
        ("canceled", "missing", "job_not_found"),
        ("canceled", None, None),
    ],
)
def test_a_look_does_not_undo_the_end_that_a_webhook_brought(
    database: Database, store: Any, status: str, finding: str | None, attention: str | None
) -> None:
    """The job was read while it was queued, and ended before that was recorded."""
    _, job = a_job(database, store)
    make_due(database)
    claim_due(store)
    gen_jobs.apply(store, [Wish(job, status, "c", ERROR)])
    look(store, job, 900.0, finding=finding, attention=attention, error_code="x", error='{"x": 1}')
    stored = database.job(job)
    assert (stored["status"], stored["error_code"]) == (status, "c")
    assert stored["error"] == {"code": "c"}
    assert stored["attention"] is None, "it ended: nobody need look"
    wait = next_poll(database, job)
    if status != "completed":
        assert wait is None, "nothing is left to ask"
    elif finding == "found":
        assert wait is not None
        assert wait <= 0, "its result is due at once"


def test_a_look_of_an_old_lease_only_counts_what_it_found(database: Database, store: Any) -> None:
    _, job = a_job(database, store)
    look(store, job, 60.0, finding="missing")
    look(store, job, 60.0, finding="missing", attention="job_not_found")
    stored = database.job(job)
    assert (stored["missing_reads"], stored["attention"]) == (2, "job_not_found")
    look(store, job, 60.0, webhook_status="retrying", attention="job_not_found")
    assert database.job(job)["missing_reads"] == 2, "a read that said nothing"
    look(store, job, 60.0, finding="found")
    stored = database.job(job)
    assert (stored["missing_reads"], stored["attention"]) == (0, None)
    assert stored["webhook_status"] == "retrying"
    assert next_poll(database, job) == pytest.approx(60.0, abs=5)


def test_a_result_is_kept_once(database: Database, store: Any) -> None:
    _, job = a_job(database, store)
    move(store, job, "completed")
    for count in (1, 2):
        look(store, job, finding="no_result", attention="result_missing" if count > 1 else None)
        assert database.job(job)["result_reads"] == count
    assert database.job(job)["attention"] == "result_missing"
    look(store, job, result='{"artifacts": [{"url": "u", "n": 1.10}]}')
    stored = database.job(job)
    assert stored["result"] == {"artifacts": [{"url": "u", "n": 1.10}]}
    assert (stored["attention"], stored["next_poll_at"]) == (None, None)
    look(store, job, result='{"artifacts": []}')
    assert database.job(job)["result"] == stored["result"], "the first one stays"


def test_a_failed_job_is_asked_for_its_error_once(database: Database, store: Any) -> None:
    _, job = a_job(database, store)
    move(store, job, "failed")
    look(store, job, finding="found", error_code="policy", error='{"code": "policy"}')
    stored = database.job(job)
    assert (stored["error_code"], stored["error"]) == ("policy", {"code": "policy"})
    assert stored["next_poll_at"] is None


def test_look_soon(database: Database, store: Any) -> None:
    _, job = a_job(database, store)
    assert (next_poll(database, job) or 0) > 0
    assert gen_jobs.look_soon(store, job)
    assert (next_poll(database, job) or 0) <= 0
    move(store, job, "canceled")
    assert not gen_jobs.look_soon(store, job), "nothing is left to ask"
    assert not gen_jobs.look_soon(store, "job_of_others")
    assert next_poll(database, job) is None


def test_no_looks_no_statement() -> None:
    gen_jobs.record_looks(None, [])  # type: ignore[arg-type]


# ------------------------------------------------------------------------- cancel


def test_a_wish_is_leased_asked_again_and_ended(database: Database, store: Any) -> None:
    row, job = a_job(database, store)
    render_jobs.request_cancel(store, row)
    assert gen_jobs.claim_cancels(store, 5, 30.0) == [job]
    assert gen_jobs.claim_cancels(store, 5, 30.0) == []
    database.age("31 seconds", "gen_job")
    assert gen_jobs.claim_cancels(store, 5, 30.0) == [job], "who asked died"
    gen_jobs.cancel_asked(store, job, 30.0)
    assert gen_jobs.claim_cancels(store, 5, 30.0) == []
    assert (next_poll(database, job) or 0) <= 0, "its state is looked at soon"
    gen_jobs.cancel_asked(store, job, None)
    database.age("1 hour", "gen_job")
    assert gen_jobs.claim_cancels(store, 5, 30.0) == []


def test_a_wish_for_a_job_that_ended_is_dropped(database: Database, store: Any) -> None:
    row, job = a_job(database, store)
    render_jobs.request_cancel(store, row)
    move(store, job, "completed")
    database.execute("update gen_job set cancel_due_at = now()")  # as if the end came in between
    assert gen_jobs.claim_cancels(store, 5, 30.0) == []
    assert database.job(job)["cancel_due_at"] is None
    gen_jobs.cancel_asked(store, job, 30.0)
    assert database.job(job)["cancel_due_at"] is None, "an end is not asked again"


def test_two_sweeps_at_once_never_ask_twice(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    for row, _ in submitted(database, store, 4):
        render_jobs.request_cancel(store, row)
    one, two = session(), session()
    first = gen_jobs.claim_cancels(one, 2, 30.0)
    second = gen_jobs.claim_cancels(two, 9, 30.0)
    one.commit()
    two.commit()
    assert len(first) == 2
    assert len({*first, *second}) == 4
