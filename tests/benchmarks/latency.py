"""From insert to accepted in the running bundle: single inserts while submit lingers."""

from __future__ import annotations

import random
import shutil
import statistics
import time

import psycopg

from local.bundle import Bundle, Setup
from tests.benchmarks.results import Subject
from tests.benchmarks.server import FOLDER

INSERTS = 100
BUDGET = 600
P50_SECONDS, P95_SECONDS = 0.3, 1.0
PATIENCE_SECONDS = 30.0

# Both instants are the database's: the row's insert, and the commit that recorded its job.
WAITED = """
select extract(epoch from g.created_at - r.created_at)::float8
  from render_jobs r join gen_job g on g.render_job_id = r.id order by r.id"""


def measure(repeats: int, inserts: int = INSERTS) -> Subject:
    """p50 and p95 of single inserts at random moments; each repeat starts a new bundle."""
    subject = Subject(f"Insert to accepted, {inserts} single inserts, bundle on disk")
    waits = [_run(inserts, seed) for seed in range(repeats)]
    note = f"API 200 ms of it; {BUDGET} writes a minute, an insert every 150 to 350 ms"
    subject.add("p50", "s", [statistics.median(each) for each in waits], note, ("<=", P50_SECONDS))
    p95 = [statistics.quantiles(each, n=20)[-1] for each in waits]
    subject.add("p95", "s", p95, note, ("<=", P95_SECONDS))
    subject.add("longest", "s", [max(each) for each in waits], "a cold start is in it")
    return subject


def _run(inserts: int, seed: int) -> list[float]:
    folder = FOLDER / "latency"
    shutil.rmtree(folder, ignore_errors=True)
    chance = random.Random(seed)
    setup = Setup(
        folder=folder,
        environment={"LINGER_SECONDS": "65", "SUME_WRITES_PER_MINUTE": str(BUDGET)},
        fake_arguments=("--latency", "0.2", "--job-seconds", "2-8"),
    )
    with Bundle(setup) as bundle:
        bundle.start_schedules()
        with psycopg.connect(bundle.database_url, autocommit=True) as connection:
            for number in range(inserts):
                connection.execute(
                    "insert into render_jobs (prompt) values (%s)", (f"a harbour, number {number}",)
                )
                time.sleep(chance.uniform(0.15, 0.35))
            deadline = time.monotonic() + PATIENCE_SECONDS
            waited: list[float] = []
            while len(waited) < inserts:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{len(waited)} of {inserts} rows were accepted in time")
                time.sleep(0.2)
                waited = [seconds for (seconds,) in connection.execute(WAITED).fetchall()]
    shutil.rmtree(folder, ignore_errors=True)
    return waited
