"""Crash-point explorer: every statement and every call of every function, killed and cut.

    python -m tests.reliability.crash_points                 all scenarios, figures at the end
    python -m tests.reliability.crash_points submit/early    one scenario, with its points

A scenario is run once to count what crosses the two wires of its function (to PostgreSQL and to
Sume, or to the queue). Then it is run again for each of those points: a real process is ended by
SIGKILL there, or its connection is cut there, before the message arrives or after it was answered.
Then the schedules run until nothing moves any more, and the promises are checked.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "shared")]

import psycopg
from psycopg.rows import dict_row
from sume_jobs.store import migrations, render_jobs

from local.fake_sume import Behaviour, FakeSume
from local.fake_sume.model import Book
from local.fake_sume.service import Log
from tests.reliability import invariants
from tests.reliability.invariants import Violation
from tests.reliability.wire import DatabaseWire, HttpWire, Points, Side
from tests.reliability.world import age_statement
from tests.support.bundle import SECRET, event_body, scheduled_event, webhook_event
from tests.support.container import Container, Nursery
from tests.support.invariants import HISTORY
from tests.support.postgres import Database, Server, create_database, drop_database

How = Literal["kill", "cut"]
HOWS: tuple[How, ...] = ("kill", "cut")
SIDES: tuple[Side, ...] = ("before", "after")
QUEUE_PATH = "/123456789012/follow-ups"


class Queue(ThreadingHTTPServer):
    """Takes SQS's SendMessageBatch and keeps what was sent; `refuse` refuses the next batches."""

    daemon_threads = True

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []
        self.refuse = 0
        super().__init__(("127.0.0.1", 0), _QueueHandler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        """A killed client resets its connection: that is what this is for."""


class _QueueHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Queue

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        refused = self.server.refuse > 0
        self.server.refuse -= refused
        answer: dict[str, Any] = {"Successful": [], "Failed": []}
        for entry in request["Entries"]:
            if refused:
                answer["Failed"].append(
                    {"Id": entry["Id"], "Code": "InternalError", "SenderFault": False}
                )
                continue
            body = entry["MessageBody"]
            self.server.taken.append((json.loads(body)["id"], body))
            digest = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
            answer["Successful"].append(
                {"Id": entry["Id"], "MessageId": entry["Id"], "MD5OfMessageBody": digest}
            )
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/x-amz-json-1.0")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Silent."""


@dataclass
class Scenario:
    """One way a function can go. `prepare` gives the event; `settings` come on top of the rest."""

    function: str
    name: str
    prepare: Callable[[Stage], dict[str, Any] | None]
    settings: dict[str, str] = field(default_factory=dict)
    # What the rows and jobs must have come to, as (row status, job status) in any order.
    ends: set[tuple[str, str | None]] | None = None

    @property
    def title(self) -> str:
        return f"{self.function}/{self.name}"


class Stage:
    """What all runs share: a server, a database, the wires; and a fake and a queue for each run."""

    def __init__(self, server: Server, nursery: Nursery) -> None:
        self.server, self.nursery, self.name = server, nursery, f"sume_crash_points_{os.getpid()}"
        create_database(server, self.name)
        self.database = Database(server, self.name)
        with psycopg.connect(self.database.url, autocommit=True, row_factory=dict_row) as owner:
            migrations.migrate(owner)
        self.admin = self.database.connection
        self.admin.execute(HISTORY)  # type: ignore[arg-type]
        self.admin.execute("set session_replication_role = replica")
        self._age = age_statement(self.admin)
        self._reset = reset_statement(self.admin)
        self.points = Points()
        parts = server.parts()
        self.database_wire = DatabaseWire((parts["host"], int(parts["port"])), self.points)
        self.sume_wire = HttpWire(("127.0.0.1", 9), self.points)
        self.queue_wire = HttpWire(("127.0.0.1", 9), self.points, "queue")
        self.fake = FakeSume(auto_advance=False, webhook_secret=SECRET).start()
        self.sume_wire.target = ("127.0.0.1", int(self.fake.url.rpartition(":")[2]))
        self.queue = Queue()
        self.queue_wire.target = ("127.0.0.1", self.queue.server_port)
        self.scenario: Scenario
        self._calm: dict[tuple[str, ...], Container] = {}
        self.runs = self.struck = 0

    def close(self) -> None:
        for container in self._calm.values():
            container.close()
        self.fake.stop()
        self.queue.shutdown()
        self.queue.server_close()
        for wire in (self.database_wire, self.sume_wire, self.queue_wire):
            wire.close()
        self.database.close()
        drop_database(self.server, self.name)

    # Containers ---------------------------------------------------------------------------------

    def environment(self, through_wires: bool) -> dict[str, str]:
        database = self.database.url
        fake, queue = self.fake.url, f"http://127.0.0.1:{self.queue.server_port}"
        if through_wires:
            parts = self.server.parts()
            database = database.replace(f":{parts['port']}/", f":{self.database_wire.port}/")
            fake, queue = self.sume_wire.url, self.queue_wire.url
        return {
            "DATABASE_URL": database,
            "SUME_API_KEY": "sume_live_test_key_0123456789",
            "SUME_WEBHOOK_SECRETS": SECRET,
            "SUME_BASE_URL": fake,
            "SUME_WRITES_PER_MINUTE": "60000",
            "SUME_READS_PER_MINUTE": "60000",
            "SUBMIT_CONCURRENCY": "2",
            "AWS_ENDPOINT_URL": queue,
            **self.scenario.settings,
        }

    def call(self, function: str, event: Any = None) -> Any:
        """Invoke a function that nothing happens to."""
        kind = (function, *self.scenario.settings)
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

    def query(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        return self.database.query(statement, *values)

    def execute(self, statement: str, values: Any = None) -> None:
        # As the owner: with triggers, as the product would.
        with self.database.session(autocommit=True) as owner:
            owner.execute(statement, values)  # type: ignore[arg-type]

    # Runs ---------------------------------------------------------------------------------------

    def _set(self, scenario: Scenario) -> dict[str, Any] | None:
        """Make the scenario ready, with nothing left of the one before; gives the event."""
        self.scenario = scenario
        self.admin.execute(self._reset)  # type: ignore[arg-type]
        self.queue.taken.clear()
        self.queue.refuse = 0
        service = self.fake._service
        service.scripts.clear()
        service.book, service.log = Book(), Log(None)
        return scenario.prepare(self)

    def run(self, scenario: Scenario, at: int | None, side: Side, how: How) -> list[str]:
        """One run with one point struck (None: none); the names of the points that were passed."""
        self.runs += 1
        event = self._set(scenario)
        victim = self.nursery.container(self.environment(True))
        if at is None:
            self.points.arm(0, side, lambda: None)
        else:
            self.points.arm(at, side, victim.kill if how == "kill" else lambda: None)
        reply = victim.start(
            scenario.function, scheduled_event() if event is None else event, 60.0
        ).wait(60)
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
        if scenario.function == "webhook":
            self._deliver_again(event or {}, reply)
        self._rest()
        self._check()
        return names

    def _deliver_again(self, event: dict[str, Any], reply: dict[str, Any]) -> None:
        """As Sume does: what was not answered with 2xx comes again."""
        status = (reply.get("result") or {}).get("statusCode")
        if status not in (None, 200, 503):
            raise Violation(f"a good delivery was answered {reply}")
        if status != 200 and self.deliver(event) != 200:
            raise Violation("the second delivery was not taken")

    def _rest(self) -> None:
        for _ in range(25):
            for job in list(self.fake.jobs.values()):
                if not job.terminal:
                    self.fake.set_status(job.id, "completed", webhook=False)
            self.age(1020)
            for function in ("reap", "submit", "poll"):
                self.call(function)
            if self._has_queue:
                self.call("dispatch")
            if not invariants.unrest(self.query) and not self._undispatched():
                return
        raise Violation(f"lost: no rest: {invariants.unrest(self.query)}")

    @property
    def _has_queue(self) -> bool:
        return "FOLLOW_UP_QUEUE_URL" in self.scenario.settings

    def _undispatched(self) -> bool:
        return self._has_queue and bool(
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
        if self._has_queue:
            invariants.check_dispatched(self.query, self.queue.taken)
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
        " update pace_budget set spent_until = '-infinity';"
        " update pace_gate set closed_until = null, reason = null, closures = 0,"
        " probe_until = null, ambiguous = '{}'"
    )


# Scenarios --------------------------------------------------------------------------------------

RETRYABLE = {"code": "generation_failed", "retryable": True}


def _rows(*answers: Behaviour, count: int = 1) -> Callable[[Stage], None]:
    """Rows to be submitted, and how Sume answers the first of the submits."""

    def prepare(stage: Stage) -> None:
        stage.insert(count)
        stage.fake.on_submit(*answers)

    return prepare


def _early(stage: Stage) -> None:
    """The job ends, and its webhook is answered, before the submit is."""

    def deliver(job: Any) -> None:
        stage.fake.set_status(job.id, "completed", webhook=False)
        stage.deliver(stage.event(job.id, "completed"))

    stage.insert()
    stage.fake.on_submit(Behaviour(call=deliver))


def _wish_meanwhile(stage: Stage) -> None:
    stage.insert()
    stage.fake.on_submit(Behaviour(call=lambda _job: stage.cancel()))


def _wish_before(stage: Stage) -> None:
    stage.insert()
    stage.cancel()
    stage.insert()


def _replay(stage: Stage, ended: bool = False) -> None:
    """Sume has the job already; the answer was lost."""
    stage.insert()
    stage.fake.on_submit(Behaviour(drop="after"))
    stage.call("submit")
    if ended:
        (job,) = stage.fake.jobs
        stage.fake.set_status(job, "completed", webhook=False)
    stage.age(60)


def _used_up(stage: Stage) -> None:
    stage.insert()
    stage.execute("update render_jobs set attempts = 8, unknown_since = now()")


def _half_open(stage: Stage) -> None:
    stage.insert(2)
    stage.fake.on_submit(Behaviour(status=429))
    stage.call("submit")
    stage.age(200)


def _stale(stage: Stage) -> None:
    """One claim died after Sume had accepted, another before anything arrived there."""
    stage.insert(2)
    stage.fake.on_submit(Behaviour(drop="after"), Behaviour(drop="before"))
    stage.call("submit")
    stage.execute(
        "update render_jobs set status = 'submitting', claim_token = gen_random_uuid(),"
        " claimed_at = now() - interval '20 minutes' where status = 'pending'"
    )


def _too_old(stage: Stage) -> None:
    _stale(stage)
    stage.execute("update render_jobs set unknown_since = now() - interval '2 days'")


def _failed(stage: Stage) -> None:
    (job,) = stage.submitted()
    stage.fake.set_status(job, "failed", RETRYABLE, webhook=False)
    stage.deliver(stage.event(job, "failed", error=RETRYABLE))


def _end(status: str, *reads: Behaviour, error: Any = None) -> Callable[[Stage], None]:
    """Jobs to be polled that have come to `status` at Sume."""

    def prepare(stage: Stage) -> None:
        for job in stage.submitted(2):
            stage.fake.set_status(job, status, error, webhook=False)
        stage.fake.on_read(*reads)
        stage.age(60)

    return prepare


def _result(*answers: Behaviour) -> Callable[[Stage], None]:
    def prepare(stage: Stage) -> None:
        (job,) = stage.submitted()
        stage.fake.set_status(job, "completed", webhook=False)
        stage.deliver(stage.event(job, "completed"))
        stage.fake.on_result(*answers)

    return prepare


def _held(stage: Stage) -> None:
    """An event that came early and that neither side has looked at again."""
    (job,) = stage.submitted()
    stage.fake.set_status(job, "failed", RETRYABLE, webhook=False)
    stage.execute(
        "insert into webhook_event (event_id, job_id, job_status, error, body, outcome)"
        " values ('evt_early', %s, 'failed', '{\"code\": \"generation_failed\"}', '{}', 'held')",
        (job,),
    )


def _wanted_canceled(stage: Stage) -> None:
    stage.submitted()
    stage.cancel()


def _too_late_to_cancel(stage: Stage) -> None:
    _wanted_canceled(stage)
    stage.fake.on_cancel(Behaviour(status=409, code="job_generation_already_started"))


def _event(status: str, at_sume: str | None = None, **more: Any) -> Callable[[Stage], Any]:
    def prepare(stage: Stage) -> dict[str, Any]:
        (job,) = stage.submitted()
        if status in invariants.TERMINAL:
            stage.fake.set_status(job, status, more.get("error"), webhook=False)
        return stage.event(job, status, **more)

    return prepare


def _event_for_unknown(stage: Stage) -> dict[str, Any]:
    _replay(stage, ended=True)
    (job,) = stage.fake.jobs
    return stage.event(job, "completed")


def _event_again(stage: Stage) -> dict[str, Any]:
    (job,) = stage.submitted()
    stage.fake.set_status(job, "completed", webhook=False)
    stage.deliver(stage.event(job, "completed"))
    return stage.event(job, "completed")


def _event_too_late(stage: Stage) -> dict[str, Any]:
    (job,) = stage.submitted()
    stage.fake.set_status(job, "completed", webhook=False)
    stage.deliver(stage.event(job, "completed"))
    return stage.event(job, "processing")


def _owed(refuse: int = 0) -> Callable[[Stage], None]:
    def prepare(stage: Stage) -> None:
        for job in stage.submitted(2):
            stage.fake.set_status(job, "completed", webhook=False)
            stage.deliver(stage.event(job, "completed"))
        stage.queue.refuse = refuse

    return prepare


TO_QUEUE = {
    "FOLLOW_UP_QUEUE_URL": f"https://sqs.eu-central-1.amazonaws.com{QUEUE_PATH}",
}
DONE: set[tuple[str, str | None]] = {("submitted", "completed")}

SCENARIOS = [
    Scenario("submit", "accepted", _rows(count=3), ends=DONE),
    Scenario("submit", "refused_429", _rows(Behaviour(status=429), count=2), ends=DONE),
    Scenario("submit", "stopped_402", _rows(Behaviour(status=402), count=2), ends=DONE),
    Scenario("submit", "refused_400", _rows(Behaviour(status=400))),
    Scenario("submit", "unknown_500_accepted", _rows(Behaviour(status=500)), ends=DONE),
    Scenario(
        "submit", "unknown_500_not_accepted", _rows(Behaviour(status=500, accept=False)), ends=DONE
    ),
    Scenario("submit", "answer_lost", _rows(Behaviour(drop="after")), ends=DONE),
    Scenario("submit", "replay", _replay, ends=DONE),
    Scenario("submit", "replay_of_an_ended_job", lambda stage: _replay(stage, True), ends=DONE),
    Scenario("submit", "early_webhook", _early, ends=DONE),
    Scenario("submit", "cancel_wish_meanwhile", _wish_meanwhile),
    Scenario("submit", "cancel_wish_before", _wish_before),
    Scenario("submit", "probe_through_half_open_gate", _half_open, ends=DONE),
    Scenario("submit", "attempts_used_up", _used_up, ends={("failed", None)}),
    Scenario("reap", "stale_claims", _stale, ends=DONE),
    Scenario("reap", "key_too_old", _too_old, ends={("failed", None)}),
    Scenario("reap", "another_generation", _failed, {"MAX_GENERATIONS": "2"}),
    Scenario("reap", "no_other_generation", _failed, ends={("submitted", "failed")}),
    Scenario("poll", "completed_with_result", _end("completed"), ends=DONE),
    Scenario("poll", "processing", _end("processing"), ends=DONE),
    Scenario("poll", "failed", _end("failed", error=RETRYABLE), ends={("submitted", "failed")}),
    Scenario("poll", "canceled", _end("canceled"), ends={("submitted", "canceled")}),
    Scenario("poll", "read_fails", _end("completed", Behaviour(status=500)), ends=DONE),
    Scenario("poll", "read_429", _end("completed", Behaviour(status=429)), ends=DONE),
    Scenario("poll", "read_401", _end("completed", Behaviour(status=401)), ends=DONE),
    Scenario("poll", "stale_read", _end("completed", Behaviour(job_status="queued")), ends=DONE),
    Scenario("poll", "result_not_there_yet", _result(Behaviour(status=409)), ends=DONE),
    Scenario("poll", "held_event", _held, ends={("submitted", "failed")}),
    Scenario("poll", "cancel_wish", _wanted_canceled),
    Scenario("poll", "cancel_too_late", _too_late_to_cancel, ends=DONE),
    Scenario("webhook", "completed", _event("completed"), ends=DONE),
    Scenario(
        "webhook", "failed", _event("failed", error=RETRYABLE), ends={("submitted", "failed")}
    ),
    Scenario("webhook", "held", _event_for_unknown, ends=DONE),
    Scenario("webhook", "duplicate", _event_again, ends=DONE),
    Scenario("webhook", "too_late", _event_too_late, ends=DONE),
    Scenario("webhook", "ignored", _event("odd"), ends=DONE),
    Scenario("dispatch", "sent", _owed(), TO_QUEUE, ends=DONE),
    Scenario("dispatch", "refused", _owed(refuse=1), TO_QUEUE, ends=DONE),
]


def explore(
    stage: Stage,
    scenario: Scenario,
    say: Callable[[str], None] | None = None,
    chance: random.Random | None = None,
    most: int | None = None,
) -> int:
    """Strike every point of a scenario; the number of points struck. Raises Violation.

    With a `chance` each point is struck in one of the four ways only, and no more than `most`
    points are.
    """
    before = stage.struck
    names = stage.run(scenario, None, "before", "kill")
    if say is not None:
        for number, name in enumerate(names, 1):
            say(f"  {number:2}  {name}")
    points = list(enumerate(names, 1))
    if chance is not None and most is not None and most < len(points):
        points = chance.sample(points, most)
    for at, name in points:
        for side in SIDES if chance is None else (chance.choice(SIDES),):
            for how in HOWS if chance is None else (chance.choice(HOWS),):
                try:
                    stage.run(scenario, at, side, how)
                except Violation as error:
                    where = f"{how} {side} point {at} of {len(names)} ({name})"
                    raise Violation(f"{scenario.title}: {where}: {error}") from error
    return stage.struck - before


def main(arguments: list[str] | None = None) -> int:
    """Command line; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.crash_points")
    parser.add_argument("scenario", nargs="*", help="part of a title; all without")
    parser.add_argument("--sample", type=int, metavar="SEED", help="one way a point, drawn")
    given = parser.parse_args(arguments)
    chance = None if given.sample is None else random.Random(given.sample)
    server = Server().start()
    total, broken, started = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        nursery = Nursery(Path(folder))
        stage = Stage(server, nursery)
        try:
            for scenario in SCENARIOS:
                if given.scenario and not any(part in scenario.title for part in given.scenario):
                    continue
                begun = time.monotonic()
                try:
                    struck = explore(stage, scenario, print if given.scenario else None, chance)
                except Violation as error:
                    broken += 1
                    print(f"VIOLATION {error}", flush=True)
                    continue
                total += struck
                print(
                    f"{scenario.title:40} {struck:4} points in {time.monotonic() - begun:5.1f} s",
                    flush=True,
                )
        finally:
            stage.close()
            nursery.close()
            server.stop()
    print(f"{total} crash points, {broken} violations, {time.monotonic() - started:.0f} s")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
