"""Real handlers at work in several processes while something breaks, and what must hold after."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

from local.fake_sume import FakeSume
from tests.support.bundle import Answer, Bundle, Pending, event_body, scheduled_event, webhook_event
from tests.support.container import Container
from tests.support.invariants import check_invariants
from tests.support.postgres import Database
from tests.support.waiting import slack

# The webhook answers within this many seconds, whatever the database does.
WEBHOOK_SECONDS = 5.0


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
