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
