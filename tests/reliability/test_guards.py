"""Guards that no other test noticed when they were taken away (see `mutants.py`)."""

from __future__ import annotations

from local.fake_sume import Behaviour, FakeSume
from tests.support.bundle import Bundle, event_body
from tests.support.postgres import Database


def test_an_end_clears_the_mark_for_attention(bundle: Bundle, database: Database) -> None:
    """A job that was overdue and then failed needs attention for its failure alone."""
    _, job_id = bundle.job()
    database.execute("update gen_job set attention = 'overdue'")
    assert bundle.W(event_body(job_id, "processing")).outcome == "applied"
    assert database.job(job_id)["attention"] == "overdue"
    assert bundle.W(event_body(job_id, "failed", error={"code": "x"})).outcome == "applied"
    assert database.job(job_id)["attention"] is None


def test_a_job_whose_row_is_unknown_ends_all_the_same(bundle: Bundle, database: Database) -> None:
    _, job_id = bundle.job()
    database.execute("update gen_job set render_job_id = null")
    assert bundle.W(event_body(job_id, "completed")).outcome == "applied"
    assert [row["kind"] for row in database.follow_ups(job_id)] == ["job.completed"]


def test_a_completed_job_that_carries_an_error_is_asked_for_its_result(
    bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    _, job_id = bundle.job()
    fake.set_status(job_id, "completed")
    event = event_body(job_id, "completed", error={"code": "warning"})
    assert bundle.W(event).outcome == "applied"
    bundle.poll_now()
    assert database.job(job_id)["result"] is not None


def test_a_closed_gate_stops_nothing_where_nothing_waits(
    bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    """Neither a row that was sent, nor one for later, nor an ended one is work to be done."""
    bundle.accepted(2)
    later = database.insert(run_after="2100-01-01")
    other = database.insert(priority=3, run_after="2100-01-01")
    ended = database.insert()
    fake.on_submit(Behaviour(status=400))
    bundle.D()
    assert database.row(ended)["status"] == "failed"
    database.execute("update pace_gate set closed_until = now() + interval '1 hour'")
    assert bundle.D()["stopped"] == 0
    suspect = database.insert(reaps=2, run_after="2100-01-01")
    assert bundle.D()["stopped"] == 0
    database.execute("update render_jobs set run_after = now() where id = %s", suspect)
    assert bundle.D()["stopped"] == 1
    database.execute("delete from render_jobs where id = any(%s)", [suspect, later])
    database.execute("update render_jobs set run_after = now() where id = %s", other)
    assert bundle.D()["stopped"] == 1


def test_a_row_reaped_twice_waits_for_its_time_too(
    bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    database.insert(reaps=2, run_after="2100-01-01")
    assert bundle.D()["claimed"] == 0
    assert not fake.posts()


def test_a_row_reaped_twice_that_another_worker_has_in_hand_is_passed_over(
    bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    row = database.insert(reaps=2)
    with database.session() as other:
        other.execute("select from render_jobs where id = %s for update", (row,))
        assert bundle.D()["claimed"] == 0
        assert not [line for line in bundle.logs("WARNING") if "waited" in line["message"]]
    assert bundle.D()["claimed"] == 1


def test_only_a_failed_job_takes_an_error_from_a_read(
    bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    _, job_id = bundle.job()
    fake.set_status(job_id, "processing")
    fake.on_read(Behaviour(job_error={"code": "slow"}))
    bundle.poll_now()
    job = database.job(job_id)
    assert (job["status"], job["error"], job["error_code"]) == ("processing", None, None)


def test_a_failed_job_whose_error_is_known_is_not_read_again(
    bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    """The webhook brings the end and its error while poll reads the job in vain."""
    _, job_id = bundle.job()
    event = event_body(job_id, "failed", error={"code": "x"})
    fake.on_read(Behaviour(status=500, call=lambda _job: bundle.W(event)))
    bundle.poll_now()
    assert database.job(job_id)["status"] == "failed"
    assert database.job(job_id)["next_poll_at"] is None


def test_a_failed_job_whose_error_is_not_known_is_read_again(
    bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    _, job_id = bundle.job()
    fake.set_status(job_id, "failed", {"code": "x"})
    event = event_body(job_id, "failed")
    fake.on_read(Behaviour(status=500, call=lambda _job: bundle.W(event)))
    bundle.poll_now()
    assert database.job(job_id)["status"] == "failed"
    assert database.job(job_id)["next_poll_at"] is not None
    bundle.poll_now()
    assert database.job(job_id)["error"] == {"code": "x"}
    assert database.job(job_id)["next_poll_at"] is None


def _next_look(database: Database, job_id: str) -> float:
    seconds: float = database.one(
        "select extract(epoch from next_poll_at - now())::float from gen_job where job_id = %s",
        job_id,
    )
    return seconds


def test_the_next_look_comes_by_age_and_not_by_the_lease(
    bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    """A lease lasts for 50 s; a young job is looked at again after some 5 s."""
    _, job_id = bundle.job()
    fake.set_status(job_id, "processing")
    bundle.poll_now("10 seconds")
    assert _next_look(database, job_id) < 10
    fake.set_status(job_id, "completed")
    assert bundle.W(event_body(job_id, "completed")).outcome == "applied"
    fake.on_result(Behaviour(status=409, code="job_not_completed"))
    bundle.P()
    assert database.job(job_id)["result_reads"] == 1
    assert _next_look(database, job_id) < 10
