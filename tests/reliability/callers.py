"""Who else is at work in the simulation: clients of the API, an operator, the archive's queue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from sume_jobs.bucket import BucketUnavailable

from tests.reliability.cloud import queue_event
from tests.reliability.invariants import Violation
from tests.reliability.world import Actor, Killed, current
from tests.support.http_events import http_event

if TYPE_CHECKING:
    from tests.reliability.simulation import Simulation

REFERENCES = ("a", "b", "c")
# A deliberate new generation, as the runbook says.
RAISE = "update render_jobs set generation = generation + 1 where id = %(id)s"
# The world's clock does not see how long a seed takes: one day's end moves by seconds.
SAME_DAY = 60.0
BUCKET_FAULTS = {"unavailable": 6.0, "killed before": 2.0, "killed after": 2.0}


@dataclass
class Clients:
    """Clients of the API. Each repeats its request until it is answered.

    `told` are the references that were answered for, each with its row.
    """

    simulation: Simulation
    waiting: list[dict[str, Any]] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=dict)

    def act(self) -> None:
        """A new request, or one that was not answered yet once more."""
        chance = self.simulation.random
        if self.waiting and chance.random() < 0.5:
            event = self.waiting.pop(chance.randrange(len(self.waiting)))
        else:
            event = self._request()
        self._send(event)

    def finish(self) -> None:
        """Repeat what is not answered yet."""
        for event in [self.waiting.pop() for _ in list(self.waiting)]:
            self._send(event)

    def _request(self) -> dict[str, Any]:
        chance = self.simulation.random
        row = chance.randrange(1, self.simulation.figures.rows + 2)
        number = chance.random()
        if number < 0.2:
            return http_event("GET", f"/jobs/{row}")
        if number < 0.4:
            return http_event("POST", f"/jobs/{row}/cancel")
        names = chance.sample(REFERENCES, chance.randrange(1, 3))
        jobs = [{"prompt": f"prompt {name}", "reference": name} for name in names]
        return http_event("POST", "/jobs", body=jobs)

    def _send(self, event: dict[str, Any]) -> None:
        simulation = self.simulation
        method, path = event["routeKey"].split(" ")
        actor = simulation.invoke("api", event, f"{method} {path}")
        if actor is None:
            self.waiting.append(event)
            return
        finish = actor.at_end

        def at_end() -> None:
            if finish is not None:
                finish()
            status = actor.result["statusCode"] if actor.result else 503
            if status == 503:
                if actor.result and not actor.faults:
                    raise Violation(f"{actor.name} answered {actor.result}")
                self.waiting.append(event)
            elif status >= 500 or status in (400, 413, 415, 422):
                raise Violation(f"{actor.name} answered {actor.result} to a good request")
            elif method == "POST" and path == "/jobs":
                self._keep(json.loads(actor.result["body"]))

        actor.at_end = at_end

    def _keep(self, body: dict[str, Any]) -> None:
        self.simulation.figures.rows += body["created"]
        for job in body["jobs"]:
            row, name = int(job["id"]), job["reference"]
            before = self.told.setdefault(name, row)
            if before != row and not self.simulation.is_gone(before):
                raise Violation(f"reference {name} is row {before} and row {row}")
            self.told[name] = row

    def check(self, gone: Mapping[int, Any]) -> None:
        """Every row that a client was told of is there, under its reference."""
        rows = {
            row["id"]: row["reference"]
            for row in self.simulation.ground.query("select id, reference from render_jobs")
        }
        for name, row in self.told.items():
            if row not in gone and rows.get(row) != name:
                raise Violation(
                    f"lost: row {row} of reference {name} was answered and is not there"
                )


@dataclass
class Operator:
    """Asks for new generations of rows that have ended, in plain SQL; `raised` are those rows."""

    simulation: Simulation
    raised: set[int] = field(default_factory=set)

    def act(self) -> None:
        simulation = self.simulation
        row = simulation.random.randrange(1, simulation.figures.rows + 1)

        def raise_generation(database: Any) -> str:
            try:
                database.run(RAISE, {"id": row})
            except psycopg.errors.CheckViolation:
                return "refused, it has not ended"
            self.raised.add(row)
            return "done, where there is such a row"

        simulation.as_app(f"new generation of row {row}", raise_generation)

    def open_gate(self) -> None:
        """Open what waits for a person: an old generation's job that turned up is settled."""
        found = self.simulation.ground.query(
            "select reason from pace_gate where closed_until = 'infinity'"
        )
        if found and not self.raised:
            raise Violation(f"the gate waits for a person, and nothing was wrong: {found}")
        if found:
            self.simulation.ground.settle_gate()


