"""Retention and the levels for metrics."""

from __future__ import annotations

from typing import Any

import pytest
from sume_jobs.store import levels, render_jobs, retention

from tests.database.sessions import (
    a_job,
    accept,
    claim,
    move,
    one_claim,
    put,
    refuse,
    submitted,
)
from tests.support.postgres import Database

KEY_LIFE = 86400


def purge(store: Any, days: int = 30, key_life: int = KEY_LIFE) -> int:
    return retention.purge(store, days, key_life, may_go_on=lambda: True)


def dispatched(database: Database) -> None:
    database.execute("update follow_up set dispatched_at = now()")


@pytest.mark.parametrize("status", ["completed", "failed", "canceled"])
def test_what_ended_long_ago_goes_with_all_that_hangs_on_it(
    database: Database, store: Any, status: str
) -> None:
    _, job = a_job(database, store)
    move(store, job, status)
    dispatched(database)
    database.age("32 days")
    fresh, _ = a_job(database, store)
    assert purge(store) == 1
    assert [row["id"] for row in database.rows()] == [fresh]
    assert [each["job_id"] for each in database.jobs()] != [job]
    assert database.follow_ups(job) == []
    assert purge(store) == 0


@pytest.mark.parametrize(
    "state",
    ["pending", "submitting", "queued", "processing", "not dispatched", "young key", "young end",
     "ended lately", "failed lately"],
)  # fmt: skip
def test_what_has_to_stay(database: Database, store: Any, state: str) -> None:
    row = database.insert()
    age = "32 days"
    if state == "submitting":
        one_claim(store)
    elif state == "failed lately":
        database.age("40 days")
        refuse(store, one_claim(store), "fail", error_code="bad")
        dispatched(database)
        age = "29 days"
    elif state != "pending":
        accept(store, one_claim(store), "job_1")
        if state in ("processing", "ended lately"):
            move(store, "job_1", "processing")
        if state == "ended lately":
            database.age("40 days")
            move(store, "job_1", "completed")
            dispatched(database)
            age = "29 days"
        elif state not in ("queued", "processing"):
            move(store, "job_1", "completed")
            if state != "not dispatched":
                dispatched(database)
            if state == "young key":
                age = "30 days 12 hours"
            elif state == "young end":
                age = "29 days"
    database.age(age)
    assert purge(store) == 0
    assert database.row(row)["id"] == row


def test_a_dead_follow_up_is_no_reason_to_stay(database: Database, store: Any) -> None:
    _, job = a_job(database, store)
    move(store, job, "completed")
    database.execute("update follow_up set dead_reason = 'no such queue'")
    database.age("32 days")
    assert purge(store) == 1


def test_failed_and_canceled_rows_without_a_job_go_too(database: Database, store: Any) -> None:
    failed = database.insert()
    refuse(store, one_claim(store), "fail", error_code="bad")
    canceled = database.insert()
    render_jobs.request_cancel(store, canceled)
    dispatched(database)
    database.age("32 days")
    assert purge(store) == 2
    assert not database.query("select from render_jobs where id in (%s, %s)", failed, canceled)


def test_the_walk_goes_past_old_rows_that_stay(
    database: Database, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 3)
    database.insert_many(7)  # old and pending, at the head
    for row in database.rows():
        put(database, row["id"], run_after=database.one("select now() + interval '1 year'"))
    for _, job in submitted(database, store, 8):
        move(store, job, "completed")
    dispatched(database)
    database.age("32 days")
    assert purge(store) == 8
    assert database.statuses() == {"pending": 7}


