"""The spend guard seen from outside: what a run does, tells and leaves to a person."""

from __future__ import annotations

import pytest

from local.fake_sume import Behaviour, FakeSume
from tests.support.bundle import Bundle, key_of
from tests.support.postgres import Database


def test_a_run_stops_at_the_limit_of_the_day(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(SUBMIT_DAILY_LIMIT=3)
    database.insert_many(5)
    assert bundle.D() == {
        "claimed": 3, "submitted": 3, "requeued": 0, "failed": 0, "stopped": 1,
    }  # fmt: skip
    assert fake.billed == 3
    assert database.statuses() == {"submitted": 3, "pending": 2}
    (told,) = [each for each in bundle.logs("WARNING") if each["message"] == "daily_limit_reached"]
    assert told["limit"] == 3
    assert 0 < told["seconds"] <= 86400
    assert bundle.metric("DailyLimitReached") == 1
    assert bundle.D()["stopped"] == 1
    assert fake.billed == 3
    bundle.set(SUBMIT_DAILY_LIMIT=4)
    assert bundle.D()["submitted"] == 1
    # Midnight.
    database.age("24 hours")
    bundle.D()
    assert database.statuses() == {"submitted": 5}


def test_a_limit_that_nothing_waits_for_stops_nothing(bundle: Bundle, database: Database) -> None:
    bundle.set(SUBMIT_DAILY_LIMIT=3)
    database.insert_many(3)
    assert bundle.D()["stopped"] == 0
    assert bundle.D() == {
        "claimed": 0, "submitted": 0, "requeued": 0, "failed": 0, "stopped": 0,
    }  # fmt: skip
    assert bundle.metric("DailyLimitReached") == 0


def test_refused_rows_leave_their_places_to_others(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(SUBMIT_DAILY_LIMIT=3)
    rows = database.insert_many(6)
    for row in rows[:2]:
        fake.on_submit(Behaviour(status=400, accept=False), key=key_of(row))
    for _ in range(3):
        bundle.D()
    assert fake.billed == 3
    assert database.statuses() == {"failed": 2, "submitted": 3, "pending": 1}


def test_a_lost_answer_is_asked_again_on_a_full_day(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(SUBMIT_DAILY_LIMIT=1)
    first, _ = database.insert_many(2)
    fake.on_submit(Behaviour(drop="after"))
    bundle.D()
    # Not the day with it, which may have less than that left.
    database.age("5 minutes", "render_jobs")
    bundle.D()
    assert database.row(first)["status"] == "submitted"
    assert [post.key for post in fake.posts()] == [key_of(first)] * 2
    assert (fake.billed, database.statuses()) == (1, {"submitted": 1, "pending": 1})


def theirs(fake: FakeSume, row: int) -> None:
    """Let Sume know the key of this row already."""
    job = {"job": {"id": f"job_theirs_{row}", "status": "queued"}, "idempotency_hit": True}
    fake.on_submit(Behaviour(status=202, json={"data": job}), key=key_of(row))


def test_one_collision_ends_its_row_and_no_other(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    first, *others = database.insert_many(4)
    theirs(fake, first)
    assert bundle.D()["stopped"] == 0
    assert database.row(first)["error_code"] == "idempotency_key_collision"
    assert {database.row(row)["status"] for row in others} == {"submitted"}
    database.execute("update render_jobs set generation = generation + 1 where id = %s", first)
    bundle.submit_later()
    assert database.row(first)["status"] == "submitted", "under its new key"


@pytest.mark.parametrize("limit", [1, 3])
def test_collisions_close_the_gate_until_a_person_opens_it(
    bundle: Bundle, database: Database, fake: FakeSume, limit: int
) -> None:
    bundle.set(ANOMALY_LIMIT=limit, SUBMIT_CONCURRENCY=1)
    rows = database.insert_many(limit + 3)
    for row in rows[:limit]:
        theirs(fake, row)
    assert bundle.D()["stopped"] == 1
    assert database.statuses() == {"failed": limit, "pending": 3}
    (told,) = [
        each for each in bundle.logs("ERROR") if each["message"] == "gate_closed_until_opened"
    ]
    assert told["reason"] == "idempotency_key_collision"
    assert told["row"] in rows
    assert told["job"].startswith("job_theirs_")
    assert bundle.metric("GateClosed") == 1
    assert bundle.metric("DuplicateJob") == limit
    for _ in range(3):
        bundle.submit_later("2 hours")
        bundle.R()
    assert len(fake.posts()) == limit, "neither time nor a probe opens it"
    assert bundle.metric("AnomalyStop") >= 1
    database.execute("update pace_gate set closed_until = now() where name = 'writes'")
    bundle.D()
    bundle.D()
    assert database.statuses() == {"failed": limit, "submitted": 3}


def test_the_rest_goes_on_while_the_gate_waits_for_a_person(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, job = bundle.job()
    database.execute(
        "insert into job_conflict (render_job_id, job_id, reason)"
        " values (1, 'job_second', 'second_job_for_row')"
    )
    # A run that was killed between the record and the closing: reap closes it.
    bundle.R()
    row = database.insert()
    assert bundle.D() == {
        "claimed": 0, "submitted": 0, "requeued": 0, "failed": 0, "stopped": 1,
    }  # fmt: skip
    bundle.W(fake.webhook_body(job, "completed"))
    assert bundle.poll_now()["polled"] == 1
    assert database.job(job)["status"] == "completed"
    assert database.row(row)["attempts"] == 0


def test_without_an_anomaly_limit_the_gate_stays_open(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(ANOMALY_LIMIT=0)
    rows = database.insert_many(6)
    for row in rows[:5]:
        theirs(fake, row)
    bundle.D()
    bundle.R()
    assert database.statuses() == {"failed": 5, "submitted": 1}
