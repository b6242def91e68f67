"""The running bundle: submit killed at random moments, and the time from insert to accepted."""

import random
import statistics
import time

import psycopg
import pytest

from local.bundle import Bundle, Setup
from tests.e2e.conftest import wait_until

pytestmark = pytest.mark.timeout(150)


@pytest.mark.slow
def test_submit_killed_at_random_moments_bills_every_row_once(folder):
    rows = 60
    setup = Setup(
        folder=folder,
        schedule_seconds={"submit": 0.3, "reap": 1.0, "poll": 1.0},
        timeout_seconds={"submit": 7.0, "reap": 7.0, "poll": 7.0},
        environment={
            "SUME_TIMEOUT_SECONDS": "1",
            "CLAIM_TIMEOUT_SECONDS": "8",
            "MAX_ATTEMPTS": "100",
            "SUME_WRITES_PER_MINUTE": "60000",
            "SUME_READS_PER_MINUTE": "60000",
            "SUBMIT_CONCURRENCY": "4",
        },
        fake_arguments=("--latency=0.05-0.3", "--job-seconds=0.2-1"),
    )
    chance = random.Random(7)
    with (
        Bundle(setup) as bundle,
        psycopg.connect(bundle.database_url, autocommit=True) as connection,
    ):

        def number(condition):
            return connection.execute(
                f"select count(*) from render_jobs where {condition}"
            ).fetchone()[0]

        connection.execute(
            "insert into render_jobs (prompt) select 'row ' || n from generate_series(1, %s) n",
            (rows,),
        )
        bundle.start_schedules()
        killed = 0
        deadline = time.monotonic() + 12
        while number("status <> 'submitted'") > rows // 10 and time.monotonic() < deadline:
            time.sleep(chance.uniform(0.05, 0.8))
            killed += bundle.runner.kill("submit")
        # Quiet from here on: what the killed ones held comes back by the reaper.
        wait_until(lambda: number("status <> 'submitted'") == 0, 80)
        stats = bundle.fake.stats(keys=True)
        failures = bundle.runner.statistics()["submit"]
        assert killed >= 3
        assert failures.crashes >= 3
        assert number("true") == rows
        assert stats["billed"] == rows
        assert stats["most_jobs_for_one_key"] == 1
        (distinct,) = connection.execute(
            "select count(distinct sume_job_id) from render_jobs"
        ).fetchone()
        assert distinct == rows
        assert connection.execute("select count(*) from job_conflict").fetchone() == (0,)


def test_a_new_row_is_accepted_at_once_while_submit_lingers(folder, capsys):
    setup = Setup(
        folder=folder,
        schedule_seconds={"submit": 5.0, "reap": 5.0, "poll": 2.0},
        environment={
            "LINGER_SECONDS": "20",
            "SUME_WRITES_PER_MINUTE": "60000",
            "SUME_READS_PER_MINUTE": "60000",
        },
        fake_arguments=("--latency=0.1-0.2", "--job-seconds=0.5-1"),
    )
    chance = random.Random(3)
    with (
        Bundle(setup) as bundle,
        psycopg.connect(bundle.database_url, autocommit=True) as connection,
    ):
        bundle.start_schedules()
        wait_until(lambda: bundle.runner.running("submit") > 0, 10)
        for n in range(40):
            connection.execute("insert into render_jobs (prompt) values (%s)", (f"row {n}",))
            time.sleep(chance.uniform(0.02, 0.25))
        pending = "select count(*) from render_jobs where sume_job_id is null"
        wait_until(lambda: connection.execute(pending).fetchone() == (0,), 20)
        seconds = [
            float(value)
            for (value,) in connection.execute(
                "select extract(epoch from g.created_at - r.created_at) from render_jobs r "
                "join gen_job g on g.render_job_id = r.id"
            )
        ]
    percentiles = statistics.quantiles(seconds, n=20)
    with capsys.disabled():
        print(
            f"\ninsert to accepted: median {statistics.median(seconds):.2f} s, "
            f"p95 {percentiles[18]:.2f} s, longest {max(seconds):.2f} s"
        )
    assert len(seconds) == 40
    # Loose: the machine that runs the tests may be busy.
    assert percentiles[18] < 10
