"""Everything the fake knows and does between requests; used from the server's thread alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .behaviour import Behaviour, Script, Weather, WebhookBehaviour
from .generation import Generation
from .journal import Journal
from .limits import Arrivals, SlidingWindow
from .model import Book, FakeJob
from .views import Views
from .webhooks import Sender
from .wire import Holds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .options import Options


@dataclass(slots=True, eq=False)
class Received:
    """One request as it came in. `at` is in seconds of the monotonic clock; header names are in
    lower case; `status` is what was answered (None: nothing yet, or the connection was reset)."""

    at: float
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    key: str | None
    status: int | None = None
    job_id: str | None = None
    submit: bool = False


class Scripts:
    """The behaviours that were ordered, for each kind of request."""

    def __init__(self) -> None:
        self.submit: Script[Behaviour] = Script()
        self.read: Script[Behaviour] = Script()
        self.result: Script[Behaviour] = Script()
        self.cancel: Script[Behaviour] = Script()
        self.list: Script[Behaviour] = Script()
        self.artifact: Script[Behaviour] = Script()
        self.webhook: Script[WebhookBehaviour] = Script()

    def clear(self) -> None:
        for script in vars(self).values():
            script.clear()


class Log:
    """The requests that came in: all of them, or the last ones; and counts of all."""

    def __init__(self, keep: int | None) -> None:
        self.requests: deque[Received] = deque(maxlen=keep)
        self.posts = Arrivals()
        self.submits = 0
        self.replays = 0
        self.reads = 0
        self.answers: Counter[str] = Counter()

    def arrived(self, received: Received) -> None:
        self.requests.append(received)
        if received.method == "POST":
            self.posts.add(received.at)
        else:
            self.reads += 1

    def answered(self, received: Received, status: int | None) -> None:
        received.status = status
        self.answers[f"{received.method} {status or 'dropped'}"] += 1


class Service:
    """Jobs, keys, behaviours, limits, webhooks: the fake without its HTTP."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.book = Book()
        self.scripts = Scripts()
        self.weather = Weather(options.seed, options.weather)
        self.log = Log(options.keep_requests)
        self.views = Views("", options)
        self.generation = Generation(options, self.weather, self._advance)
        self.sender = Sender(options, lambda: self.views, self._webhook_changed)
        self.holds = Holds()
        self.journal = Journal(options.journal) if options.journal is not None else None
        self._windows: dict[tuple[str, str], SlidingWindow] = {}
        self.errors: list[Exception] = []
        """What the `call` of a behaviour raised."""
        self._waiters: dict[str, list[asyncio.Event]] = {}
        if self.journal is not None:
            self.journal.load(self.book)

    async def begin(self, url: str) -> None:
        """Start the clockwork, and take up again what a stop or a kill left unfinished."""
        self.views = Views(url, self.options)
        if self.journal is not None:
            self.journal.open()
        self.generation.begin(asyncio.get_running_loop())
        await self.sender.begin()
        for job in self.book.jobs.values():
            if not job.terminal:
                self.generation.add(job)
            elif job.webhook_status in {"pending", "retrying"}:
                self.sender.start(job, job.webhook_behaviour)

    async def end(self) -> None:
        self.generation.end()
        self.holds.end()
        await self.sender.end()
        if self.journal is not None:
            self.journal.close()

    def accept(
        self, *, key: str | None, body: bytes, path: str, behaviour: Behaviour
    ) -> tuple[FakeJob, bool]:
        """The job of this submit, and whether it is a replay."""
        if key is not None and key in self.book.by_key:
            self.log.replays += 1
            return self.book.by_key[key], True
        job = self.book.create(key=key, body=body, path=path, at=time.time())
        if job.webhook_url:
            job.webhook_behaviour = (
                behaviour.webhook
                or self.scripts.webhook.next(key)
                or self.weather.webhook(key or job.id)
            )
        if self.journal is not None:
            self.journal.accepted(job)
        self.generation.add(job)
        return job, False

    def move(
        self,
        job: FakeJob,
        status: str,
        *,
        error: Any = None,
        artifacts: list[dict[str, Any]] | None = None,
        webhook: bool = True,
    ) -> asyncio.Task[None] | None:
        """Change a job's status; the task that delivers its webhook, if this was its end."""
        ended = self.book.move(job, status, time.time(), error=error, artifacts=artifacts)
        if self.journal is not None:
            self.journal.moved(job)
        if not ended:
            return None
        self.generation.leave(job)
        for waiter in self._waiters.pop(job.id, []):
            waiter.set()
        if not webhook:
            return None
        return self.sender.start(job, self.scripts.webhook.next(job.id) or job.webhook_behaviour)

    def set_status(
        self,
        job: FakeJob,
        status: str,
        *,
        error: Any = None,
        artifacts: list[dict[str, Any]] | None = None,
        webhook: bool = True,
    ) -> None:
        """Take a job out of the workers' hands and give it any status."""
        self.generation.leave(job)
        self.move(job, status, error=error, artifacts=artifacts, webhook=webhook)

    def forget(self, key: str) -> None:
        self.book.forget(key)
        if self.journal is not None:
            self.journal.forgotten(key)

    async def until_ended(self, job: FakeJob, seconds: float) -> None:
        """Wait for a job's end, for that long at most."""
        if job.terminal:
            return
        waiter = asyncio.Event()
        self._waiters.setdefault(job.id, []).append(waiter)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiter.wait(), seconds)

    def window(self, received: Received, token: str) -> SlidingWindow | None:
        """The budget that a request takes from, or None where there is no limit."""
        write = received.method == "POST"
        limit = self.options.writes_per_minute if write else self.options.reads_per_minute
        if limit is None:
            return None
        window = self._windows.setdefault(
            ("write" if write else "read", token), SlidingWindow(limit)
        )
        window.limit = limit
        return window

    def capacity(self) -> int:
        """What is left of the queue; a large number where it has no limit."""
        if self.options.queue_capacity is None:
            return 10_000
        return max(0, self.options.queue_capacity - self.book.queued)

    def credits_left(self) -> int | None:
        """How many more jobs the balance pays for; None where it is not limited."""
        if self.options.credits is None:
            return None
        return self.options.credits - (self.book.billed - self.book.refunded)

    def stats(self, *, keys: bool = False) -> dict[str, Any]:
        """What happened so far, as one JSON object."""
        jobs = self.book.jobs.values()
        waiting = {"pending", "retrying"}
        value: dict[str, Any] = {
            "billed": self.book.billed,
            "keys": len(self.book.billed_by_key),
            "most_jobs_for_one_key": max(self.book.billed_by_key.values(), default=0),
            "jobs_by_status": dict(Counter(job.status for job in jobs)),
            "posts": len(self.log.posts),
            "submits": self.log.submits,
            "replays": self.log.replays,
            "reads": self.log.reads,
            "answers": dict(self.log.answers),
            "max_posts_in_60_seconds": self.log.posts.most_in_a_minute,
            "webhooks": {
                "deliveries": sum(self.sender.answers.values()),
                "answers": dict(self.sender.answers),
                "outcomes": dict(self.sender.outcomes),
                "jobs_by_delivery_state": dict(
                    Counter(job.webhook_status for job in jobs if job.webhook_status)
                ),
                "under_way": sum(job.terminal and job.webhook_status in waiting for job in jobs),
            },
            "weather": dict(self.weather.values),
        }
        if keys:
            value["billed_by_key"] = dict(self.book.billed_by_key)
        return value

    def _advance(self, job: FakeJob, status: str, error: Any) -> None:
        if not job.terminal:
            self.move(job, status, error=error)

    def _webhook_changed(self, job: FakeJob) -> None:
        if self.journal is not None:
            self.journal.webhook(job)
