"""Where a drill happens: a bundle of its own, with the real handlers and a fake Sume.

The fake answers over real HTTP, functions run in processes of their own, and the database is a
real one. Only time is moved, in the tables, because nobody wants to wait ten minutes for a claim
to get old.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import requests
from psycopg.rows import dict_row
from sume_jobs.decisions import signature

from local.bundle import Bundle, BundleError, Setup
from local.fake_sume import FakeSume
from local.gateway import WEBHOOK
from local.runner import PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from local.runner import Invocation

# The longest that anything in a drill is waited for, in seconds.
PATIENCE: Final = 30.0
LOOK_SECONDS: Final = 0.02
# Far more than any wait of the queue, far less than the life of a key.
LATER: Final = 3600.0
ENVIRONMENT: Final = {
    # Pace is not what a drill is about, but for its gates.
    "SUME_WRITES_PER_MINUTE": "60000",
    "SUME_READS_PER_MINUTE": "60000",
    "SUME_TIMEOUT_SECONDS": "20",
}

# The tables as at the beginning, but for their ids: the fake remembers the keys made of those.
EMPTY: Final = """
truncate render_jobs, gen_job, webhook_event, job_conflict, follow_up, job_history"""
RESET_PACE: Final = """
update pace_budget set spent_until = '-infinity';
update pace_gate set closed_until = null, reason = null, closures = 0, probe_until = null,
                     ambiguous = '{}'"""
AGE: Final = """
update render_jobs
   set claimed_at = claimed_at - make_interval(secs => %(seconds)s),
       unknown_since = unknown_since - make_interval(secs => %(seconds)s),
       run_after = run_after - make_interval(secs => %(seconds)s)
 where status in ('pending', 'submitting');
update gen_job
   set next_poll_at = next_poll_at - make_interval(secs => %(seconds)s),
       cancel_due_at = cancel_due_at - make_interval(secs => %(seconds)s);
update pace_gate
   set closed_until = closed_until - make_interval(secs => %(seconds)s),
       probe_until = probe_until - make_interval(secs => %(seconds)s);
