"""The loop that submit and poll share: claim, call Sume concurrently, record, within the time.

It claims no more than it can send at once, records whatever has finished at once, and starts
nothing that it cannot finish before the function's own timeout.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

import psycopg

from sume_jobs import telemetry
from sume_jobs.connection import DatabaseUnavailable
from sume_jobs.decisions.outcomes import Answer, NoAnswer
from sume_jobs.decisions.pacing import TOKEN_LIFE
from sume_jobs.settings import RECORD_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sume_jobs.decisions.pacing import Pace
    from sume_jobs.flows.time_left import TimeLeft
    from sume_jobs.store.pace import Admission

# How often a run looks for new work while it lingers or waits for answers, in seconds.
LOOK_AGAIN: Final = 0.1
# What a run keeps to itself at the very end, in seconds.
LAST_WORDS: Final = 1.0
# A statement that meets a locked row takes the role's lock_timeout and a little more, in seconds.
LOCK_SECONDS: Final = 2.5
# About what one statement takes, in seconds: for that long threads can go on by themselves.
STATEMENT_SECONDS: Final = 0.01
# Only calls shorter than this are hurt by waiting for a statement.
SHORT_CALL: Final = 0.1
# A freed thread waits for others that are just being freed for this part of a call at most.
WAVE_SHARE: Final = 0.01

Item = TypeVar("Item")


class Done(NamedTuple, Generic[Item]):
    """One finished call. `probe` tells that it went through a half-open gate."""

    item: Item
    answer: Answer | NoAnswer
    probe: bool


class Signals:
    """What recorded answers mean for the rest of the run."""

    def __init__(self, stop: bool = False, one_at_a_time: bool | None = None) -> None:
        self.stop = stop
        self.one_at_a_time = one_at_a_time


class Work(Protocol[Item]):
    """What is to be done; each method is one statement or one HTTP call."""

    def claim(self, wanted: int, may_be_alone: bool) -> tuple[Admission, list[Item]]:
        """Claim up to `wanted` items, as far as gate and budget allow."""

    def is_alone(self, item: Item) -> bool:
        """Tell whether nothing else may be in flight beside this item."""

    def call(self, item: Item) -> Answer | NoAnswer:
        """Make the HTTP call; runs in a thread."""

    def record(self, done: Sequence[Done[Item]]) -> Signals:
        """Record finished calls."""

    def release(self, items: Sequence[Item]) -> None:
        """Give back items that were claimed but not sent."""

    def after(self, force: bool) -> None:
        """Do what is left to do after a commit; `force` at the end of the run."""


class _Claimed(Generic[Item]):
    """A claimed item on its way; `sent_at` is None until a thread takes it up.

    It goes out only in its own `epoch`: what closes the gate or narrows the run begins another.
    """

    def __init__(self, item: Item, claimed_at: float, probe: bool, epoch: int) -> None:
        self.item = item
        self.claimed_at = claimed_at
        self.probe = probe
        self.epoch = epoch
        self.sent_at: float | None = None


class PacedRun(Generic[Item]):
    """One run over `work`, at most `concurrency` calls at a time.

    `call_seconds` is the longest that a call can take. The first call goes alone, and again
    after a call that got no answer: so an unreachable or stopped Sume costs one row, not many.
    """

    def __init__(
        self,
        work: Work[Item],
        left: TimeLeft,
        pace: Pace,
        concurrency: int,
        call_seconds: float,
        linger: float,
    ) -> None:
        self.work = work
        self.left = left
        self.pace = pace
        self.concurrency = concurrency
        self.call_seconds = call_seconds
        self.linger = linger
        self.stopped = False
        self._ready: deque[_Claimed[Item]] = deque()
        # Handed to the threads and not yet come back, in that order.
        self._in_flight: dict[_Claimed[Item], None] = {}
        self._alone = False
        self._met_lock = False
        self._is_away = False
        self._confirmed = False
        self._one_at_a_time = False
        self._ended = False
        self._nothing_due = False
        self._looked_busy = False
        self._claim_at = 0.0
        self._linger_until = 0.0
        self._latency: float | None = None
        self._failure: Exception | None = None
        self._unrecorded: list[Done[Item]] = []
        self._epoch = 0
        # Answers that are no success and not recorded yet: nothing goes out before that.
        self._troubles: set[int] = set()
        # With None for an item that came back unsent.
        self._finished: queue.SimpleQueue[tuple[_Claimed[Item], Answer | NoAnswer | None]] = (
            queue.SimpleQueue()
        )

    def run(self) -> None:
        """Run until nothing is due, the time is over, or a gate closed.

        Raises DatabaseUnavailable or psycopg.Error where the database failed for good, after
        everything that could be finished was finished.
        """
        self._linger_until = time.monotonic() + self.linger
        if not self._has_time():
            return
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="sume")
        try:
            while True:
                self._send_ready(pool)
                self._claim()
                self._send_ready(pool)
                if not self._in_flight and not self._ready and not self._unrecorded:
                    if self._ended or not self._has_time():
                        break
                    if self._nothing_due and time.monotonic() >= self._linger_until:
                        break
                done = self._wait()
                if self._spare:
                    self._send_ready(pool)
                self._record(done)
                self._record_rest_of_wave()
                if self.left.seconds() <= LAST_WORDS:
                    break
            self._give_up()
            self._after(force=True)
        finally:
            # Calls that hang in the resolver are left behind; their rows are already recorded.
            pool.shutdown(wait=False, cancel_futures=True)
        if self._failure is not None:
            raise self._failure

    # Claiming ---------------------------------------------------------------------------------

    def _has_time(self) -> bool:
        return self.left.seconds() > self.call_seconds + RECORD_SECONDS

    @property
    def _width(self) -> int:
        return 1 if self._one_at_a_time or not self._confirmed else self.concurrency

    @property
    def _ahead(self) -> int:
        """How many claimed rows may wait for a free thread without outliving their tokens."""
        if self._latency is None or self._width == 1:
            return 0
        return int(self._width * min(2.0, TOKEN_LIFE / 2 / max(self._latency, 1e-3)))

    @property
    def _spare(self) -> int:
        """How many calls may wait inside the pool, so that short calls never wait for Postgres."""
        if self._latency is None or self._width == 1 or self._latency > SHORT_CALL:
            return 0
        return int(self._width * min(1.0, STATEMENT_SECONDS / max(self._latency, 1e-3)))

    def _claim(self) -> None:
        if self._ended or self._alone or self._unrecorded or self._troubles:
            return
        if not self._has_time():
            self._ended = True
            return
        busy = len(self._in_flight) + len(self._ready)
        wanted = self._width + self._ahead - busy
        now = time.monotonic()
        # What a busy run found says nothing about the rows that are sent alone.
        if busy == 0 and self._looked_busy:
            self._claim_at = 0.0
        # A busy run waits until a claim pays: its width, or all that may be ahead.
        if wanted < max(1, min(self._width, self._ahead)) or now < self._claim_at:
            return
        try:
            admission, items = self.work.claim(wanted, may_be_alone=busy == 0)
        except psycopg.errors.LockNotAvailable:
            # Somebody holds the budget's row; the next run will find it free.
            telemetry.warn("claim_waited_too_long")
            self._ended = True
            return
        except (DatabaseUnavailable, psycopg.Error) as error:
            self._fail("claim_failed", error)
            return
        now = time.monotonic()
        for item in items:
            self._ready.append(_Claimed(item, now, admission.probing, self._epoch))
            self._alone = self._alone or self.work.is_alone(item)
        self._nothing_due = not items and busy == 0
        self._looked_busy = False
        if items and len(items) >= wanted:
            return
        if admission.day_is_full and not items:
            self._meet_full_day(now, busy, admission)
            return
        if admission.debt is not None and admission.is_open and len(items) >= admission.tokens:
            # Only tokens are lacking.
            debt = admission.debt + len(items) / self.pace.rate
            self._claim_at = now + self.pace.wait_for_token(debt, wanted - len(items))
            self._nothing_due = False
        elif admission.is_open:
            self._claim_at = now + LOOK_AGAIN
            self._looked_busy = busy > 0
        elif not items and not self._probe_is_out:
            # Closed, or somebody else's probe is out: a run that lingers may outlast it.
            self._claim_at = now + max(admission.closed_for, LOOK_AGAIN)
            if self._claim_at >= self._linger_until:
                self._ended = True
                self.stopped = admission.is_due

    def _meet_full_day(self, now: float, busy: int, admission: Admission) -> None:
        if busy:
            # What is on its way may still be refused and give its place back.
            self._claim_at = now + LOOK_AGAIN
            self._looked_busy = True
            return
        self._claim_at = now + max(admission.day_left, LOOK_AGAIN)
        if self._claim_at >= self._linger_until:
            self._ended = self.stopped = True

    @property
    def _probe_is_out(self) -> bool:
        return any(each.probe for each in (*self._in_flight, *self._ready))

    # Calling ----------------------------------------------------------------------------------

    def _send_ready(self, pool: ThreadPoolExecutor) -> None:
        stale = []
        while self._ready:
            claimed = self._ready[0]
            if not self._may_send(claimed):
                stale.append(self._ready.popleft().item)
            elif self._troubles or len(self._in_flight) >= self._width + self._spare:
                break
            else:
                self._in_flight[self._ready.popleft()] = None
                pool.submit(self._call, claimed)
        if stale:
            self._release(stale)

    def _may_send(self, claimed: _Claimed[Item]) -> bool:
        is_fresh = time.monotonic() - claimed.claimed_at <= TOKEN_LIFE
        is_wanted = claimed.epoch == self._epoch and not self._ended
        return is_fresh and is_wanted and self._has_time()

    def _call(self, claimed: _Claimed[Item]) -> None:
        claimed.sent_at = time.monotonic()
        if self._troubles or not self._may_send(claimed):
            claimed.sent_at = None
            self._finished.put((claimed, None))
            return
        try:
            answer: Answer | NoAnswer = self.work.call(claimed.item)
        except Exception as error:  # a thread must always answer
            telemetry.logger.exception("call_failed")
            answer = NoAnswer(sent=True, reason=type(error).__name__)
        if not isinstance(answer, Answer) or not 200 <= answer.status < 300:
            self._troubles.add(id(claimed.item))
        self._finished.put((claimed, answer))

    def _wait(self) -> list[Done[Item]]:
        """Wait for a finished call, or until it is time to claim; give all that finished."""
        now = time.monotonic()
        patience = LOOK_AGAIN
        if not self._ended and self._claim_at > now:
            patience = min(patience, self._claim_at - now)
        if self._unrecorded:
            patience = LOOK_AGAIN
        if self._in_flight:
            return self._take_finished(max(patience, 0.001))
        if not self._ready or self._troubles:
            time.sleep(max(patience, 0.001))
        return []

    def _take_finished(self, patience: float) -> list[Done[Item]]:
        """Give all calls that finished, after at most `patience` seconds."""
        done: list[Done[Item]] = []
        try:
            self._finish(*self._finished.get(timeout=patience), done)
            while True:
                self._finish(*self._finished.get_nowait(), done)
        except queue.Empty:
            return done

    def _finish(
        self, claimed: _Claimed[Item], answer: Answer | NoAnswer | None, done: list[Done[Item]]
    ) -> None:
        self._in_flight.pop(claimed, None)
        if answer is None or claimed.sent_at is None:
            self._ready.appendleft(claimed)
            return
        self._alone = False
        took = time.monotonic() - claimed.sent_at
        self._latency = took if self._latency is None else 0.8 * self._latency + 0.2 * took
        if isinstance(answer, Answer):
            self._confirmed = True
        else:
            if not answer.sent and not answer.unsendable and not self._confirmed:
                telemetry.alarm("sume_unreachable", reason=answer.reason)
                self._ended = True
            self._confirmed = False
        done.append(Done(claimed.item, answer, claimed.probe))

    # Recording --------------------------------------------------------------------------------

    def _record(self, done: list[Done[Item]]) -> None:
        done = self._unrecorded + done
        self._unrecorded = []
        if not done:
            self._after(force=False)
            return
        self._record_batch(done)
        self._after(force=False)

    def _record_rest_of_wave(self) -> None:
        """Record what finished meanwhile before any thread is used again.

        Calls that go out together come back together and are recorded together, so this saves
        statements; it holds no answer back, and costs no more than `WAVE_SHARE` of a call.
        """
        if self._latency is None or self._spare:
            return
        until = time.monotonic() + WAVE_SHARE * self._latency
        while not self._finished.empty() and time.monotonic() < until:
            self._record(self._take_finished(0.0))

    def _record_batch(self, done: list[Done[Item]]) -> None:
        if self._met_lock and self.left.seconds() <= LOCK_SECONDS:
            self._unrecorded += done
            return
        try:
            signals = self.work.record(done)
        except (DatabaseUnavailable, psycopg.Error) as error:
            self._met_lock = self._met_lock or isinstance(error, psycopg.errors.LockNotAvailable)
            self._is_away = isinstance(error, DatabaseUnavailable)
            # One row that somebody holds locked, or one answer that cannot be stored, must not
            # keep the others back.
            if len(done) > 1 and not isinstance(error, DatabaseUnavailable):
                for one in done:
                    self._record_batch([one])
                return
            telemetry.warn("record_failed", kind=type(error).__name__)
            self._unrecorded += done
            return
        self._troubles.difference_update(id(one.item) for one in done)
        if signals.stop:
            self._stop()
        if signals.one_at_a_time is not None:
            self._epoch += signals.one_at_a_time and not self._one_at_a_time
            self._one_at_a_time = signals.one_at_a_time

    def _stop(self) -> None:
        """A gate closed: nothing more goes out until a claim finds it open again."""
        self._epoch += 1
        self._release([claimed.item for claimed in self._ready])
        self._ready.clear()
        self._confirmed = False
        self._claim_at = 0.0
        if time.monotonic() >= self._linger_until:
            self._ended = self.stopped = True

    def _release(self, items: list[Item]) -> None:
        if not items:
            return
        try:
            self.work.release(items)
        except (DatabaseUnavailable, psycopg.Error) as error:
            # Nothing is lost: the reaper takes them back.
            telemetry.warn("release_failed", kind=type(error).__name__, rows=len(items))
        self._alone = False

    def _after(self, force: bool) -> None:
        try:
            self.work.after(force)
        except (DatabaseUnavailable, psycopg.Error) as error:
            telemetry.warn("after_commit_failed", kind=type(error).__name__)

    def _fail(self, name: str, error: Exception) -> None:
        telemetry.alarm(name, kind=type(error).__name__, sqlstate=getattr(error, "sqlstate", None))
        self._failure = self._failure or error
        self._ended = True

    def _give_up(self) -> None:
        """Record what is known when the time is over: an outcome nobody knows is one too."""
        self._ended = True
        known = self._unrecorded + self._take_finished(0.0)
        # What no thread has taken up by now never goes out, because the run has ended.
        unsent = [claimed for claimed in self._in_flight if claimed.sent_at is None]
        self._release([claimed.item for claimed in (*self._ready, *unsent)])
        self._ready.clear()
        lost = [
            Done(claimed.item, NoAnswer(sent=True, reason="FunctionTimeout"), claimed.probe)
            for claimed in self._in_flight
            if claimed.sent_at is not None
        ]
        self._in_flight.clear()
        self._unrecorded = []
        if known or lost:
            self._record_batch(known + lost)
        if self._unrecorded:
            # Nothing is lost: the reaper takes the rows back, and the same key finds their jobs.
            telemetry.alarm("answers_not_recorded", count=len(self._unrecorded))
            if self._is_away:
                self._failure = self._failure or DatabaseUnavailable(
                    f"{len(self._unrecorded)} answers could not be recorded"
                )
