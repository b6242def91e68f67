"""Seeded simulation: overlapping workers, reapers, pollers and webhooks in a misbehaving world.

    python -m tests.reliability.simulation --seed 4711      replay one seed and print its history
    python -m tests.reliability.simulation --seeds 10000    run seeds 1 to 10000, figures at the end

A seed decides everything: the settings, which invocation goes on by one step, what Sume answers
and what becomes of the answer on its way, which connection is lost, who is killed, how much time
passes, which webhooks come early, late, twice, out of order or never. The handlers and the
database are the real ones. Then all faults end, the schedules run until nothing moves any more,
and the promises are checked. Every tenth seed talks to the fake over a real socket.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import re
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "shared")]

import psycopg
from psycopg.rows import dict_row
from sume_jobs import artifacts, bucket, runtime, targets, telemetry
from sume_jobs.decisions.follow_up_event import Message
from sume_jobs.decisions.outcomes import Answer, NoAnswer
from sume_jobs.flows import (
    archive,
    dispatch,
    paced_run,
    poll,
    submit,
    sume_access,
    time_left,
    webhook,
)
from sume_jobs.secrets import Secrets
from sume_jobs.settings import Settings
from sume_jobs.store import (
    enqueue,
    follow_ups,
    gen_jobs,
    job_views,
    levels,
    migrations,
    pace,
    render_jobs,
    retention,
    webhook_events,
)

from functions.api import app as api_app
from functions.archive import app as archive_app
from functions.dispatch import app as dispatch_app
from functions.poll import app as poll_app
from functions.reap import app as reap_app
from functions.submit import app as submit_app
from functions.webhook import app as webhook_app
from local.fake_sume import Behaviour, FakeJob, FakeSume, event_body, signed_headers
from local.fake_sume import model as fake_model
from local.fake_sume.api import Api
from local.fake_sume.behaviour import NORMAL
from local.fake_sume.options import Options
from local.fake_sume.service import Received, Service
from tests.reliability import invariants
from tests.reliability.callers import Archive, Clients, Operator, Purse, StepBucket, step_download
from tests.reliability.invariants import Violation
from tests.reliability.parallel import cores, spread
from tests.reliability.world import (
    SAME_CHANCE,
    Actor,
    Killed,
    StepClient,
    StepDatabase,
    StepPool,
    StepQueue,
    StepTime,
    World,
    current,
)
from tests.support.invariants import HISTORY
from tests.support.postgres import Database, Server, create_database, drop_database

SECRET = "whsec_simulation"
EPOCH = 1_770_000_000.0
KEY_LIFE = 86400
HANDLERS: dict[str, Callable[[Any, Any], Any]] = {
    "submit": submit_app.handler,
    "poll": poll_app.handler,
    "reap": reap_app.handler,
    "webhook": webhook_app.handler,
    "dispatch": dispatch_app.handler,
    "api": api_app.handler,
    "archive": archive_app.handler,
}
LAMBDA_SECONDS = {
    "submit": 60.0,
    "poll": 60.0,
    "reap": 60.0,
    "webhook": 10.0,
    "dispatch": 60.0,
    "api": 15.0,
    "archive": 300.0,
}
# How many invocations of each function may overlap. The API's router keeps its request in itself,
# so that two in one process would mix: on Lambda, there is one at a time.
OVERLAP = {
    "submit": 3,
    "poll": 2,
    "reap": 2,
    "webhook": 3,
    "dispatch": 2,
    "api": 1,
    "archive": 2,
}


STORES = (
    render_jobs,
    gen_jobs,
    webhook_events,
    follow_ups,
    pace,
    retention,
    levels,
    enqueue,
    job_views,
)


def statement_names() -> dict[str, str]:
    """The text of every statement of the layer, and what to call it."""
    names = {}
    for module in STORES:
        for name, value in vars(module).items():
            if isinstance(value, str) and name.isupper():
                # Of a stored one the call is run, or where there is no function its text.
                for text in (value, getattr(value, "call", value)):
                    names[text] = f"{module.__name__.rpartition('.')[2]}.{name.lower()}"
    return names


class Context:
    """Lambda's context on the world's clock."""

    aws_request_id = "simulated"

    def __init__(self, world: World, seconds: float) -> None:
        self._world, self._deadline = world, world.clock + seconds

    def get_remaining_time_in_millis(self) -> int:
        return int((self._deadline - self._world.clock) * 1000)


@dataclass
class Slot:
    """A warm container: its runtime lives from one invocation to the next."""

    runtime: runtime.Runtime
    busy: bool = False


@dataclass
class Post:
    """A webhook that Sume has to deliver."""

    job_id: str
    body: bytes
    tries: int = 4
    # Another end than the one that stands: only delivered once that one is recorded.
    contradicts: bool = False


@dataclass
class Figures:
    """What a run of seeds came to."""

    seeds: int = 0
    steps: int = 0
    statements: int = 0
    calls: int = 0
    billed: int = 0
    rows: int = 0
    lock_waits: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    violations: dict[int, str] = field(default_factory=dict)

    def add(self, other: Figures) -> None:
        for name in ("seeds", "steps", "statements", "calls", "billed", "rows", "lock_waits"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults.update(other.faults)
        self.violations.update(other.violations)


# Faults: what may happen at each place, and how often among a hundred.
STATEMENT_FAULTS = {
    "held": 12.0,
    "held and lost": 0.7,
    "held and killed": 0.7,
    "lost before": 0.7,
    "lost after": 1.5,
    "killed before": 0.8,
    "killed after": 0.8,
    "57P01": 0.3,
    "25006": 0.3,
    "40P01": 0.4,
    "55P03": 0.4,
    "57014": 0.3,
}
CALL_FAULTS = {
    "never left": 2.0,
    "killed before sending": 1.0,
    "killed before reading": 1.5,
    "answer lost": 3.0,
    "answer cut": 2.0,
    "half an answer": 2.0,
    "too slow": 2.0,
}
SUBMIT_ANSWERS: list[tuple[float, Behaviour]] = [
    (2.0, Behaviour(status=408)),
    (1.0, Behaviour(status=408, accept=False)),
    (2.5, Behaviour(status=429, headers={"Retry-After": "7"})),
    (1.0, Behaviour(status=429)),
    (1.0, Behaviour(status=503)),
    (3.0, Behaviour(status=500)),
    (2.0, Behaviour(status=500, accept=False)),
    (2.0, Behaviour(status=502, body=b"<html>bad gateway</html>")),
    (1.0, Behaviour(status=504, accept=True)),
    (0.5, Behaviour(status=500, retryable=False)),
    (0.7, Behaviour(status=502, code="provider_submission_failed", retryable=True, accept=False)),
    (0.7, Behaviour(status=401)),
    (0.7, Behaviour(status=402)),
    (0.5, Behaviour(status=403)),
    (0.7, Behaviour(status=400)),
    (1.0, Behaviour(status=409, code="idempotency_in_progress")),
    (0.3, Behaviour(status=302, headers={"Location": "https://example.invalid/"})),
    (1.0, Behaviour(json={"data": {}})),
    (1.0, Behaviour(capacity=0)),
    (1.0, Behaviour(capacity=1)),
]
READ_ANSWERS: list[tuple[float, Behaviour]] = [
    (2.0, Behaviour(status=500)),
    (1.5, Behaviour(status=429, headers={"Retry-After": "5"})),
    (1.0, Behaviour(status=503)),
    (1.0, Behaviour(status=404, code="job_not_found")),
    (0.5, Behaviour(status=401)),
    (0.5, Behaviour(status=403)),
    (5.0, Behaviour(job_status="queued")),
    (2.0, Behaviour(job_status="processing")),
    (1.0, Behaviour(job_status="throttled")),
    (1.0, Behaviour(job_id="job_of_somebody_else", job_status="failed")),
    (1.0, Behaviour(status=200, body=b"<html>maintenance</html>")),
]
RESULT_ANSWERS: list[tuple[float, Behaviour]] = [
    (2.0, Behaviour(status=500)),
    (3.0, Behaviour(status=409, code="job_not_completed")),
    (2.0, Behaviour(json={"data": {"result": {"artifacts": []}}})),
    (1.0, Behaviour(status=404)),
]
CANCEL_ANSWERS: list[tuple[float, Behaviour]] = [
    (5.0, Behaviour(status=500)),
    (5.0, Behaviour(status=409, code="job_generation_already_started")),
]
ENDS = ("completed", "completed", "completed", "failed", "failed", "canceled")


# How much time may pass at once, in seconds.
JUMPS = (
    0.1,
    0.5,
    2.0,
    6.0,
    6.0,
    20.0,
    45.0,
    45.0,
    130.0,
    330.0,
    660.0,
    1000.0,
    1900.0,
    90000.0,
)


def drawn(random_: random.Random, table: dict[str, float]) -> str:
    """One name of the table, or "" for the rest of the hundred."""
    number = random_.random() * 100
    for name, share in table.items():
        number -= share
        if number < 0:
            return name
    return ""


class Simulation:
    """One seed from its first step to the last check."""

    def __init__(self, ground: Ground, seed: int) -> None:
        self.ground, self.seed = ground, seed
        self.random = random.Random(seed)
        self.by_socket = seed % 10 == 0
        self.world = World(ground.admin, ground.database.url, ground.names)
        self.world.idle_connections = ground.connections
        self.world.fault = self._fault
        self.world.on_time = self._forget_keys
        self.figures = Figures(seeds=1)
        self.calm = False
        self.slots: dict[str, list[Slot]] = {}
        self.posts: list[Post] = []
        self.sent: list[tuple[str | None, bytes]] = []
        # What the queue for follow-ups took: id and body.
        self.taken: list[tuple[str, str]] = []
        self.accepted_at: dict[str, float] = {}
        self.numbers: Counter[str] = Counter()
        self.clients, self.operator = Clients(self), Operator(self)
        self.archive, self.purse = Archive(self), Purse(self)
        self.world.on_rows = self.purse.see
        self.fake = ground.fake(seed) if self.by_socket else None
        self.settings = self._settings()
        self.generations = self.settings.max_generations
        # Some seeds are calm at one place, so that the others are seen for themselves.
        self.roughness = self.random.choice((0.3, 1.0, 1.0, 2.0))
        if self.fake is not None:
            self.service = self.fake._service
        else:
            self.service = Service(Options(auto_advance=False, webhook_secret=SECRET))
            self.api = Api(self.service, None)  # type: ignore[arg-type]

    def _settings(self) -> Settings:
        choose = self.random.choice
        environment = {
            "DATABASE_URL": self.ground.database.url,
            "SUME_BASE_URL": self.fake.url if self.fake else "http://127.0.0.1:1",
            "SUME_API_KEY": "key",
            "SUME_WEBHOOK_SECRETS": SECRET,
            "SUBMIT_CONCURRENCY": choose(("1", "2", "3")),
            "SUME_WRITES_PER_MINUTE": choose(("60", "600", "6000")),
            "SUME_READS_PER_MINUTE": choose(("60", "600", "6000")),
            "MAX_ATTEMPTS": choose(("3", "5", "8")),
            "MAX_GENERATIONS": choose(("1", "1", "2", "3")),
            "LINGER_SECONDS": choose(("0", "0", "1")),
            # What is too slow over a real socket is really waited for.
            "SUME_TIMEOUT_SECONDS": "0.3" if self.fake else choose(("0.5", "2")),
        }
        if self.random.random() < 0.25:
            environment["RETENTION_DAYS"] = "1"
        if self.random.random() < 0.2:
            environment["SUBMIT_DAILY_LIMIT"] = choose(("2", "3", "4"))
        if self.random.random() < 0.75:
            environment["SUME_WEBHOOK_URL"] = "https://hooks.example.invalid/webhooks/sume"
        if self.random.random() < 0.5:
            environment["FOLLOW_UP_QUEUE_URL"] = "https://queue.example.invalid/follow-ups"
            if self.random.random() < 0.5:
                environment["ARCHIVE_BUCKET"] = "archive"
        return Settings.from_environment(environment)

    # Faults -------------------------------------------------------------------------------------

    def _fault(self, kind: str, actor: Actor) -> str:
        if self.calm or actor.name.startswith("app"):
            return ""
        if kind == "connect":
            fault = "refused" if self.random.random() < 0.01 * self.roughness else ""
        else:
            table = STATEMENT_FAULTS if kind == "statement" else CALL_FAULTS
            if self.random.random() > self.roughness:
                return ""
            fault = drawn(self.random, table)
        if fault:
            self.figures.faults[f"{kind}: {fault}"] += 1
            if fault not in ("held",):
                actor.faults += 1
        return fault

    def draw(self, place: str, table: dict[str, float]) -> str:
        """What goes wrong at a place beside database and Sume; "" for nothing."""
        fault = "" if self.calm else drawn(self.random, table)
        if fault:
            self.figures.faults[f"{place}: {fault}"] += 1
        return fault

    # Sume ---------------------------------------------------------------------------------------

    def transport(
        self,
        method: str,
        path: str,
        key: str | None,
        body: bytes,
        by_itself: Callable[[], Answer | NoAnswer],
    ) -> Answer | NoAnswer:
        """Carry one call to the fake and bring back what the seed lets through."""
        world, actor = self.world, current().actor
        what = f"{method} {key or path}"
        world.calls += 1
        world.pause()
        fault = self._fault("call", actor)
        if fault == "killed before sending":
            world.say(actor.name, f"{what}: killed before it left")
            actor.killed = True
            raise Killed
        if fault == "never left":
            world.say(actor.name, f"{what}: no connection to Sume")
            return NoAnswer(sent=False, reason="ConnectionRefusedError")
        behaviour = self._behaviour(method, path, key)
        if key is not None:
            self.sent.append((key, body))
        before = set(self.service.book.jobs)
        came: Answer | NoAnswer
        if self.by_socket:
            came = self._by_socket(method, path, fault, by_itself)
        else:
            came = self._directly(method, path, key, body)
        for job_id in self.service.book.jobs.keys() - before:
            self.accepted_at[self.service.book.jobs[job_id].key or ""] = world.clock
            world.say("Sume", f"bills {job_id} for {key}")
        heard = came.status if isinstance(came, Answer) else came.reason
        world.say(actor.name, f"{what}: {_shown(behaviour)}{heard} {fault}".rstrip())
        world.pause()
        if fault == "killed before reading":
            world.say(actor.name, f"{what}: killed before the answer was read")
            actor.killed = True
            raise Killed
        if fault == "too slow":
            world.wait(world.clock + self.settings.sume_timeout)
        if self.by_socket:
            return came
        return _spoiled(came, fault)

    def _directly(self, method: str, path: str, key: str | None, body: bytes) -> Answer:
        received = Received(
            at=self.world.clock, method=method, path=path, query={}, headers={}, body=body, key=key
        )
        going = self.api.answer(received)
        try:
            going.send(None)
        except StopIteration as ended:
            answer, _ = ended.value
        else:
            raise AssertionError("the fake waits for something")
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(answer.status, headers, answer.body)

    def _by_socket(
        self, method: str, path: str, fault: str, by_itself: Callable[[], Answer | NoAnswer]
    ) -> Answer | NoAnswer:
        """The product's own way to the network, and the fake's own way to spoil it."""
        spoil: dict[str, Any] = {
            "answer lost": {"drop": "after"},
            "answer cut": {"drop": "mid_body"},
            "half an answer": {"cut": True},
            "too slow": {"drip": 20.0},
        }.get(fault, {})
        if spoil:
            script = self._script(method, path)
            waiting = script._once.get(None)
            ordered = waiting.pop() if waiting else NORMAL
            script.add((dataclasses.replace(ordered, **spoil),), None)
        return by_itself()

    def _script(self, method: str, path: str) -> Any:
        scripts = self.service.scripts
        if method == "POST":
            return scripts.cancel if path.endswith("/cancel") else scripts.submit
        return scripts.result if path.endswith("/result") else scripts.read

    def _behaviour(self, method: str, path: str, key: str | None) -> Behaviour | None:
        if self.calm or self.random.random() > self.roughness:
            return None
        scripts = self.service.scripts
        script = self._script(method, path)
        table = {
            id(scripts.submit): SUBMIT_ANSWERS,
            id(scripts.read): READ_ANSWERS,
            id(scripts.result): RESULT_ANSWERS,
            id(scripts.cancel): CANCEL_ANSWERS,
        }[id(script)]
        number = self.random.random() * 100
        for share, behaviour in table:
            number -= share
            if number < 0:
                if key in self.service.book.by_key and behaviour.status in (400,):
                    # What Sume has accepted it does not refuse as invalid the next time.
                    return None
                script.add((behaviour,), None)
                self.figures.faults[f"answer: {_shown(behaviour).strip()}"] += 1
                return behaviour
        if key is not None and key in self.service.book.by_key:
            script.add((Behaviour(replay_status=self.random.choice((200, 201, 202))),), None)
        return None

    def _forget_keys(self) -> None:
        for key, at in list(self.accepted_at.items()):
            if self.world.clock - at >= KEY_LIFE and key in self.service.book.by_key:
                self.service.book.forget(key)
                self.world.say("Sume", f"forgets the key {key}")

    def _move_job(self) -> None:
        """Sume goes on with one of its jobs."""
        going = [job for job in self.service.book.jobs.values() if not job.terminal]
        if not going:
            return
        job = self.random.choice(going)
        if job.status == "queued" and self.random.random() < 0.5:
            self._set(job, "processing")
        else:
            self._end(job)

    def _end(self, job: FakeJob) -> None:
        status = self.random.choice(ENDS)
        error = None
        if status == "failed":
            error = {"code": "generation_failed", "retryable": self.random.random() < 0.6}
        self._set(job, status, error)

    def _set(self, job: FakeJob, status: str, error: Any = None) -> None:
        self.service.book.move(job, status, self.world.clock, error=error)
        self.world.say("Sume", f"{job.id} is {status}")
        if job.terminal:
            self._announce(job)

    def _announce(self, job: FakeJob) -> None:
        """Queue the webhook of a job's end, unless it is lost; sometimes twice."""
        if not job.webhook_url:
            return
        if self.random.random() < 0.15:
            self.world.say("Sume", f"the webhook of {job.id} is lost")
            return
        record = {"id": job.id, "status": job.status, "error": job.error}
        self.posts.append(Post(job.id, event_body(record, at=EPOCH)))
        if self.random.random() < 0.2:
            again = event_body(record, event_id=f"evt_again_{job.id}", at=EPOCH)
            self.posts.append(Post(job.id, again))
        if self.random.random() < 0.15:
            other = self.random.choice([status for status in ENDS if status != job.status])
            body = event_body({"id": job.id, "status": other}, at=EPOCH)
            self.posts.append(Post(job.id, body, contradicts=True))
        if self.random.random() < 0.15:
            stale = {"id": job.id, "status": self.random.choice(("queued", "processing", "odd"))}
            self.posts.append(Post(job.id, event_body(stale, at=EPOCH)))

    # Invocations --------------------------------------------------------------------------------

    def _slot(self, name: str) -> Slot | None:
        slots = self.slots.setdefault(name, [])
        free = [slot for slot in slots if not slot.busy]
        if free:
            return self.random.choice(free)
        if len(slots) >= OVERLAP[name]:
            return None
        secrets = Secrets(self.settings)
        slot = Slot(runtime.Runtime(self.settings, secrets, StepDatabase(self.settings, secrets)))
        slots.append(slot)
        return slot

    def invoke(self, name: str, event: Any = None, said: str = "") -> Actor | None:
        slot = self._slot(name)
        if slot is None:
            return None
        slot.busy = True
        self.numbers[name] += 1
        actor = Actor(
            f"{name}-{self.numbers[name]}", deadline=self.world.clock + LAMBDA_SECONDS[name]
        )
        self.world.say(actor.name, f"begins {said}".rstrip())

        def work() -> None:
            _here.runtime = slot.runtime
            context = Context(self.world, LAMBDA_SECONDS[name])
            actor.result = HANDLERS[name](event or {}, context)

        def at_end() -> None:
            slot.busy = False
            if actor.killed:
                self.slots[name].remove(slot)
                slot.runtime.close()
            elif actor.error is not None:
                self.world.say(actor.name, f"raises {type(actor.error).__name__}: {actor.error}")
                if not isinstance(actor.error, paced_run.DatabaseUnavailable | psycopg.Error):
                    raise Violation(f"{actor.name} raised {actor.error!r}") from actor.error
                if not actor.faults:
                    raise Violation(f"{actor.name} failed with nothing wrong: {actor.error!r}")
            else:
                self.world.say(actor.name, f"ends: {_result(actor.result)}")

        actor.at_end = at_end
        self.world.begin(actor, work)
        return actor

    def _deliver(self, post: Post) -> Actor | None:
        if post.contradicts and not self._has_ended(post.job_id):
            if self.calm:
                self.posts.remove(post)
            return None
        old = not self.calm and self.random.random() < 0.03
        begun = self.world.clock
        stamp = int(EPOCH + self.world.clock) - (4000 if old else 0)
        headers = signed_headers(post.body, stamp, SECRET)
        event = {"version": "2.0", "headers": headers, "body": post.body.decode()}
        actor = self.invoke("webhook", event, f"with {post.job_id} {json.loads(post.body)['type']}")
        if actor is None:
            return None
        self.posts.remove(post)
        post.tries -= 1
        finish = actor.at_end

        def at_end() -> None:
            if finish is not None:
                finish()
            status = actor.result["statusCode"] if actor.result else None
            if status == 200:
                if not self.calm and self.random.random() < 0.15:
                    self.posts.append(post)
            elif status == 401 and (old or self.world.clock - begun > 290):
                self.posts.append(post)
            elif status is not None and (status != 503 or not actor.faults):
                raise Violation(f"{actor.name} answered {actor.result} to a good delivery")
            elif post.tries:
                self.posts.append(post)

        actor.at_end = at_end
        return actor

    def _has_ended(self, job_id: str) -> bool:
        found = self.ground.query(
            "select from gen_job where job_id = %s"
            " and status in ('completed', 'failed', 'canceled')",
            job_id,
        )
        return bool(found)

    def as_app(self, what: str, work: Callable[[StepDatabase], Any]) -> None:
        """A statement of the team's own app; one at a time, without faults."""
        self.numbers["app"] += 1
        actor = Actor(f"app-{self.numbers['app']}")
        secrets = Secrets(self.settings)

        def run() -> None:
            database = StepDatabase(self.settings, secrets)
            try:
                outcome = work(database)
                self.world.say(actor.name, f"{what}: {outcome}")
            finally:
                database.close()

        def at_end() -> None:
            if actor.error is not None:
                raise Violation(f"the app's {what} failed: {actor.error!r}") from actor.error

        actor.at_end = at_end
        self.world.begin(actor, run)

    def is_gone(self, row: int) -> bool:
        """Whether retention took a row away."""
        return bool(self.ground.query("select from test_history.gone where id = %s", row))

    def _insert(self) -> None:
        prompt = f"prompt {self.random.randrange(1000)}"
        self.ground.admin.execute(
            "insert into render_jobs (prompt, priority) values (%s, %s)",
            (prompt, self.random.randrange(3)),
        )
        self.figures.rows += 1
        self.world.say("app", "inserts a row")

    def _cancel(self) -> None:
        row = self.random.randrange(1, self.figures.rows + 1)
        self.as_app(
            f"cancel of row {row}", lambda database: render_jobs.request_cancel(database, row)
        )

    # The run ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Chaos, then calm, then the checks. Raises Violation."""
        with self._patched():
            self.world.pay_time()
            for _ in range(self.random.randrange(1, 5)):
                self._insert()
            steps = self.random.randrange(60, 260)
            for _ in range(steps):
                self._step()
            self._rest()
        self._check()

    def _step(self) -> None:
        self.figures.steps += 1
        world, choose = self.world, self.random
        ready = world.runnable()
        number = choose.random()
        if ready and number < 0.72:
            world.resume(choose.choice(ready))
        elif number < 0.74 and self.figures.rows < 6:
            self.clients.act()
        elif number < 0.77 and self.archive.records:
            self.archive.act()
        elif number < 0.85:
            name = choose.choice(("submit", "submit", "submit", "poll", "poll", "reap", "dispatch"))
            self.invoke(name)
        elif number < 0.89:
            self._move_job()
        elif number < 0.93 and self.posts:
            self._deliver(choose.choice(self.posts))
        elif number < 0.97:
            self._let_time_pass()
        elif number < 0.98 and self.figures.rows < 6:
            self._insert()
        elif number < 0.983:
            self._cancel()
        elif number < 0.987:
            self.operator.act()
        elif number < 0.995 and world.actors:
            self.figures.faults["killed at any place"] += 1
            self.world.kill(choose.choice(world.actors))

    def _let_time_pass(self) -> None:
        world, choose = self.world, self.random
        alarm = world.next_alarm()
        if alarm is not None and alarm > world.clock and choose.random() < 0.5:
            world.advance(min(alarm, world.clock + 30.0) - world.clock)
            return
        if world.open_transactions:
            return
        seconds = choose.choice(JUMPS) * choose.uniform(0.9, 1.1)
        late = [actor for actor in world.actors if actor.deadline < world.clock + seconds]
        for actor in late:
            # Lambda ends what is over its time; now and then one is only frozen, and wakes later.
            if seconds > 1300 or choose.random() < 0.7:
                world.kill(actor)
        if world.open_transactions:
            return
        world.say("time", f"{seconds:.1f} s pass")
        world.advance(seconds)
        world.pay_time()

    def _drain(self) -> None:
        """Let everything that was begun come to its end, in turn."""
        world = self.world
        for _ in range(20_000):
            ready = world.runnable()
            if ready:
                world.resume(ready[0])
                continue
            alarm = world.next_alarm()
            if alarm is None:
                if world.tasks:
                    raise Violation(f"stuck: {[task.actor.name for task in world.tasks]}")
                return
            world.advance(max(0.0, alarm - world.clock))
        raise Violation("an invocation does not end")

    def _rest(self) -> None:
        """Faults end; the schedules go on until nothing moves."""
        world = self.world
        self.calm = True
        self.service.scripts.clear()
        world.say("calm", "all faults end")
        self._drain()
        for passed in range(60):
            for job in list(self.service.book.jobs.values()):
                if not job.terminal:
                    self._end(job)
            for post in list(self.posts):
                self._deliver(post)
                self._drain()
            for _ in list(self.archive.records):
                if self.archive.records:
                    self.archive.act()
                    self._drain()
            self.clients.finish()
            self._drain()
            if not self._unrest():
                return
            self.operator.open_gate()
            # A full day is waited for; but not at once, lest keys grow old that need not.
            seconds = 1020.0 if passed < 20 or not self.settings.daily_limit else 30000.0
            world.say("time", f"{seconds / 60:.0f} minutes pass")
            world.advance(seconds)
            for name in ("reap", "submit", "poll", "dispatch"):
                self.invoke(name)
                self._drain()
        raise Violation(f"lost: no rest after 60 rounds: {self._unrest()}")

    def _unrest(self) -> list[str]:
        waiting = invariants.unrest(self.ground.query)
        waiting += [f"record {each['body']} waits" for each in self.archive.records]
        if not waiting and self.settings.follow_up_queue_url:
            waiting = [
                f"follow-up {row['id']} waits"
                for row in self.ground.query("select id from follow_up where dispatched_at is null")
            ]
        return waiting

    def _check(self) -> None:
        query = self.ground.query
        book = self.service.book
        self.figures.billed = book.billed
        self.figures.statements, self.figures.calls = self.world.statements, self.world.calls
        self.figures.lock_waits = self.world.blocked_ever
        invariants.check_bills(book.billed_by_key, self.sent)
        raised = self.operator.raised
        invariants.check_history(query, self.generations, raised)
        gone = {row["id"]: row for row in query("select * from test_history.gone")}
        has_queue = bool(self.settings.follow_up_queue_url)
        invariants.check_follow_ups(query, gone)
        invariants.check_rest(query, book.jobs, gone, has_queue, raised)
        self.clients.check(gone)
        self.archive.check(gone)
        self.purse.check(book.billed)
        if has_queue:
            invariants.check_dispatched(query, self.taken, gone)

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """The product's modules see the world's clock, threads, connections and network."""
        clock: Any = StepTime(lambda: self.world, EPOCH)
        StepClient.transport = staticmethod(self.transport)
        StepBucket.archive = self.archive
        ids = random.Random(self.seed)
        numbers = mock.Mock()
        numbers.uuid4 = lambda: uuid.UUID(int=ids.getrandbits(128))
        made: Any = paced_run.PacedRun

        def paced(*given: Any, **named: Any) -> Any:
            run = made(*given, **named)
            run._finished = StepQueue(self.world)
            return run

        random.seed(self.seed)
        clocked = (paced_run, submit, poll, webhook, dispatch, archive, time_left)
        changes: list[tuple[Any, str, Any]] = [
            *((module, "time", clock) for module in clocked),
            (paced_run, "ThreadPoolExecutor", StepPool),
            (submit, "PacedRun", paced),
            (poll, "PacedRun", paced),
            (sume_access, "SumeClient", StepClient),
            (runtime, "current", lambda _seconds_left: _here.runtime),
            (fake_model, "uuid", numbers),
            (targets, "open_targets", lambda _settings: [StepTarget(self)]),
            (targets, "deliver_later", _silent),
            (bucket, "Bucket", StepBucket),
            (artifacts, "download", step_download),
            *((telemetry, name, _silent) for name in TOLD),
        ]
        with _replaced(changes):
            yield


