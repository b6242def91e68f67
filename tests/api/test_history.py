"""Every move of both machines is kept: who, when, from, to; and goes with its row."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.bundle import Bundle, event_body

Move = tuple[str, str, str, str]


def history(database: Any, row: int) -> list[Move]:
    moves = database.query(
        "select machine, by, from_status, to_status, at <= now() as is_past from job_history"
        " where render_job_id = %s order by id",
        row,
    )
    assert all(move["is_past"] for move in moves)
    return [(m["machine"][:3], m["by"], m["from_status"], m["to_status"]) for m in moves]


SENT: list[Move] = [
    ("sub", "submit", "pending", "submitting"),
    ("sub", "submit", "submitting", "submitted"),
]


def test_an_end_by_webhook_and_one_by_poll(bundle: Bundle, database: Any, fake: Any) -> None:
    (row, job), (other, its_job) = bundle.accepted(2)
    bundle.W(event_body(job, "processing"))
    bundle.W(event_body(job, "completed"))
    bundle.W(event_body(job, "failed"))
    fake.set_status(its_job, "completed")
    bundle.poll_now()
    assert history(database, row) == [
        *SENT,
        ("gen", "webhook", "queued", "processing"),
        ("gen", "webhook", "processing", "completed"),
    ]
    assert history(database, other) == [*SENT, ("gen", "poll", "queued", "completed")]


def test_an_early_webhook_is_by_webhook(bundle: Bundle, database: Any, fake: Any) -> None:
    (row,) = database.insert_many(1)
    assert bundle.W(event_body("job_early", "completed")).outcome == "held"
    database.execute("set session_replication_role = replica")
    database.execute(
        "update render_jobs set status = 'submitted', sume_job_id = 'job_early' where id = %s", row
    )
    database.execute("set session_replication_role = origin")
    database.execute(
        "insert into gen_job (job_id, idempotency_key, render_job_id)"
        " values ('job_early', 'k', %s)",
        row,
    )
    bundle.poll_now()
    assert history(database, row) == [("gen", "webhook", "queued", "completed")]


def test_refusals_reaps_and_the_end_of_attempts(bundle: Bundle, database: Any, fake: Any) -> None:
    from local.fake_sume import Behaviour

    bundle.set(MAX_ATTEMPTS=2)
    (row,) = database.insert_many(1)
    fake.always_on_submit(Behaviour(status=500, accept=False))
    bundle.D()
    database.age("1 hour")
    database.execute(
        "update render_jobs set status = 'submitting', claim_token = gen_random_uuid(),"
        " claimed_at = now() - interval '1 hour', attempts = 2 where id = %s",
        row,
    )
    bundle.R()
    assert history(database, row) == [
        ("sub", "submit", "pending", "submitting"),
        ("sub", "submit", "submitting", "pending"),
        ("sub", "submit", "pending", "submitting"),
        ("sub", "reap", "submitting", "failed"),
    ]


def test_cancels(bundle: Bundle, database: Any, fake: Any) -> None:
    (never_left,) = database.insert_many(1)
    database.execute("update render_jobs set cancel_requested_at = now()")
    assert history(database, never_left) == [("sub", "cancel", "pending", "canceled")]
    row, _ = bundle.job()
    database.execute("update render_jobs set cancel_requested_at = now() where id = %s", row)
    bundle.poll_now()
    last = history(database, row)[-1]
    assert (last[0], last[3]) == ("gen", "canceled")
    assert last[1] in ("cancel", "poll")


def test_an_operators_plain_sql(bundle: Bundle, database: Any) -> None:
    row, job = bundle.job()
    bundle.W(event_body(job, "failed"))
    database.execute("update render_jobs set generation = generation + 1 where id = %s", row)
    assert history(database, row)[-1] == ("sub", "operator", "submitted", "pending")
    database.execute("update render_jobs set status = 'failed' where id = %s", row)
    database.execute("update render_jobs set status = 'pending' where id = %s", row)
    assert history(database, row)[-2:] == [
        ("sub", "operator", "pending", "failed"),
        ("sub", "operator", "failed", "pending"),
    ]


def test_a_generation_that_reap_starts(bundle: Bundle, database: Any) -> None:
    bundle.set(MAX_GENERATIONS=2)
    row, job = bundle.job()
    bundle.W(event_body(job, "failed", error={"code": "x", "retryable": True}))
    bundle.R()
    assert history(database, row) == [
        *SENT,
        ("gen", "webhook", "queued", "failed"),
        ("sub", "reap", "submitted", "pending"),
    ]


def test_an_update_that_moves_nothing_is_no_move(database: Any) -> None:
    (row,) = database.insert_many(1)
    database.execute("update render_jobs set priority = 2, status = 'pending'")
    assert history(database, row) == []


@pytest.mark.parametrize("by", ["retention", "operator"])
def test_the_history_goes_with_its_row(bundle: Bundle, database: Any, by: str) -> None:
    (row, job), (kept, _) = bundle.accepted(2)
    bundle.W(event_body(job, "completed"))
    assert history(database, row)
    if by == "operator":
        database.execute("delete from render_jobs where id = %s", row)
    else:
        database.execute("update follow_up set dispatched_at = now()")
        database.age("40 days")
        bundle.R()
        assert [each["id"] for each in database.rows()] == [kept]
    assert history(database, row) == []
    assert history(database, kept)