update webhook_event set received_at = received_at - make_interval(secs => %(seconds)s)"""


@dataclass(frozen=True, slots=True)
class Promise:
    """Something that must hold, whether it did, and what was seen."""

    name: str
    held: bool
    seen: str


@dataclass
class Notes:
    """What is written down while a scenario runs."""

    steps: list[str] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    # Jobs that others made at Sume while the scenario ran.
    others: int = 0


class World:
    """One bundle, used by one scenario after the other; `begin` makes it as new."""

    def __init__(self, bundle: Bundle, fake: FakeSume) -> None:
        self.bundle = bundle
        self.fake = fake
        self.notes = Notes()
        self._calls = ThreadPoolExecutor(8, thread_name_prefix="drill")
        self._requests = self._deliveries = 0
        self._billed: dict[str, int] = {}
        self._replays = 0
        self._make_sure()

    def _make_sure(self) -> None:
        """Never anything but this very bundle: a drill empties tables."""
        environment = self.bundle.runner.environment
        server = self.bundle.server
        is_own = (
            server is not None
            and environment["DATABASE_URL"] == server.url
            and environment["SUME_BASE_URL"] == self.fake.url
            and self.fake.url.startswith("http://127.0.0.1:")
        )
        if not is_own:
            raise BundleError("a drill only runs against a database and a Sume of its own")

    def begin(self) -> None:
        """Empty the tables, open the gates, have the fake behave, begin a new page of notes."""
        self.fake.behave()
        self.execute(EMPTY)
        self.execute(RESET_PACE)
        self.notes = Notes()
        self._requests = len(self.fake.requests)
        self._deliveries = len(self.fake.deliveries)
        self._billed = self.fake.billed_by_key
        self._replays = self.fake.stats()["replays"]

    def close(self) -> None:
        """Let go of the calls in progress; the bundle is its owner's to stop."""
        self._calls.shutdown(wait=False, cancel_futures=True)

    # Notes -------------------------------------------------------------------------------------

    def did(self, sentence: str) -> None:
        """Write down what was done."""
        self.notes.steps.append(sentence)

    def holds(self, name: str, held: bool, seen: object) -> None:
        """Write down a promise, and whether it held."""
        self.notes.promises.append(Promise(name, held, str(seen)))

    # The database ------------------------------------------------------------------------------

    def execute(self, statements: str, **values: Any) -> list[dict[str, Any]]:
        """Run statements as the bundle's own role; the rows of the last one."""
        with psycopg.connect(
            self.bundle.database_url, autocommit=True, row_factory=dict_row
        ) as connection:
            rows: list[dict[str, Any]] = []
            for statement in statements.split(";"):
                cursor = connection.execute(statement, values)
                rows = cursor.fetchall() if cursor.description else []
            return rows

    def enqueue(self, count: int = 1) -> list[int]:
        """Insert rows, as any application does; their ids."""
        rows = self.execute(
            "insert into render_jobs (prompt) select 'A lighthouse, number ' || n"
            " from generate_series(1, %(count)s::int) as n returning id",
            count=count,
        )
        ids = [row["id"] for row in rows]
        self.notes.rows += ids
        self.did(f"inserted {count} row{'s' if count > 1 else ''}")
        return ids

    def row(self, row_id: int) -> dict[str, Any]:
        """A row of render_jobs, with the status of its job as `job_status`."""
        (found,) = self.execute(
            "select r.*, g.status as job_status from render_jobs r"
            " left join gen_job g on g.job_id = r.sume_job_id where r.id = %(id)s",
            id=row_id,
        )
        return found

    def key(self, row_id: int) -> str:
        """The key that a row's first generation has, also before it is made."""
        return f"{self.bundle.prefix}-{row_id}"

    def count(self, table: str, condition: str = "true") -> int:
        """Count rows of a table."""
        number: int = self.execute(f"select count(*) as n from {table} where {condition}")[0]["n"]
        return number

    def later(self, seconds: float = LATER) -> None:
        """Move all that waits for a time nearer, by so many seconds."""
        self.execute(AGE, seconds=seconds)

    # The functions -----------------------------------------------------------------------------

    def start(self, name: str) -> Future[Invocation]:
        """Invoke a function and do not wait for it."""
        return self._calls.submit(self.bundle.runner.invoke, name, {})

    def invoke(self, name: str) -> dict[str, Any]:
        """Invoke a function; its counts. Raises `local.runner.InvocationError` if it failed."""
        counts: dict[str, Any] = self.bundle.invoke(name)
        return counts

    def kill(self, name: str, call: Future[Invocation]) -> None:
        """SIGKILL the process that a call runs in, and wait until the call has ended by that."""
        self.bundle.runner.kill(name)
        if call.result(PATIENCE).failure is None:
            raise RuntimeError(f"{name} ended by itself before it was killed")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Look now and then until it holds. Raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited in vain until {what}")
            time.sleep(LOOK_SECONDS)

    # The outside -------------------------------------------------------------------------------

    def billed(self) -> dict[str, int]:
        """Jobs that the fake billed for each key since the scenario began."""
        now = self.fake.billed_by_key
        return {
            key: number - self._billed.get(key, 0)
            for key, number in now.items()
            if number > self._billed.get(key, 0)
        }

    def until_billed(self, jobs: int) -> None:
        """Wait until the fake has accepted so many jobs."""
        self.until(lambda: sum(self.billed().values()) >= jobs, f"{jobs} jobs were accepted")

    def submits(self) -> int:
        """How many submits came to the fake since the scenario began."""
        return sum(request.submit for request in self.fake.requests[self._requests :])

    def outside(self) -> dict[str, int]:
        """What the outside saw of the scenario."""
        return {
            "requests": len(self.fake.requests) - self._requests,
            "submits": self.submits(),
            "replays": self.fake.stats()["replays"] - self._replays,
            "jobs_billed": sum(self.billed().values()),
            "webhooks": len(self.fake.deliveries) - self._deliveries,
        }

    def submit_as_another(self, row_id: int) -> str:
        """Use a row's key before the row does, with the same request; the job's id."""
        row = self.row(row_id)
        body = {
            "mode": "webhook",
            "model": row["model"],
            "prompt": row["prompt"],
            "webhook_url": self.bundle.gateway.url + WEBHOOK.path,
        }
        answer = requests.post(
            self.fake.url + "/v1/images",
            data=json.dumps(body, ensure_ascii=False).encode(),
            headers={
                "Authorization": f"Bearer {self.bundle.state.api_key}",
                "Content-Type": "application/json",
                "Idempotency-Key": self.key(row_id),
            },
            timeout=PATIENCE,
        )
        self.notes.others += 1
        job_id: str = answer.json()["data"]["job"]["id"]
        return job_id

    def finish(self, row_id: int, status: str = "completed") -> None:
        """Have a row's job end at Sume, and wait until its webhook was delivered or given up."""
        self.fake.set_status(self.row(row_id)["sume_job_id"], status)
        self.until_delivered()

    def until_delivered(self) -> None:
        """Wait until no webhook is under way."""
        self.until(
            lambda: not self.fake.stats()["webhooks"]["under_way"], "the webhooks were delivered"
        )

    def deliver(
        self, body: bytes, *, secret: str | None = None, at: float | None = None
    ) -> tuple[int, str]:
        """POST a webhook of our own making; the HTTP status and the outcome (or the error)."""
        stamp = str(int(time.time() if at is None else at))
        signed = signature.sign(stamp, body, secret or self.bundle.state.webhook_secret)
        answer = requests.post(
            self.bundle.gateway.url + WEBHOOK.path,
            data=body,
            headers={
                "Content-Type": "application/json",
                "X-Sume-Timestamp": stamp,
                "X-Sume-Signature": signed,
            },
            timeout=PATIENCE,
        )
        said = answer.json()
        return answer.status_code, str(said.get("outcome") or said.get("error"))

    # The end -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let everything come to its end: what is due is sent, jobs end, results are fetched."""
        self.fake.behave()
        for _ in range(10):
            self.later()
            self.invoke("reap")
            self.invoke("submit")
            for job in self.execute(
                "select job_id from gen_job where status in ('queued', 'processing')"
            ):
                at_sume = self.fake.jobs.get(job["job_id"])
                if at_sume is not None and not at_sume.terminal:
                    self.fake.set_status(at_sume.id, "completed")
            self.until_delivered()
            self.later()
            self.invoke("poll")
            if not self.count("job_customer", "state = 'working'") and not self.count(
                "gen_job", "status = 'completed' and result is null"
            ):
                return


@contextlib.contextmanager
def open_world(code_folder: Path = PROJECT) -> Iterator[World]:
    """Start a private bundle on free ports in a temporary folder, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="sume-jobs-drill-")).resolve()
    fake = FakeSume(auto_advance=False, webhook_backoff=0.1)
    setup = Setup(
        folder=folder,
        environment=ENVIRONMENT,
        private=True,
        fake=fake,
        code_folder=code_folder,
    )
    try:
        with Bundle(setup) as bundle:
            # Two at once, as the schedule and an operator may invoke it.
            reap = bundle.runner.functions["reap"]
            bundle.runner.functions["reap"] = replace(reap, concurrency=2)
            world = World(bundle, fake)
            try:
                yield world
            finally:
                world.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