_here = threading.local()
# What the product says would be most of the work of a seed.
TOLD = ("event", "warn", "alarm", "count", "gauge", "seconds", "flush")


def _silent(*_: Any, **__: Any) -> None:
    """Say nothing."""


@contextmanager
def _replaced(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    before = [(where, name, getattr(where, name)) for where, name, _ in changes]
    for where, name, value in changes:
        setattr(where, name, value)
    try:
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


class StepTarget:
    """A queue for follow-ups that is refused, refuses, or takes and loses the answer."""

    name = "sqs"

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def send(self, messages: Sequence[Message]) -> dict[str, str]:
        simulation, actor = self._simulation, current().actor
        world = simulation.world
        world.pause()
        fault = simulation.draw("queue", TARGET_FAULTS)
        refused: dict[str, str] = {}
        for message in messages:
            if fault == "refuses some" and simulation.random.random() < 0.5:
                refused[message.id] = "InternalError"
            elif fault not in ("unreachable", "killed before"):
                simulation.taken.append((message.id, message.body))
                if simulation.settings.archive_bucket:
                    simulation.archive.take(message.id, message.body)
        world.say(actor.name, f"sends {len(messages) - len(refused)} follow-ups {fault}".rstrip())
        if fault in ("unreachable", "answer lost"):
            raise targets.TargetUnavailable("EndpointConnectionError")
        world.pause()
        if fault.startswith("killed"):
            actor.killed = True
            raise Killed
        return refused


TARGET_FAULTS = {
    "unreachable": 8.0,
    "answer lost": 8.0,
    "refuses some": 8.0,
    "killed before": 4.0,
    "killed after": 4.0,
}


def _shown(behaviour: Behaviour | None) -> str:
    if behaviour is None:
        return ""
    words = [str(behaviour.code or behaviour.job_status or behaviour.status or "odd body")]
    if behaviour.accepts and behaviour.status and behaviour.status >= 400:
        words.append("after acceptance")
    return f"({' '.join(words)}) "


def _spoiled(answer: Answer | NoAnswer, fault: str) -> Answer | NoAnswer:
    """What arrives of an answer that something happens to on its way."""
    if not isinstance(answer, Answer):
        return answer
    if fault in ("answer lost", "too slow"):
        return NoAnswer(sent=True, reason="ReadTimeout" if fault == "too slow" else "reset")
    half = answer.body[: len(answer.body) // 2]
    if fault == "answer cut":
        return Answer(answer.status, answer.headers, half, complete=False)
    if fault == "half an answer":
        return Answer(answer.status, answer.headers, half)
    return answer


_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.+]+")


def _result(result: Any) -> str:
    if isinstance(result, dict) and "statusCode" in result:
        # Without the instants, which are the database's own.
        return f"{result['statusCode']} {_INSTANT.sub('…', result['body'])}"
    return " ".join(f"{name}={value}" for name, value in (result or {}).items() if value)


# Rows that retention takes away, as they were.
GONE = """
create table test_history.gone (id bigint, row jsonb, job jsonb, undispatched bigint);
create function test_history.keep_gone() returns trigger language plpgsql security definer as $$
begin
  insert into test_history.gone
  select old.id, to_jsonb(old),
         (select to_jsonb(g) from gen_job g where g.job_id = old.sume_job_id),
         (select count(*) from follow_up f
           where f.render_job_id = old.id and dispatched_at is null and dead_reason is null);
  return old;
end $$;
create trigger test_history_gone before delete on render_jobs
  for each row execute function test_history.keep_gone();
"""


# A pace as it is in the beginning.
OPEN = (
    "update pace_budget set spent_until = '-infinity', day_ends = null, day_sent = 0;"
    " update pace_gate set closed_until = null, reason = null, closures = 0, probe_until = null,"
    " ambiguous = '{}', detail = null, guarded_from = null"
)


class Ground:
    """What seeds share: a server, a migrated database, connections."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, f"sume_simulation_{os.getpid()}"
        create_database(server, self.name)
        self.database = Database(server, self.name)
        with psycopg.connect(self.database.url, autocommit=True, row_factory=dict_row) as owner:
            migrations.migrate(owner)
        self.admin = psycopg.connect(self.database.admin_url, autocommit=True, row_factory=dict_row)
        self.admin.execute(HISTORY)  # type: ignore[arg-type]
        self.admin.execute(f"alter database {self.name} set deadlock_timeout = '50ms'")
        self.admin.execute(GONE)
        self.admin.execute("set session_replication_role = replica")
        self.names = statement_names()
        self.connections: list[psycopg.Connection[Any]] = []
        self._fake: FakeSume | None = None
        tables = self.admin.execute(
            "select schemaname || '.' || tablename as name from pg_tables"
            " where schemaname in ('public', 'test_history')"
            " and tablename not like '%migration%' and tablename not like 'pace%'"
        ).fetchall()
        self._tables = [row["name"] for row in tables]
        self._sequences = [
            row["name"]
            for row in self.admin.execute(
                "select schemaname || '.' || sequencename as name from pg_sequences"
            ).fetchall()
        ]
        self._runs = 0

    def query(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        return self.admin.execute(statement, values or None).fetchall()  # type: ignore[arg-type]

    def fake(self, seed: int) -> FakeSume:
        if self._fake is not None:
            self._fake.stop()
        self._fake = FakeSume(auto_advance=False, webhook_secret=SECRET, seed=seed).start()
        return self._fake

    def reset(self) -> None:
        if self._runs % 40 == 0:
            self.admin.execute(f"truncate {', '.join(self._tables)} restart identity")  # type: ignore[arg-type]
            self.admin.execute("vacuum analyze")
        else:
            cleared = "; ".join(f"delete from {table}" for table in self._tables)
            self.admin.execute(cleared)  # type: ignore[call-overload]
            for name in self._sequences:
                self.admin.execute("select setval(%s, 1, false)", (name,))
        self.admin.execute(OPEN)
        for connection in self.connections:
            if not connection.closed:
                connection.execute(SAME_CHANCE)
        self._runs += 1

    def settle_gate(self) -> None:
        """As an operator opens a gate: with the trigger, which settles what was seen."""
        with self.database.session(autocommit=True) as owner:
            owner.execute(
                "update pace_gate set closed_until = now() where closed_until = 'infinity'"
            )

    def close(self) -> None:
        for connection in [*self.connections, self.admin]:
            connection.close()
        if self._fake is not None:
            self._fake.stop()
        self.database.close()
        drop_database(self.server, self.name)

    def run(self, seed: int) -> tuple[Simulation, Violation | None]:
        """Run one seed; its simulation, and what it broke."""
        self.reset()
        simulation = Simulation(self, seed)
        violation = None
        try:
            simulation.run()
        except Violation as error:
            violation = error
            self._abandon(simulation)
        for slots in simulation.slots.values():
            for slot in slots:
                slot.runtime.close()
        return simulation, violation

    def _abandon(self, simulation: Simulation) -> None:
        simulation.calm = True
        for actor in list(simulation.world.actors):
            actor.at_end = None
            simulation.world.kill(actor)


def fingerprint(simulation: Simulation) -> str:
    """Tells whether two runs of a seed went the same way."""
    # Without the clock, which follows the real one by what a wait for a token depends on.
    told = "\n".join(line[10:] for line in simulation.world.history)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


MOST_VIOLATIONS = 10
# Seeds that a process takes at once.
CHUNK = 10


def run_seeds(
    ground: Ground, seeds: range, seconds: float = float("inf"), least: int = 0
) -> Figures:
    """Run seeds until they are done, or until the time is over and `least` are done."""
    figures, started = Figures(), time.monotonic()
    for seed in seeds:
        simulation, violation = ground.run(seed)
        figures.add(simulation.figures)
        if violation is not None:
            figures.violations[seed] = str(violation)
            if len(figures.violations) >= MOST_VIOLATIONS:
                break
        if time.monotonic() - started > seconds and figures.seeds >= least:
            break
    figures.seconds = time.monotonic() - started
    return figures


@contextmanager
def grounds(server: Server) -> Iterator[Ground]:
    """A ground on a server."""
    ground = Ground(server)
    try:
        yield ground
    finally:
        ground.close()


def run_on_all_cores(
    server: Server, seeds: range, seconds: float, processes: int, say: Callable[[str], None]
) -> Figures:
    """Run seeds in processes. Stops at ten violations, after the time, and when interrupted."""
    figures, started = Figures(), time.monotonic()
    chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
    told = 0
    try:
        for part in spread(partial(grounds, server), run_seeds, chunks, processes):
            figures.add(part)
            for seed, violation in part.violations.items():
                say(f"seed {seed}: {violation}")
            if figures.seeds - told >= 250:
                told = figures.seeds
                say(f"{told} seeds, {time.monotonic() - started:.0f} s")
            if len(figures.violations) >= MOST_VIOLATIONS:
                break
            if time.monotonic() - started > seconds:
                break
    except KeyboardInterrupt:
        say(f"interrupted after {figures.seeds} seeds")
    figures.seconds = time.monotonic() - started
    return figures


def report(figures: Figures) -> str:
    lines = [
        f"{figures.seeds} seeds in {figures.seconds:.0f} s"
        f" ({figures.seeds / max(figures.seconds, 0.1):.1f} a second): {figures.steps} steps,"
        f" {figures.statements} statements, {figures.calls} calls to Sume,"
        f" {figures.rows} rows, {figures.billed} jobs billed,"
        f" {figures.lock_waits} statements that waited for another's lock",
        f"{sum(figures.faults.values())} faults:",
        *(f"  {number:8}  {name}" for name, number in sorted(figures.faults.items())),
        f"{len(figures.violations)} violations",
        *(f"  seed {seed}: {what}" for seed, what in sorted(figures.violations.items())),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Command line; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.simulation")
    parser.add_argument("--seed", type=int, help="replay one seed and print its history")
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--processes", type=int, default=cores(), help="at once; all cores without")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that long")
    given = parser.parse_args(arguments)
    server = Server().start()
    try:
        if given.seed is not None:
            with grounds(server) as ground:
                simulation, violation = ground.run(given.seed)
            print("\n".join(simulation.world.history))
            print(f"fingerprint {fingerprint(simulation)}")
            print(f"VIOLATION {violation}" if violation else "every promise held")
            return violation is not None
        figures = run_on_all_cores(
            server,
            range(given.first, given.first + given.seeds),
            given.seconds,
            given.processes,
            lambda text: print(text, flush=True),
        )
        print(report(figures))
        return bool(figures.violations)
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
