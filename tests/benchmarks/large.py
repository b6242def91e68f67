"""A server with large databases, and the queue's two hot paths measured on one of them."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from sume_jobs.connection import Database
from sume_jobs.secrets import Secrets
from sume_jobs.settings import Settings
from sume_jobs.store import gen_jobs, render_jobs
from sume_jobs.store.migrations import migrate

from tests.benchmarks.server import Server
from tests.database.sessions import claiming
from tests.support import history

BATCH = 50

PENDING = """
insert into render_jobs (prompt, priority, run_after)
select 'A lighthouse at dusk, oil on canvas, number ' || n, %(priority)s,
       now() + %(later)s::interval
  from generate_series(1, %(rows)s) as n"""

_numbers = itertools.count(1)


class LargeServer(Server):
    """Gives large databases."""

    def database(
        self, name: str, *, finished: int = 0, newest: str = "1 hour", padding: int = 0
    ) -> Large:
        """A migrated database with a history; `padding` as `history.load` has it."""
        url = self.create(name)
        with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
            migrate(connection)
        large = Large(name, url, make_conninfo(self._postgres.superuser_url, dbname=name), finished)
        if finished:
            with psycopg.connect(large.superuser_url, autocommit=True) as connection:
                history.load(connection, finished, newest=newest, padding=padding)
                connection.execute("vacuum analyze")
        return large


@dataclass
class Large:
    """One large database."""

    name: str
    url: str
    superuser_url: str
    finished: int

    def store(self) -> Database:
        """The product's own connection."""
        settings = Settings.from_environment({"DATABASE_URL": self.url})
        database = Database(settings, Secrets(settings))
        database.run("select 1")
        return database

    def run(self, statement: str, **values: Any) -> list[dict[str, Any]]:
        """A statement of the role that owns the tables."""
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def add_pending(self, rows: int, later: str = "0", priority: int = 1) -> None:
        """Insert rows that can be sent once `later` is over."""
        self.run(PENDING, rows=rows, later=later, priority=priority)


@dataclass(frozen=True)
class Cost:
    """What a job cost: rate is in jobs a second, processor in microseconds of the server."""

    rate: float
    processor: float


@contextlib.contextmanager
def measured(store: Database, jobs: int) -> Iterator[list[Cost]]:
    """Measure the block; its cost for each of so many jobs is in the list afterwards."""
    pid = store.connection().info.backend_pid
    cost: list[Cost] = []
    processor, begun = _nanoseconds(pid), time.monotonic()
    yield cost
    seconds = time.monotonic() - begun
    cost.append(Cost(jobs / seconds, (_nanoseconds(pid) - processor) / 1000 / jobs))


def _nanoseconds(pid: int) -> int:
    """Time that a process was on a processor: what others do on the machine is not in it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def claim_and_record(store: Database, rows: int, spread: int) -> list[str]:
    """Claim and record so many due rows in batches; gives their jobs.

    The ids of the jobs fall anywhere among `spread` known ones, as Sume's do.
    """
    jobs: list[str] = []
    while len(jobs) < rows:
        claims = render_jobs.claim(store, claiming(), min(BATCH, rows - len(jobs)), True).claims
        assert claims, "rows are missing"
        accepted = [
            render_jobs.Accepted(
                each.row_id,
                each.token,
                each.key,
                f"job_{random.randint(1, spread)}_{next(_numbers)}",
            )
            for each in claims
        ]
        render_jobs.record(store, accepted, 8, 3600.0)
        jobs += [each.job_id for each in accepted]
    return jobs


def end(store: Database, jobs: list[str]) -> None:
    """Let Sume report the end of jobs, in batches, as poll learns it."""
    for first in range(0, len(jobs), BATCH):
        wishes = [gen_jobs.Wish(job, "completed") for job in jobs[first : first + BATCH]]
        assert all(moved.won for moved in gen_jobs.apply(store, wishes))
