"""What 1,000 jobs cost on AWS, computed from what their handlers used here.

A call lasts as long as it waits (for Sume, for Postgres, for the budget) and the processor's time
divided by the share of a processor that its memory buys. Both processors are taken to be as fast
as this one: it shows how the settings compare, and an order of magnitude.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from dataclasses import dataclass
from typing import Any

import psycopg

from local.runner import Runner
from tests.benchmarks import cold_start, prices
from tests.benchmarks.results import Subject
from tests.benchmarks.stand import ADD_PENDING, Stand, result_of

JOBS = 500
MEMORIES = (256, 512, 768, 1024)
BUDGETS = (120, 300)
LATENCY = "0.2"
IDLE_RUNS = 20
RUNS_A_DAY = 1440
SECRET = "a secret of the benchmark"
# The webhook answers within 5 s, of which a locked row may take 2.
COLD_WEBHOOK_SECONDS = 3.0
WARM_WEBHOOK_SECONDS = 0.1
FOLLOW_UPS_AT_ONCE = 10

WAL = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


@dataclass(frozen=True)
class Use:
    """What one job, or one run without work, takes of a function."""

    waiting: float
    processor: float
    statements: float
    wal: float = 0.0

    def seconds(self, memory: int) -> float:
        """How long it lasts with so many megabytes."""
        return self.waiting + self.processor / share(memory)


def share(memory: int) -> float:
    """The part of a processor that a function's memory buys; one thread uses one at most."""
    return min(1.0, memory / prices.PROCESSOR_MEGABYTES)


def measure(stand: Stand) -> Subject:
    """One repeat of 500 jobs through submit, webhook and poll; then runs without work."""
    jobs, idle, cold = _measure(stand)
    subject = Subject(f"Cost of 1,000 jobs, from {JOBS} measured, API 200 ms, 16 in flight")
    for name, use in jobs.items():
        subject.add(f"{name}, processor", "ms a job", [1000 * use.processor])
        subject.add(f"{name}, waiting", "ms a job", [1000 * use.waiting])
        subject.add(f"{name}, statements", "a job", [use.statements])
        subject.add(f"{name}, WAL", "kB a job", [use.wal / 1e3])
    for name, use in idle.items():
        subject.add(f"{name} without work", "ms a run", [1000 * (use.processor + use.waiting)])
    subject.add("webhook, cold, processor", "ms", [1000 * cold], "with boto3 for the secret")
    for memory in MEMORIES:
        _one_memory(subject, memory, jobs, idle, cold)
    return subject


def _one_memory(
    subject: Subject, memory: int, jobs: dict[str, Use], idle: dict[str, Use], cold: float
) -> None:
    label = f"{memory:,} MB: "
    warm = jobs["webhook"].seconds(memory)
    subject.add(label + "webhook, warm", "s", [warm], "", ("<=", WARM_WEBHOOK_SECONDS))
    aim = ("<=", COLD_WEBHOOK_SECONDS)
    subject.add(label + "webhook, cold", "s", [cold / share(memory)], "processor alone", aim)
    most = share(memory) / jobs["submit"].processor
    subject.add(label + "submit, most that its processor sends", "jobs/s", [most], "", (">=", 5.0))
    gigabytes = memory / 1024
    working = {name: 1000 * use.seconds(memory) * gigabytes for name, use in jobs.items()}
    a_day = sum(RUNS_A_DAY * use.seconds(memory) * gigabytes for use in idle.values())
    for budget in BUDGETS:
        # With a backlog submit is alive as long as the budget lets it send.
        alive = 1000 / budget * 60 * gigabytes
        spent = alive + working["webhook"] + working["poll"]
        _dollars(subject, f"{label}backlog at {budget} a minute", spent)
    _dollars(subject, f"{label}no budget", sum(working.values()))
    for processor, price in prices.GB_SECOND.items():
        runs = len(idle) * RUNS_A_DAY
        dollars = 30 * (a_day * price + runs * (prices.LAMBDA_REQUEST + prices.SCHEDULED_RUN))
        subject.add(f"{label}schedules without work, {processor}", "$ a month", [dollars])


def _dollars(subject: Subject, label: str, gb_seconds: float) -> None:
    subject.add(f"{label}", "GB-s", [gb_seconds])
    requests = 1000 * (prices.LAMBDA_REQUEST + prices.HTTP_API_REQUEST)
    requests += 1000 / FOLLOW_UPS_AT_ONCE * prices.SQS_REQUEST
    for processor, price in prices.GB_SECOND.items():
        cents = 100 * (gb_seconds * price + requests)
        subject.add(f"{label}, {processor}", "US cents", [cents])


def _measure(stand: Stand) -> tuple[dict[str, Use], dict[str, Use], float]:
    jobs: dict[str, Use] = {}
    idle: dict[str, Use] = {}
    with (
        stand.database() as url,
        stand.fake(LATENCY, "--job-seconds", "0-0", auto_advance=True) as fake,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        environment = {
            "DATABASE_URL": url,
            "SUME_BASE_URL": fake.url,
            "SUME_READS_PER_MINUTE": "10000000",
            "SUME_WEBHOOK_SECRETS": SECRET,
        }
        with stand.runner(environment) as runner:
            for name in ("submit", "reap", "poll", "dispatch"):
                _call(runner, connection, name, [{}])  # warm
                idle[name] = _call(runner, connection, name, [{}] * IDLE_RUNS, IDLE_RUNS)
            connection.execute(ADD_PENDING, {"rows": JOBS})
            jobs["submit"] = _call(runner, connection, "submit", [{}], JOBS)
            ids = [job for (job,) in connection.execute("select job_id from gen_job").fetchall()]
            jobs["webhook"] = _call(runner, connection, "webhook", list(map(_event, ids)), JOBS)
            connection.execute("update gen_job set next_poll_at = now() where result is null")
            jobs["poll"] = _call(runner, connection, "poll", [{}], JOBS)
        row = connection.execute("select count(*) from gen_job where result is not null").fetchone()
        if row is None or row[0] < 0.98 * JOBS:  # one that is read a moment too early waits
            raise RuntimeError(f"{row} of {JOBS} jobs have their result")
        cold = cold_start.with_secrets(url, "webhook")
    return jobs, idle, cold


def _call(
    runner: Runner,
    connection: psycopg.Connection[Any],
    function: str,
    events: list[Any],
    number: int = 1,
) -> Use:
    """What each of `number` jobs, or runs, took."""
    before = connection.execute(WAL).fetchone()
    figures = result_of(runner, "metered", {"function": function, "events": events})
    after = connection.execute(WAL).fetchone()
    assert before is not None
    assert after is not None
    return Use(
        max(0.0, figures["seconds"] - figures["processor"]) / number,
        figures["processor"] / number,
        figures["statements"] / number,
        float(after[0] - before[0]) / number,
    )


def _event(job: str) -> dict[str, Any]:
    content = {"object": {"id": job, "status": "completed"}}
    body = json.dumps({"id": f"evt_{job}", "type": "job.completed", "data": content})
    stamp = str(int(time.time()))
    signed = hmac.new(SECRET.encode(), f"{stamp}.{body}".encode(), hashlib.sha256).hexdigest()
    headers = {"x-sume-timestamp": stamp, "x-sume-signature": f"v1={signed}"}
    return {"version": "2.0", "headers": headers, "body": body, "isBase64Encoded": False}
