"""Lets jobs go on by themselves: when they start, how long they take and how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from .behaviour import Weather
    from .model import FakeJob
    from .options import Options

# Without a limit on concurrency, a job is shown as queued for this part of its time.
QUEUED_PART = 0.3


class Generation:
    """The workers of the fake. All of it runs in the server's thread.

    `move(job, status, error)` is called for each step; whether a job still may move is asked here.
    """

    def __init__(
        self,
        options: Options,
        weather: Weather,
        move: Callable[[FakeJob, str, Any], None],
    ) -> None:
        self._options = options
        self._weather = weather
        self._move = move
        self._waiting: dict[str, FakeJob] = {}
        self._busy: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def end(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._waiting.clear()
        self._busy.clear()
        self._loop = None

    def add(self, job: FakeJob) -> None:
        """Take a new job, or one that a restart left unfinished."""
        if not self._options.auto_advance or job.terminal:
            return
        if self._options.concurrency is None:
            self._later(job, self._seconds(job) * QUEUED_PART, self._start)
        else:
            self._waiting[job.id] = job
            self._fill()

    def leave(self, job: FakeJob) -> None:
        """A job ended, or was taken in hand by a test: nothing more happens to it here."""
        self._waiting.pop(job.id, None)
        timer = self._timers.pop(job.id, None)
        if timer is not None:
            timer.cancel()
        if job.id in self._busy:
            self._busy.discard(job.id)
            self._fill()

    def finish(self, job: FakeJob) -> None:
        """Bring a job to its end now."""
        self._move(job, *self.end_of(job))

    def _fill(self) -> None:
        limit = self._options.concurrency
        while self._waiting and (limit is None or len(self._busy) < limit):
            job = self._waiting.pop(next(iter(self._waiting)))
            self._busy.add(job.id)
            self._start(job)

    def _start(self, job: FakeJob) -> None:
        if job.terminal:
            return
        job.started = True
        skips = self._weather.strikes("skip_processing", job.key or job.id)
        if job.status == "queued" and not skips:
            self._move(job, "processing", None)
        rest = 1.0 if self._options.concurrency is not None else 1.0 - QUEUED_PART
        self._later(job, self._seconds(job) * rest, self.finish)

    def _later(self, job: FakeJob, seconds: float, step: Callable[[FakeJob], None]) -> None:
        if self._loop is None:
            return

        def run() -> None:
            self._timers.pop(job.id, None)
            step(job)

        self._timers[job.id] = self._loop.call_later(seconds, run)

    def _seconds(self, job: FakeJob) -> float:
        least, most = self._options.job_seconds
        return least + (most - least) * self._weather.draw("job_seconds", job.key or job.id)

    def end_of(self, job: FakeJob) -> tuple[str, Mapping[str, Any] | None]:
        """The terminal status and the error that the seed has in store for a job."""
        subject = job.key or job.id
        if self._weather.strikes("failed", subject):
            failures = self._options.failures
            chosen = int(self._weather.draw("failure", subject) * len(failures))
            return "failed", dict(failures[chosen])
        if self._weather.strikes("canceled", subject):
            return "canceled", None
        return "completed", None