def test_it_stops_when_it_may_not_go_on(
    database: Database, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    for _, job in submitted(database, store, 6):
        move(store, job, "completed")
    dispatched(database)
    database.age("32 days")
    answers = iter([True, True, False])
    assert retention.purge(store, 30, KEY_LIFE, lambda: next(answers)) == 4
    assert retention.purge(store, 30, KEY_LIFE, lambda: False) == 0


def test_a_row_that_somebody_holds_is_left_for_later(
    database: Database, store: Any, session: Any
) -> None:
    pairs = submitted(database, store, 2)
    for _, job in pairs:
        move(store, job, "completed")
    dispatched(database)
    database.age("32 days")
    holder = session()
    holder.run("select from render_jobs where id = %s for update", (pairs[0][0],))
    assert purge(store) == 1
    holder.rollback()
    assert purge(store) == 1


def test_the_ends_of_all_generations_go_with_their_row(database: Database, store: Any) -> None:
    row = database.insert()
    for _ in range(2):
        refuse(store, one_claim(store), "fail", error_code="bad")
        database.execute("update render_jobs set generation = generation + 1")
        database.execute("update render_jobs set run_after = now()")
    accept(store, one_claim(store), "job_1")
    move(store, "job_1", "completed")
    assert database.one("select count(*) from follow_up where render_job_id = %s", row) == 3
    database.execute(
        "update follow_up set dispatched_at = now() where id > (select min(id) from follow_up)"
    )
    database.age("32 days")
    assert purge(store) == 0, "the first end is not handed on yet"
    dispatched(database)
    assert purge(store) == 1
    assert database.query("select from follow_up") == []


def strays(store: Any, days: int = 30) -> int:
    return retention.purge_strays(store, days, KEY_LIFE, may_go_on=lambda: True)


def deleted(database: Database, *rows: int) -> None:
    """Somebody deletes rows by plain SQL."""
    database.execute("delete from render_jobs where id = any(%s)", list(rows))


def test_what_is_left_of_deleted_rows_goes_in_its_time(database: Database, store: Any) -> None:
    (kept, _), (gone, job), (later, young), (owing, owed), (moving, running) = submitted(
        database, store, 5
    )
    failed = database.insert()
    refuse(store, one_claim(store), "fail", error_code="bad")
    for each in (job, owed):
        move(store, each, "completed")
    database.execute("update follow_up set dispatched_at = now() where job_id <> %s", owed)
    database.age("32 days")
    move(store, young, "completed")
    move(store, running, "processing")
    deleted(database, gone, failed, later, owing)
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        database.execute("delete from render_jobs where id = %s", moving)
    assert purge(store) == 0
    assert strays(store) == 2, "the job, and the end of the row that failed"
    assert {each["job_id"] for each in database.jobs()} == {
        f"job_render-job-{row}" for row in (kept, later, owing, moving)
    }
    assert not database.query("select from follow_up where render_job_id = any(%s)", [gone, failed])
    assert not database.query("select from job_history where render_job_id = %s", gone)
    assert [row["id"] for row in database.rows()] == [kept]
    dispatched(database)
    assert strays(store) == 1
    assert database.follow_ups(owed) == []
    assert strays(store) == 0


def test_strays_go_in_batches(
    database: Database, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    pairs = submitted(database, store, 7)
    for _, job in pairs:
        move(store, job, "completed")
    dispatched(database)
    database.age("32 days")
    deleted(database, *(row for row, _ in pairs[1:]))
    answers = iter([True, True, False, False])
    assert retention.purge_strays(store, 30, KEY_LIFE, lambda: next(answers)) == 3
    assert strays(store) == 3
    assert len(database.jobs()) == 1


def test_strays_that_somebody_holds_are_left_for_later(
    database: Database, store: Any, session: Any
) -> None:
    pairs = submitted(database, store, 2)
    failed = database.insert_many(2)
    for each in claim(store):
        refuse(store, each, "fail", error_code="bad")
    for _, job in pairs:
        move(store, job, "completed")
    dispatched(database)
    database.age("32 days")
    deleted(database, *(row for row, _ in pairs), *failed)
    holder = session()
    holder.run("select from gen_job where job_id = %s for update", (pairs[0][1],))
    holder.run("select from follow_up where render_job_id = %s for update", (failed[0],))
    # A purge that waited would be refused by this.
    store.run("set lock_timeout = '2s'")
    assert strays(store) == 2
    holder.rollback()
    assert strays(store) == 2


# ------------------------------------------------------------------------- levels


def test_levels_of_nothing(store: Any) -> None:
    now = levels.read(store)
    assert (now.pending, now.in_flight, now.needs_attention) == (0, 0, 0)
    assert (now.oldest_pending_seconds, now.oldest_in_flight_seconds) == (0.0, 0.0)


def test_levels(database: Database, store: Any) -> None:
    jobs = [job for _, job in submitted(database, store, 5)]
    move(store, jobs[0], "processing")
    move(store, jobs[1], "completed")
    move(store, jobs[2], "failed")
    move(store, jobs[3], "canceled")
    database.age("10 minutes")
    database.insert_many(3)
    database.age("1 minute")
    suspect, future, refused = (database.insert() for _ in range(3))
    put(database, suspect, reaps=2)
    put(database, future, run_after=database.one("select now() + interval '1 hour'"))
    put(database, refused, priority=0)
    (first, *_) = claim(store, 1)
    assert first.row_id == refused
    refuse(store, first, "fail", error_code="bad")
    now = levels.read(store)
    assert now.pending == 4
    assert now.oldest_pending_seconds == pytest.approx(60, abs=10)
    assert now.in_flight == 2
    assert now.oldest_in_flight_seconds == pytest.approx(660, abs=10)
    assert now.needs_attention == 2, "the failed row and the failed job"
    database.execute("update gen_job set attention = 'overdue' where status = 'processing'")
    assert levels.read(store).needs_attention == 3
    database.age("2 days")
    assert levels.read(store).needs_attention == 0
