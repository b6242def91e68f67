"""What one job costs the database from its row to its deletion, step by step.

Processor time of the server's process and bytes of write-ahead log: what other work on the machine
does to the clock is in neither. `docs/scale.md` reckons with these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psycopg
from sume_jobs.connection import Database
from sume_jobs.store import follow_ups, gen_jobs, job_views, retention, webhook_events

from tests.benchmarks.large import Cost, Large, claim_and_record, measured
from tests.benchmarks.results import Subject
from tests.database.sessions import WIDE

JOBS = 1_000
READS = 16
LOG = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn as bytes"
AGED = {
    "render_jobs": ("created_at", "updated_at"),
    "gen_job": ("created_at", "updated_at"),
    "webhook_event": ("received_at",),
}
RESULT = '{"artifacts": [{"url": "https://media.example/%s.png", "content_type": "image/png"}]}'


def measure(large: Large, repeats: int) -> Subject:
    """Take `JOBS` rows through their whole life, `repeats` times."""
    subject = Subject("A job's life in the database")
    costs: dict[str, list[Cost]] = {}
    log: dict[str, list[float]] = {}
    store = large.store()

    @contextlib.contextmanager
    def step(name: str, jobs: int = JOBS) -> Iterator[None]:
        before = store.run(LOG)[0]["bytes"]
        with measured(store, jobs) as cost:
            yield
        written = store.run(LOG)[0]["bytes"] - before
        costs.setdefault(name, []).extend(cost)
        log.setdefault(name, []).append(float(written) / jobs)

    for _ in range(repeats):
        _live(store, step)
        _age(large)
        with step("delete, 1,000 at a time"):
            gone = retention.purge(store, 30, 86_400, lambda: True)
            assert gone == JOBS
            while webhook_events.purge_old(store, 30):
                pass
        with step("the board's figures, once", 1):
            job_views.figures(store)
            job_views.pulse(store)
            job_views.newest_moving(store, 8)
            job_views.newest_done(store, 8)
            job_views.newest_in_need(store, 8)
    store.close()
    for name, found in costs.items():
        subject.add(name, "microseconds", [cost.processor for cost in found])
        subject.add("  log", "bytes", log[name])
    return subject


def _age(large: Large) -> None:
    """Let 40 days pass."""
    with psycopg.connect(large.superuser_url) as connection:
        connection.execute("set session_replication_role = replica")
        for table, columns in AGED.items():
            moves = ", ".join(f"{each} = {each} - interval '40 days'" for each in columns)
            connection.execute(f"update {table} set {moves}".encode())


def _live(store: Database, step: Callable[..., contextlib.AbstractContextManager[None]]) -> None:
    with step("insert, one by one"):
        for number in range(JOBS):
            store.run(
                "insert into render_jobs (prompt) values (%(prompt)s)",
                {"prompt": f"A lighthouse at dusk, oil on canvas, number {number}"},
            )
    with step("claim + record, 50 at a time"):
        jobs = claim_and_record(store, JOBS, JOBS)
    with step("end by webhook, one by one"):
        for job in jobs:
            event = webhook_events.Event(
                f"evt_{job}", '{"id": "x", "data": {}}', job, "job.completed", "completed"
            )
            assert webhook_events.receive(store, event).outcome == "applied"
    with step("claim for a read and keep the result, 16 at a time"):
        read = 0
        while read < JOBS:
            _, due = gen_jobs.claim_due(store, WIDE, min(READS, JOBS - read), 50.0, 25.0)
            assert due
            looks = [
                gen_jobs.Looked(each.job_id, 0.0, "found", result=RESULT % each.job_id)
                for each in due
            ]
            gen_jobs.record_looks(store, looks)
            read += len(due)
    with step("hand on the follow-up, 10 at a time"):
        sent = 0
        while sent < JOBS:
            leased = follow_ups.claim(store, 60.0, 20).follow_ups
            marks = [follow_ups.Mark(each.id, each.token, ("queue",)) for each in leased]
            sent += len(follow_ups.mark(store, marks, 20).dispatched)
