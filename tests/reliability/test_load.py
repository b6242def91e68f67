"""Load in CI's time; `python -m tests.reliability.load` is the full run on 100,000 rows."""

from __future__ import annotations

from local.fake_sume import FakeSume
from tests.reliability.load import Run
from tests.reliability.traffic import settle
from tests.support.bundle import Bundle
from tests.support.postgres import Database

SECONDS = 6.0
BUDGET = 300


def test_many_processes_at_once(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    run = Run(bundle, database, fake, BUDGET, submitters=4, deliverers=8)
    run.fill(3000)
    report = run.go(SECONDS)
    assert not report.errors, "no deadlock and no other error reaches a caller"
    assert {answer[:3] for answer in report.deliveries} == {"200"}, report.deliveries
    assert not report.overlaps, "no row is under way twice"
    assert not report.billed_twice
    assert report.follow_ups == report.ended
    # A short window: what the bucket holds, and what comes in the meantime; requests that waited
    # for their turn on a busy machine come a moment later.
    assert report.most_in_two_seconds <= BUDGET * 0.02 + BUDGET / 60 * 2.5 + 1, report
    assert report.most_in_a_minute <= BUDGET
    assert report.share_of_budget >= 0.9, report
    # The rest of the table has done its part.
    database.execute("delete from render_jobs where status = 'pending' and sends = 0")
    rows = [row["id"] for row in database.rows()]
    settle(bundle, database, fake, rows)