@dataclass
class Purse:
    """What is spent a day. `ends` are the midnights that claims counted to, on the world's clock.

    Each day takes as many new keys as the limit says, so there are never more bills than that.
    """

    simulation: Simulation
    ends: list[float] = field(default_factory=list)

    def see(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Look at a claim: when does its day end?"""
        if name == "render_jobs.claim" and rows and rows[0].get("day_left"):
            end = self.simulation.world.clock + rows[0]["day_left"]
            if all(abs(end - other) > SAME_DAY for other in self.ends):
                self.ends.append(end)

    def check(self, billed: int) -> None:
        """Raise Violation where more was billed than the days allowed."""
        limit = self.simulation.settings.daily_limit
        if limit and billed > limit * len(self.ends):
            raise Violation(
                f"spent: {billed} bills in {len(self.ends)} days with at most {limit} a day"
            )


@dataclass
class Archive:
    """The archive's queue and its bucket. `records` wait to be delivered."""

    simulation: Simulation
    records: list[dict[str, Any]] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)

    def take(self, message_id: str, body: str) -> None:
        """A follow-up arrives in the queue."""
        (record,) = queue_event(body)["Records"]
        self.records.append({**record, "messageId": message_id})
        if json.loads(body)["kind"] == "job.completed":
            self.wanted.add(json.loads(body)["job_id"])

    def act(self) -> None:
        """Deliver one or two records; what is not taken comes again."""
        chance = self.simulation.random
        picked = [
            self.records.pop(chance.randrange(len(self.records)))
            for _ in range(min(len(self.records), chance.randrange(1, 3)))
        ]
        # The id names a record within one batch alone.
        event = {"Records": [{**each, "messageId": str(n)} for n, each in enumerate(picked)]}
        actor = self.simulation.invoke("archive", event, f"with {len(picked)} records")
        if actor is None:
            self.records += picked
            return
        finish = actor.at_end

        def at_end() -> None:
            if finish is not None:
                finish()
            failures = (actor.result or {}).get("batchItemFailures")
            again = {str(n) for n in range(len(picked))}
            if failures is not None:
                again = {failure["itemIdentifier"] for failure in failures}
            self.records += [each for n, each in enumerate(picked) if str(n) in again]

        actor.at_end = at_end

    def check(self, gone: Mapping[int, Any]) -> None:
        """Every completed job that was handed on is in the bucket, and says so."""
        for job in self.simulation.ground.query(
            "select job_id, render_job_id, result ? 'archive' as noted from gen_job"
        ):
            if job["job_id"] in self.wanted and job["render_job_id"] not in gone:
                manifest = f"sume-jobs/{job['job_id']}/manifest.json"
                if manifest not in self.objects or not job["noted"]:
                    raise Violation(f"lost: {job['job_id']} was never archived")
        for name, content in self.objects.items():
            if name.endswith("/manifest.json"):
                for copy in json.loads(content)["artifacts"]:
                    if copy["name"] not in self.objects:
                        raise Violation(f"{name} names {copy['name']}, which is not there")


class StepSource:
    """An artifact that is read at once."""

    content_type, size, sha256 = "image/png", 4, "digest"

    def read(self, _amount: int = -1) -> bytes:
        return b"data"


@contextmanager
def step_download(*_: Any) -> Iterator[StepSource]:
    """Stands for `artifacts.download`."""
    yield StepSource()


class StepBucket:
    """Stands for `bucket.Bucket`: takes an object, is unavailable, or sees its client die."""

    archive: Archive

    def __init__(self, name: str) -> None:
        self.name = name

    def copy(self, source: StepSource, name: str) -> None:
        self._put(name, source.read())

    def write(self, name: str, text: str) -> None:
        self._put(name, text.encode())

    def url(self, name: str) -> str:
        return f"s3://{self.name}/{name}"

    def _put(self, name: str, content: bytes) -> None:
        archive, actor = self.archive, current().actor
        world = archive.simulation.world
        world.pause()
        fault = archive.simulation.draw("bucket", BUCKET_FAULTS)
        world.say(actor.name, f"puts {name} {fault}".rstrip())
        if fault == "killed before":
            _die(actor)
        if fault == "unavailable":
            raise BucketUnavailable("SlowDown")
        archive.objects[name] = content
        world.pause()
        if fault == "killed after":
            _die(actor)


def _die(actor: Actor) -> None:
    actor.killed = True
    raise Killed
