"""One process of one function on two wires, everything else in order; and what must hold after.

What a crash point needs: a database, a fake Sume and a fake AWS that serve run after run, wires
that count what the function says to each, and the schedules, which go on afterwards as if nothing
had been.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg.rows import dict_row
from sume_jobs.store import migrations, render_jobs

from local.fake_sume import FakeSume
from local.fake_sume.model import Book
from local.fake_sume.service import Log
from tests.reliability import invariants
from tests.reliability.cloud import Cloud
from tests.reliability.invariants import Violation
from tests.reliability.wire import DatabaseWire, HttpWire, Points, Side
from tests.reliability.world import age_statement
from tests.support.bundle import SECRET, event_body, scheduled_event, webhook_event
from tests.support.container import Container, Nursery
from tests.support.folders import temporary_folder
from tests.support.invariants import HISTORY
from tests.support.postgres import Database, Server, create_database, drop_database

How = Literal["kill", "cut"]
Row = dict[str, Any]
# What a caller takes for a sign to come back.
UNAVAILABLE = 503


@dataclass
class Scenario:
    """One way a function can go. `prepare` gives the event; `settings` come on top of the rest."""

    function: str
    name: str
    prepare: Callable[[Stage], dict[str, Any] | None]
    settings: dict[str, str] = field(default_factory=dict)
    # What the rows and jobs must have come to, as (row status, job status) in any order.
    ends: set[tuple[str, str | None]] | None = None
    # What must hold besides; raises Violation.
    check: Callable[[Stage], None] = lambda _stage: None
    # A caller of the API who does not come back after a failure.
    comes_back: bool = True

    @property
    def title(self) -> str:
        return f"{self.function}/{self.name}"


class Stage:
    """What all runs share. `expected` are the objects that the archive must come to hold."""

    def __init__(self, server: Server, nursery: Nursery) -> None:
        self.server, self.nursery, self.name = server, nursery, f"sume_crash_points_{os.getpid()}"
        create_database(server, self.name)
        self.database = Database(server, self.name)
        with psycopg.connect(self.database.url, autocommit=True, row_factory=dict_row) as owner:
            migrations.migrate(owner)
        self.admin = self.database.connection
        self.admin.execute(HISTORY)  # type: ignore[arg-type]
        self.admin.execute("set session_replication_role = replica")
        self._owner = psycopg.connect(self.database.url, autocommit=True)
        self._age = age_statement(self.admin)
        self._reset = reset_statement(self.admin)
        self.points = Points()
        parts = server.parts()
        self.database_wire = DatabaseWire((parts["host"], int(parts["port"])), self.points)
        self.fake = FakeSume(auto_advance=False, webhook_secret=SECRET).start()
        self.sume_wire = HttpWire(("127.0.0.1", int(self.fake.url.rpartition(":")[2])), self.points)
        self.cloud = Cloud()
        self.cloud_wire = HttpWire(("127.0.0.1", self.cloud.server_port), self.points, "aws")
        self.scenario: Scenario
        self.expected: dict[str, bytes] = {}
        self._calm: dict[tuple[Any, ...], Container] = {}
        self.runs = self.struck = 0

    def close(self) -> None:
        for container in self._calm.values():
            container.close()
        self.fake.stop()
        self.cloud.close()
        for wire in (self.database_wire, self.sume_wire, self.cloud_wire):
            wire.close()
        self._owner.close()
        self.database.close()
        drop_database(self.server, self.name)

    # Containers ---------------------------------------------------------------------------------

    def environment(self, through_wires: bool) -> dict[str, str]:
        database = self.database.url
        fake, cloud = self.fake.url, f"http://127.0.0.1:{self.cloud.server_port}"
        if through_wires:
            parts = self.server.parts()
            database = database.replace(f":{parts['port']}/", f":{self.database_wire.port}/")
            fake, cloud = self.sume_wire.url, self.cloud_wire.url
        return {
            "DATABASE_URL": database,
            "SUME_API_KEY": "sume_live_test_key_0123456789",
            "SUME_WEBHOOK_SECRETS": SECRET,
            "SUME_BASE_URL": fake,
            "SUME_WRITES_PER_MINUTE": "60000",
            "SUME_READS_PER_MINUTE": "60000",
            "SUBMIT_CONCURRENCY": "2",
            "AWS_ENDPOINT_URL": cloud,
            **self.scenario.settings,
        }

    def call(self, function: str, event: Any = None) -> Any:
        """Invoke a function that nothing happens to."""
        kind = (function, *self.scenario.settings.items())
        container = self._calm.get(kind)
        if container is None or not container.alive:
            container = self._calm[kind] = self.nursery.container(self.environment(False))
        event = scheduled_event() if event is None else event
        return container.start(function, event, 60.0).result()

    def deliver(self, event: dict[str, Any]) -> int:
        status: int = self.call("webhook", event)["statusCode"]
        return status

    def age(self, seconds: float) -> None:
        self.admin.execute(self._age.replace("@@", f"{seconds:.6f}"))  # type: ignore[arg-type]

    def query(self, statement: str, *values: Any) -> list[Row]:
        return self.database.query(statement, *values)

    def execute(self, statement: str, values: Any = None) -> None:
        # As the owner: with triggers, as the product would.
        self._owner.execute(statement, values)  # type: ignore[arg-type]

    # Runs ---------------------------------------------------------------------------------------

    def _set(self, scenario: Scenario) -> dict[str, Any]:
        """Make the scenario ready, with nothing left of the one before; gives the event."""
        self.scenario = scenario
        self.admin.execute(self._reset)  # type: ignore[arg-type]
        self.cloud.clear()
        self.expected = {}
        service = self.fake._service
        service.scripts.clear()
        service.book, service.log = Book(), Log(None)
        return scenario.prepare(self) or scheduled_event()

    def run(self, scenario: Scenario, at: int | None, side: Side, how: How) -> list[str]:
        """One run with one point struck (None: none); the names of the points that were passed."""
        self.runs += 1
        event = self._set(scenario)
        victim = self.nursery.container(self.environment(True))
        if at is None:
            self.points.arm(0, side, lambda: None)
        else:
            self.points.arm(at, side, victim.kill if how == "kill" else lambda: None)
        reply = victim.start(scenario.function, event, 60.0).wait(60)
        names = list(self.points.names)
        self.points.at = None
        died = bool(reply.get("died"))
        output = victim.output()
        victim.close()
        # Answers that come at the same moment are recorded in one statement or in two, so that
        # a run may be a point shorter than the one that was counted.
        struck = self.points.struck
        self.struck += struck
        if died != (struck and how == "kill"):
            raise Violation(f"the process died or lived on unexpectedly: {reply}\n{output}")
        if "error" in reply and reply["kind"] != "DatabaseUnavailable":
            raise Violation(f"{scenario.function} raised {reply}\n{output}")
        self._come_back(scenario, event, reply)
        self._rest()
        self._check()
        return names

    def _come_back(self, scenario: Scenario, event: dict[str, Any], reply: dict[str, Any]) -> None:
        """Who called does what it does after a failure, as long as it gets no good answer."""
        result = reply.get("result")
        if scenario.function in ("webhook", "api"):
            # Sume delivers again, a client of the API sends its request again.
            status = result["statusCode"] if result else UNAVAILABLE
            if status == UNAVAILABLE and scenario.comes_back:
                status = self.call(scenario.function, event)["statusCode"]
            if status >= 300 and (status, scenario.comes_back) not in OPEN_ENDS:
                raise Violation(f"{scenario.function} answered {status}: {result}")
        if scenario.function == "archive":
            # SQS delivers what was not taken again.
            for receives in range(2, 6):
                if result and not result["batchItemFailures"]:
                    return
                for record in event["Records"]:
                    record["attributes"]["ApproximateReceiveCount"] = str(receives)
                result = self.call("archive", event)
            raise Violation(f"never archived: {result}")

    def _rest(self) -> None:
        for passed in range(25):
            for job in list(self.fake.jobs.values()):
                if not job.terminal:
                    self.fake.set_status(job.id, "completed", webhook=False)
            # What waits for the next day waits longer than what waits for anything else.
            self.age(1020 if passed < 10 else 30_000)
            for function in ("reap", "submit", "poll"):
                self.call(function)
            if self._targets():
                self.call("dispatch")
            if not invariants.unrest(self.query) and not self._undispatched():
                return
        raise Violation(f"lost: no rest: {invariants.unrest(self.query)}")

    def _targets(self) -> list[list[tuple[str, str]]]:
        """What each target that is set has taken."""
        taken = {"FOLLOW_UP_QUEUE_URL": self.cloud.queued, "FOLLOW_UP_EVENT_BUS": self.cloud.put}
        return [found for name, found in taken.items() if name in self.scenario.settings]

    def _undispatched(self) -> bool:
        return bool(self._targets()) and bool(
            self.query("select id from follow_up where dispatched_at is null")
        )

    def _check(self) -> None:
        generations = int(self.scenario.settings.get("MAX_GENERATIONS", "1"))
        invariants.check_bills(
            self.fake.billed_by_key, [(post.key, post.body) for post in self.fake.posts()]
        )
        invariants.check_history(self.query, generations)
        invariants.check_follow_ups(self.query)
        invariants.check_rest(self.query, self.fake.jobs)
        for taken in self._targets():
            invariants.check_dispatched(self.query, taken)
        self._check_archive()
        if self.scenario.ends is not None:
            found = {
                (row["status"], row["job_status"])
                for row in self.query(
                    "select r.status, g.status as job_status from render_jobs r"
                    " left join gen_job g on g.job_id = r.sume_job_id"
                )
            }
            if found != self.scenario.ends:
                raise Violation(f"ended as {found}, not as {self.scenario.ends}")
        self.scenario.check(self)

    def _check_archive(self) -> None:
        """Every artifact is there, whole, and named in the manifest and under the job's result."""
        stored = dict(self.cloud.objects)
        manifests = [name for name in stored if name.endswith("/manifest.json")]
        listed = {
            copy["name"]: copy["bytes"]
            for name in manifests
            for copy in json.loads(stored.pop(name))["artifacts"]
        }
        found = {name.partition("/")[2]: content for name, content in stored.items()}
        sizes = {name: len(content) for name, content in self.expected.items()}
        if found != self.expected or listed != sizes:
            raise Violation(f"archived {sorted(found)}, listed {listed}, not {sizes}")
        noted = self.query("select job_id from gen_job where result ? 'archive'")
        if len(noted) != len(manifests):
            raise Violation(f"lost: archived {manifests}, noted of {noted}")

    # Building blocks of scenarios -----------------------------------------------------------------

    def insert(self, count: int = 1) -> None:
        for number in range(count):
            self.execute("insert into render_jobs (prompt) values (%s)", (f"prompt {number}",))

    def submitted(self, count: int = 1) -> list[str]:
        """Rows whose jobs are recorded; the ids of the jobs."""
        self.insert(count)
        self.call("submit")
        return list(self.fake.jobs)

    def cancel(self) -> None:
        self.execute(render_jobs.REQUEST_CANCEL, {"id": 1})

    def event(self, job_id: str, status: str, **more: Any) -> dict[str, Any]:
        """The delivery of a job's event."""
        return webhook_event(event_body(job_id, status, f"evt_{job_id}_{status}", **more))


