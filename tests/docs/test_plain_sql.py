"""Cancel and a new generation by plain SQL, as the README offers them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

JOB = (
    "insert into gen_job (job_id, idempotency_key, render_job_id, status)"
    " values ('job_1', 'render-job-1', 1, %s)"
)
ROW = (
    "insert into render_jobs (prompt, status, sume_job_id, idempotency_key, request_body, attempts,"
    " sends, unknown_since) values ('a', %s, %s, 'render-job-1', '{}', 3, 3, %s)"
)
CANCEL = "update render_jobs set cancel_requested_at = now() where id = 1"
AGAIN = "update render_jobs set generation = generation + 1, prompt = 'better' where id = 1"


@pytest.mark.parametrize(
    ("status", "unknown_since", "job", "status_after", "is_wished", "sume_is_asked"),
    [
        ("pending", None, None, "canceled", True, None),
        ("pending", "now", None, "pending", True, None),
        ("submitting", None, None, "submitting", True, None),
        ("submitted", None, "queued", "submitted", True, True),
        ("submitted", None, "processing", "submitted", True, True),
        ("submitted", None, "completed", "submitted", False, False),
        ("failed", None, None, "failed", False, None),
        ("canceled", None, None, "canceled", False, None),
    ],
)
def test_cancel_by_sql(
    database: Any,
    status: str,
    unknown_since: str | None,
    job: str | None,
    status_after: str,
    is_wished: bool,
    sume_is_asked: bool | None,
) -> None:
    database.execute(ROW, status, "job_1" if job else None, unknown_since)
    if job:
        database.execute(JOB, job)
    database.execute(CANCEL)
    row = database.row(1)
    assert row["status"] == status_after
    assert (row["cancel_requested_at"] is not None) is is_wished
    if job:
        assert (database.job("job_1")["cancel_due_at"] is not None) is sume_is_asked


@pytest.mark.parametrize(("status", "job"), [("submitted", "failed"), ("failed", None)])
def test_a_new_generation_is_a_new_request(database: Any, status: str, job: str | None) -> None:
    database.execute(ROW, status, "job_1" if job else None, "now")
    if job:
        database.execute(JOB, job)
    database.execute(AGAIN)
    row = database.row(1)
    assert (row["status"], row["generation"], row["prompt"]) == ("pending", 2, "better")
    assert [row[name] for name in ("sume_job_id", "idempotency_key", "request_body")] == [None] * 3
    assert (row["attempts"], row["sends"], row["unknown_since"]) == (0, 0, None)


@pytest.mark.parametrize(
    ("status", "job"), [("pending", None), ("submitting", None), ("submitted", "processing")]
)
def test_a_new_generation_waits_for_the_end_of_the_one_before(
    database: Any, status: str, job: str | None
) -> None:
    database.execute(ROW, status, "job_1" if job else None, None)
    if job:
        database.execute(JOB, job)
    with pytest.raises(psycopg.errors.CheckViolation, match="has not ended") as refusal:
        database.execute(AGAIN)
    assert "cancel it first" in (refusal.value.diag.message_hint or "")
    assert database.row(1)["generation"] == 1


def test_the_generation_only_goes_up_by_one(database: Any) -> None:
    database.execute(ROW, "failed", None, None)
    for step in (2, -1):
        with pytest.raises(psycopg.errors.CheckViolation, match="goes up by one"):
            database.execute(f"update render_jobs set generation = generation + {step}")
