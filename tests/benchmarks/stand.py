"""Where everything is measured: one Postgres, fakes of Sume, and contenders in own processes.

Every process is guarded: it ends with this one, however this one ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg

from local.bundle import Fake
from local.guard import guarded
from local.postgres import DATABASE
from local.runner import PROJECT, Function, Runner
from tests.benchmarks.server import FOLDER, Server

# More requests a minute than any contender makes.
NO_BUDGET = "10000000"
FINISHED = 200_000

TEMPLATE = "bench_template"
TEMPLATE_FINISHED = "bench_template_finished"

ADD_FINISHED = """
with row as (
  insert into render_jobs (prompt, status, sume_job_id, idempotency_key, request_body,
                           attempts, sends, claimed_at, created_at, updated_at)
  select 'a finished prompt ' || n, 'submitted', 'old-' || n, 'old-' || n,
         '{"model": "sume/auto"}', 1, 1, ago, ago, ago
    from generate_series(1, %(rows)s) as n, (select now() - interval '1 day' as ago) as past
  returning id, sume_job_id),
job as (
  insert into gen_job (job_id, idempotency_key, render_job_id, status, result, next_poll_at,
                       created_at, updated_at)
  select sume_job_id, sume_job_id, id, 'completed',
         '{"artifacts": [{"url": "https://example.com/1.png"}]}', null,
         now() - interval '1 day', now() - interval '1 day'
    from row)
insert into follow_up (job_id, kind, render_job_id)
select sume_job_id, 'job.completed', id from row"""

ADD_PENDING = """
insert into render_jobs (prompt)
select 'A lighthouse at dusk, oil on canvas, number ' || n from generate_series(1, %(rows)s) as n"""


class Stand(Server):
    """Gives databases, fakes and contenders."""

    SETTINGS = Server.SETTINGS | {"max_wal_size": "4GB"}

    def __init__(self, *, on_disk: bool) -> None:
        super().__init__(on_disk=on_disk)
        self.logs = FOLDER / "logs"
        self._numbers = itertools.count(1)
        self._has_finished = False

    def prepare(self) -> None:
        """Migrate a template."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with self.runner({"DATABASE_URL": self.create(TEMPLATE)}) as runner:
            runner.invoke("migrate", {}).result()

    @contextlib.contextmanager
    def database(self, *, pending: int = 0, finished: int = 0) -> Iterator[str]:
        """The URL of a migrated database of its own, dropped afterwards."""
        name = f"bench_{next(self._numbers)}"
        url = self.create(name, self._template(finished))
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(ADD_PENDING, {"rows": pending})
                connection.execute("vacuum analyze render_jobs")
            yield url
        finally:
            self.drop(name)

    @contextlib.contextmanager
    def empty_database(self) -> Iterator[str]:
        """The URL of a database with nothing in it, dropped afterwards."""
        name = f"bench_{next(self._numbers)}"
        self.create(name)
        try:
            yield self._postgres.url.replace("/" + DATABASE + "?", f"/{name}?")
        finally:
            self.drop(name)

    def keep(self, resource: contextlib.AbstractContextManager[str]) -> str:
        """Enter something that lasts as long as the server."""
        return self._stack.enter_context(resource)

    @contextlib.contextmanager
    def fake(
        self, latency: str = "0", *arguments: str, auto_advance: bool = False
    ) -> Iterator[Fake]:
        """A fake Sume in a process of its own; ``latency`` in seconds, or LEAST-MOST.

        Without ``auto_advance`` jobs stay queued: only the submit is measured, not its clockwork.
        """
        log = self.logs / f"fake_{os.getpid()}_{next(self._numbers)}.log"
        command = [sys.executable, "-m", "local.fake_sume", "--port", "0", "--latency", latency]
        with log.open("wb") as output:
            process = guarded(
                [*command, *([] if auto_advance else ["--no-auto-advance"]), *arguments],
                stop_signal=signal.SIGTERM,
                grace_seconds=5.0,
                output=output,
                directory=PROJECT,
            )
        try:
            yield Fake(_address(log))
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(15)
            log.unlink()

    @contextlib.contextmanager
    def runner(
        self, environment: Mapping[str, str], processes: int = 1, code: Path = PROJECT
    ) -> Iterator[Runner]:
        """Runs the contenders and `migrate`, each in a process of its own by Lambda's rules.

        ``code`` is the folder whose functions and layer are measured.
        """
        functions = [
            Function(name, f"tests.benchmarks.{name}.handler", 880, 512, processes)
            for name in ("ours", "article", "http_alone", "metered")
        ]
        functions.append(Function("migrate", "functions.migrate.app.handler", 300, 256))
        settings = {
            "POWERTOOLS_SERVICE_NAME": "sume-jobs",
            "POWERTOOLS_METRICS_NAMESPACE": "SumeJobs",
            "POWERTOOLS_LOG_LEVEL": "WARNING",
            "SUME_API_KEY": "sume_bench",
            "SUME_WRITES_PER_MINUTE": NO_BUDGET,
            **environment,
        }
        with Runner(
            functions, log_folder=self.logs, environment=settings, code_folder=code
        ) as runner:
            yield runner

    def _template(self, finished: int) -> str:
        if not finished:
            return TEMPLATE
        assert finished == FINISHED
        if not self._has_finished:
            url = self.create(TEMPLATE_FINISHED, TEMPLATE)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(ADD_FINISHED, {"rows": finished})
                connection.execute("vacuum analyze")
            self._has_finished = True
        return TEMPLATE_FINISHED


def _address(log: Path) -> str:
    said = "fake Sume listens on "
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        if said in text and "\n" in text.partition(said)[2]:
            return text.partition(said)[2].split()[0]
        time.sleep(0.02)
    raise RuntimeError(f"the fake Sume did not start; see {log}")


def result_of(runner: Runner, contender: str, event: Any) -> dict[str, Any]:
    """Invoke a contender once and give its figures; raises when it failed."""
    figures: dict[str, Any] = runner.invoke(contender, event).result()
    return figures
