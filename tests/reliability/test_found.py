"""What the explorers of this folder have found, one test for each."""

from __future__ import annotations

from local.fake_sume import Behaviour, FakeSume
from tests.support.bundle import Bundle


def test_a_failed_job_is_not_judged_before_its_error_is_known(
    bundle: Bundle, fake: FakeSume
) -> None:
    """The answer to a replay tells that the job has failed, but not why (seed 574)."""
    bundle.set(MAX_GENERATIONS=2)
    row = bundle.database.insert()
    fake.on_submit(Behaviour(drop="after"))
    bundle.D()
    (job_id,) = fake.jobs
    fake.set_status(job_id, "failed", {"code": "generation_failed", "retryable": True})
    bundle.submit_later()
    assert bundle.database.job(job_id)["status"] == "failed"
    assert bundle.database.job(job_id)["error"] is None
    bundle.R()
    bundle.poll_now()
    bundle.R()
    assert bundle.database.row(row)["generation"] == 2
    bundle.D()
    assert fake.billed == 2


def test_a_failed_job_without_any_error_is_judged_in_the_end(
    bundle: Bundle, fake: FakeSume
) -> None:
    bundle.set(MAX_GENERATIONS=2)
    row, job_id = bundle.job()
    fake.set_status(job_id, "failed")
    bundle.poll_now()
    bundle.poll_now()
    bundle.R()
    assert not bundle.database.job(job_id)["regeneration_open"]
    assert bundle.database.row(row)["generation"] == 1


def test_a_row_is_not_sent_at_the_last_moment_of_its_keys_life(
    bundle: Bundle, fake: FakeSume
) -> None:
    """Claimed a second before the key's end, a slow request arrives after it: a second bill."""
    row = bundle.database.insert()
    fake.on_submit(Behaviour(drop="after"))
    bundle.D()
    bundle.database.age("23 hours 59 minutes 50 seconds")
    fake.forget_key(f"render-job-{row}")
    bundle.D()
    assert fake.billed == 1
    assert bundle.database.row(row)["error_code"] == "idempotency_window_expired"


def test_a_row_is_sent_again_until_shortly_before_its_keys_end(
    bundle: Bundle, fake: FakeSume
) -> None:
    row = bundle.database.insert()
    fake.on_submit(Behaviour(drop="after"))
    bundle.D()
    bundle.database.age("23 hours 58 minutes")
    bundle.D()
    assert bundle.database.row(row)["status"] == "submitted"
    assert fake.billed == 1
