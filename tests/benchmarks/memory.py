"""Resident memory of each function while 2,000 rows are in flight at Sume."""

from __future__ import annotations

import shutil
import time

import psycopg

from local.bundle import Bundle, Setup
from tests.benchmarks.results import Subject
from tests.benchmarks.server import FOLDER
from tests.benchmarks.stand import ADD_PENDING, NO_BUDGET

ROWS = 2_000
MEGABYTES = 150.0
PATIENCE_SECONDS = 400.0

COUNT = """
select count(*) filter (where status = 'submitted'),
       (select count(*) from gen_job where status in ('queued', 'processing')),
       (select count(*) from gen_job where status not in ('queued', 'processing')
          and (status <> 'completed' or result is not null))
  from render_jobs"""


def measure(repeats: int) -> Subject:
    """The largest resident memory (VmHWM) of any process of each function."""
    runs = [_run() for _ in range(repeats)]
    flying = min(most for _, most in runs)
    subject = Subject(
        f"Memory: {ROWS:,} rows through the whole bundle, {flying:,} in flight at once"
    )
    for name in runs[0][0]:
        samples = [peaks[name] for peaks, _ in runs]
        subject.add(name, "MB", samples, "", ("<=", MEGABYTES))
    return subject


def _run() -> tuple[dict[str, float], int]:
    """Peak memory by function in MB, and the most jobs that were in flight at once."""
    folder = FOLDER / "memory"
    shutil.rmtree(folder, ignore_errors=True)
    setup = Setup(
        folder=folder,
        schedule_seconds={"submit": 2, "reap": 5, "poll": 2},
        environment={
            "SUBMIT_CONCURRENCY": "50",
            "SUME_WRITES_PER_MINUTE": NO_BUDGET,
            "SUME_READS_PER_MINUTE": NO_BUDGET,
        },
        # All are accepted before the first one ends.
        fake_arguments=("--job-seconds", "25-35"),
    )
    with Bundle(setup) as bundle:
        with psycopg.connect(bundle.database_url, autocommit=True) as connection:
            connection.execute(ADD_PENDING, {"rows": ROWS})
            bundle.start_schedules()
            deadline = time.monotonic() + PATIENCE_SECONDS
            most = ended = 0
            while ended < ROWS:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{ended} of {ROWS} jobs came to their end in time")
                time.sleep(0.3)
                row = connection.execute(COUNT).fetchone()
                assert row is not None
                most, ended = max(most, row[1]), row[2]
        bundle.stop_schedules(30)
        peaks = {
            name: found.peak_memory_bytes / 1e6
            for name, found in bundle.runner.statistics().items()
            if found.invocations
        }
    shutil.rmtree(folder, ignore_errors=True)
    return peaks, most
