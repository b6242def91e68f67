"""From a job's end at Sume to its follow-up row, and reads for each finished job.

Once with webhooks and once by poll alone, side by side, each in a bundle of its own with the
template's schedules.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

import psycopg
import requests

from local.bundle import SCHEDULE_SECONDS, Bundle, Fake, Setup
from tests.benchmarks.results import Subject
from tests.benchmarks.server import FOLDER
from tests.benchmarks.stand import ADD_PENDING

# Enough of them that the cold starts of a few containers are fewer than one in twenty.
ROWS = 200
JOB_SECONDS = "20-50"
PATIENCE_SECONDS = 300.0
WEBHOOK_P95_SECONDS = 0.1
# One list call gives at most so many jobs, the newest (sume-api: CLI of the vendor).
LISTED = 100

ENDED = """
select g.job_id, extract(epoch from f.created_at)::float8
  from gen_job g join follow_up f using (job_id) where g.result is not null"""


@dataclass(frozen=True)
class Ends:
    """Seconds from each end to its follow-up; reads in all; the ticks of poll meanwhile."""

    waits: list[float]
    reads: int
    ticks: int


def measure() -> Subject:
    """One repeat; a run lasts about two minutes."""
    subject = Subject(f"Ends: {ROWS} jobs of {JOB_SECONDS} s, the template's schedules, on disk")
    tick = SCHEDULE_SECONDS["poll"]
    with ThreadPoolExecutor(2) as pool:
        webhook, poll = pool.map(_run, (True, False))
    note = "from Sume's end to the follow-up row"
    p95 = statistics.quantiles(webhook.waits, n=20)[-1]
    subject.add("webhook, p50", "s", [statistics.median(webhook.waits)], note)
    subject.add("webhook, p95", "s", [p95], note, ("<=", WEBHOOK_P95_SECONDS))
    subject.add("poll alone, p50", "s", [statistics.median(poll.waits)], note)
    subject.add("poll alone, longest", "s", [max(poll.waits)], note, ("<=", tick + 1))
    for name, ends in (("webhooks", webhook), ("poll alone", poll)):
        subject.add(f"{name}, reads", "a job", [ends.reads / ROWS], "one of them is the result")
        listed = 1 + ends.ticks * -(-ROWS // LISTED) / ROWS
        note = "computed: each result, and one list call at each tick for every 100 jobs"
        subject.add(f"{name}, reads with a list call", "a job", [listed], note)
    return subject


def _run(with_webhooks: bool) -> Ends:
    folder = FOLDER / ("ends-webhooks" if with_webhooks else "ends-poll")
    shutil.rmtree(folder, ignore_errors=True)
    setup = Setup(
        folder=folder,
        environment={"SUME_WRITES_PER_MINUTE": "6000", "SUME_READS_PER_MINUTE": "6000"},
        fake_arguments=("--latency", "0.2", "--job-seconds", JOB_SECONDS),
    )
    with (
        Bundle(setup) as bundle,
        psycopg.connect(bundle.database_url, autocommit=True) as connection,
    ):
        if not with_webhooks:
            del bundle.runner.environment["SUME_WEBHOOK_URL"]
        connection.execute(ADD_PENDING, {"rows": ROWS})
        begun = time.monotonic()
        bundle.start_schedules()
        ended: dict[str, float] = {}
        while len(ended) < ROWS:
            if time.monotonic() - begun > PATIENCE_SECONDS:
                raise RuntimeError(f"{len(ended)} of {ROWS} jobs came to their end in time")
            threading.Event().wait(0.5)
            ended = dict(connection.execute(ENDED).fetchall())
        ticks = bundle.runner.statistics()["poll"].invocations
        assert bundle.fake is not None
        reads = bundle.fake.stats()["reads"]
        key = bundle.runner.environment["SUME_API_KEY"]
        waits = [at - _ended_at(bundle.fake, key, job) for job, at in ended.items()]
        bundle.stop_schedules(30)
    shutil.rmtree(folder, ignore_errors=True)
    return Ends(waits, reads, ticks)


def _ended_at(fake: Fake, key: str, job: str) -> float:
    """When the fake's job came to its end, by the clock that the database goes by too."""
    address = f"{fake.url}/v1/jobs/{job}"
    answer = requests.get(address, headers={"Authorization": f"Bearer {key}"}, timeout=10)
    answer.raise_for_status()
    stamp: str = answer.json()["data"]["job"]["updated_at"]
    return datetime.fromisoformat(stamp).timestamp()
