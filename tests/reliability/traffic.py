"""Real handlers at work in several processes while something breaks, and what must hold after."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from local.fake_sume import FakeSume
from tests.reliability.cloud import QUEUE_URL, Cloud, queue_event
from tests.reliability.invariants import check_dispatched
from tests.support.bundle import Answer, Bundle, Pending, event_body, scheduled_event, webhook_event
from tests.support.container import Container
from tests.support.http_events import http_event
from tests.support.invariants import check_invariants
from tests.support.postgres import Database
from tests.support.waiting import slack

# The webhook answers within this many seconds, whatever the database does.
WEBHOOK_SECONDS = 5.0
# To the API, beside the rest.
MOST_REQUESTS = 10


class Traffic:
    """Submitters, a poller, a reaper and webhook deliveries that go on until the block ends.

    Each job of the fake is ended and its event delivered, again and again until it is answered 200,
    as Sume does. Failed invocations are kept in `failed`, they are no fault while storage is down.
    """

    def __init__(
        self,
        bundle: Bundle,
        fake: FakeSume,
        submitters: int = 2,
        deliverers: int = 2,
        container: Callable[[], Container] | None = None,
        remaining: float = 20.0,
    ) -> None:
        self.bundle, self.fake = bundle, fake
        self.answers: list[Answer] = []
        self.failed: list[dict[str, Any]] = []
        self._make = container or bundle.another
        self._remaining = remaining
        self._stop = threading.Event()
        self._taken: set[str] = set()
        self._lock = threading.Lock()
        self._threads = [
            *(threading.Thread(target=self._invoke, args=("submit",)) for _ in range(submitters)),
            threading.Thread(target=self._invoke, args=("poll",)),
            threading.Thread(target=self._invoke, args=("reap",)),
            *(threading.Thread(target=self._deliver) for _ in range(deliverers)),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "an invocation hangs"

    def _invoke(self, name: str) -> None:
        container = self._make()
        while not self._stop.is_set():
            reply = container.start(name, scheduled_event(), remaining=self._remaining).wait()
            assert not reply.get("died"), container.output()[-4000:]
            if "error" in reply:
                self.failed.append(reply)
            time.sleep(0.05)

    def _deliver(self) -> None:
        container = self._make()
        while not self._stop.is_set():
            job = self._next_job()
            if job is None:
                time.sleep(0.02)
                continue
            body = event_body(job, event_id=f"evt_{job}")
            while not self._stop.is_set():
                call = container.start("webhook", webhook_event(body), 10.0)
                answer = Pending(self.bundle, call, False).result()
                self.answers.append(answer)
                if answer.status == 200:
                    break
                time.sleep(0.05)

    def _next_job(self) -> str | None:
        with self._lock:
            for job in self.fake.jobs:
                if job not in self._taken:
                    self._taken.add(job)
                    self.fake.set_status(job, "completed", webhook=False)
                    return job
        return None


class Around:
    """The rest of the functions beside the traffic: clients of the API, dispatch, the archive.

    `told` are the rows that the API answered for, by reference. What fails is repeated, as its
    caller would. Set the bundle's `around` settings before.
    """

    def __init__(self, bundle: Bundle, cloud: Cloud) -> None:
        self.bundle, self.cloud = bundle, cloud
        self.told: dict[str, int] = {}
        self._stop = threading.Event()
        self._archived = 0
        self._containers = {name: bundle.another() for name in ("api", "dispatch", "archive")}
        self._threads = [
            threading.Thread(target=self._until_stopped, args=(work,))
            for work in (self._post, self._dispatch, self._archive)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "an invocation hangs"

    def _until_stopped(self, work: Callable[[], None]) -> None:
        while not self._stop.is_set():
            work()
            time.sleep(0.05)

    def _call(self, name: str, event: Any) -> Any:
        """What the function gave, or None where it failed."""
        reply = self._containers[name].start(name, event, 30.0).wait()
        assert not reply.get("died"), self._containers[name].output()[-4000:]
        return reply.get("result")

    def _post(self) -> None:
        if len(self.told) >= MOST_REQUESTS:
            return
        name = f"order-{len(self.told) + 1}"
        body = {"prompt": "a bridge", "reference": name}
        answer = self._call("api", http_event("POST", "/jobs", body=body))
        assert answer["statusCode"] in (200, 201, 503), answer
        if answer["statusCode"] != 503:
            self.told[name] = int(json.loads(answer["body"])["id"])

    def _dispatch(self) -> None:
        self._call("dispatch", scheduled_event())

    def _archive(self) -> None:
        """Deliver the next message; one that was not taken is the next again."""
        if self._archived < len(self.cloud.queued):
            taken = self._call("archive", queue_event(self.cloud.queued[self._archived][1]))
            self._archived += bool(taken) and not taken["batchItemFailures"]

    def finish(self, database: Database) -> None:
        """Hand on and archive what is left; every end was handed on, every completed job copied."""
        query = database.query
        for _ in range(40):
            database.age("20 minutes")
            self._dispatch()
            for _ in range(self._archived, len(self.cloud.queued)):
                self._archive()
            waiting = query("select id from follow_up where dispatched_at is null")
            if not waiting and self._archived == len(self.cloud.queued):
                break
        check_dispatched(query, self.cloud.queued)
        for row in query("select id, reference from render_jobs where reference is not null"):
            assert self.told.get(row["reference"], row["id"]) == row["id"]
        bare = query("select job_id from gen_job where not coalesce(result ? 'archive', false)")
        assert not bare, f"never archived: {bare}"


def around(cloud: Cloud) -> dict[str, str]:
    """The settings that dispatch and the archive need."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{cloud.server_port}",
        "FOLLOW_UP_QUEUE_URL": QUEUE_URL,
        "ARCHIVE_BUCKET": "archive",
    }


def settle(bundle: Bundle, database: Database, fake: FakeSume, rows: list[int]) -> None:
    """Let the schedules run with nothing in their way, and check the four promises.

    Every row ends, each was billed once, the job that was billed is the row's, no status went back,
    and each end has exactly one follow-up.
    """
    bundle.storage_down = False
    for _ in range(10):
        database.age("20 minutes")
        bundle.R()
        bundle.D()
        for job in fake.jobs.values():
            if job.status not in ("completed", "failed", "canceled"):
                fake.set_status(job.id, "completed", webhook=False)
        bundle.P()
        if not database.one("select count(*) from job_customer where state = 'working'"):
            break
    states = database.query("select id, state from job_customer order by id")
    assert states == [{"id": row, "state": "done"} for row in rows]
    assert sorted(fake.billed_by_key.values()) == [1] * len(rows)
    by_key = {job.key: job.id for job in fake.jobs.values()}
    for row in database.rows():
        assert row["sume_job_id"] == by_key[row["idempotency_key"]]
    assert not database.conflicts()
    check_invariants(bundle)


def check_answers(answers: list[Answer]) -> None:
    """Each delivery was answered 200 or 503, and in time."""
    odd = {answer.status for answer in answers} - {200, 503}
    assert not odd, odd
    slow = [answer.seconds for answer in answers if answer.seconds > WEBHOOK_SECONDS * slack()]
    assert not slow, slow