# What may be answered in the end besides success: too late to cancel, and a failure of which the
# caller has had enough.
OPEN_ENDS = {(409, True), (UNAVAILABLE, False)}


def reset_statement(admin: psycopg.Connection[Any]) -> str:
    """Empties every table of the product and of the history, and opens the gates."""
    tables = admin.execute(
        "select schemaname || '.' || tablename as name from pg_tables"
        " where schemaname in ('public', 'test_history')"
        " and tablename not like '%migration%' and tablename not like 'pace%'"
    ).fetchall()
    cleared = "; ".join(f"delete from {row['name']}" for row in tables)
    return (
        f"{cleared}; select setval('render_jobs_id_seq', 1, false);"
        " update pace_budget set spent_until = '-infinity', day_ends = null, day_sent = 0;"
        " update pace_gate set closed_until = null, reason = null, closures = 0,"
        " probe_until = null, ambiguous = '{}', detail = null, guarded_from = null"
    )


@contextmanager
def stage(server: Server) -> Iterator[Stage]:
    """A stage with a nursery of its own."""
    with temporary_folder() as folder:
        nursery = Nursery(Path(folder), clients=("sqs", "events", "s3"))
        try:
            made = Stage(server, nursery)
            try:
                yield made
            finally:
                made.close()
        finally:
            nursery.close()
