"""EventBridge's role on this machine: invokes functions at an interval, whatever they answer.

A tick is due every interval, also while the last one still runs: calls overlap up to the
function's reserved concurrency, and a tick beyond it is dropped, as a throttled one would be.
After a stall the missed ticks are not made up for.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from local.runner import REGION, THROTTLED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from local.runner import Invocation, Runner


@dataclass(frozen=True)
class Schedule:
    """Invoke ``function`` every ``interval_seconds``, from the start on."""

    function: str
    interval_seconds: float


def scheduled_event(function: str, at: datetime | None = None) -> dict[str, Any]:
    """The event that EventBridge Scheduler sends to a Lambda target without an input."""
    instant = (at or datetime.now(UTC)).astimezone(UTC)
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "Scheduled Event",
        "source": "aws.scheduler",
        "account": "000000000000",
        "time": instant.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": REGION,
        "resources": [f"arn:aws:scheduler:{REGION}:000000000000:schedule/default/{function}"],
        "detail": "{}",
    }


class Scheduler:
    """Runs schedules in threads of its own between ``start`` and ``stop``. A context manager.

    ``on_result`` is called with every `Invocation`, in the thread that made it.
    """

    def __init__(
        self,
        runner: Runner,
        schedules: Iterable[Schedule],
        on_result: Callable[[Invocation], None] | None = None,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self._runner = runner
        self._schedules = list(schedules)
        self._on_result = on_result
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._calls: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Scheduler:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin; the first tick of every schedule is due now."""
        for schedule in self._schedules:
            thread = threading.Thread(
                target=self._tick, args=(schedule,), daemon=True, name=f"every-{schedule.function}"
            )
            thread.start()
            self._threads.append(thread)

    def stop(self, drain_seconds: float = 0.0) -> bool:
        """Start no more calls and wait for those in progress; whether all of them ended."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        deadline = time.monotonic() + drain_seconds
        while True:
            with self._lock:
                calls = list(self._calls)
            if not calls:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            calls[0].join(left)

    def _tick(self, schedule: Schedule) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(due - time.monotonic(), 0)):
            self._begin(schedule.function)
            due = max(due + schedule.interval_seconds, time.monotonic())

    def _begin(self, function: str) -> None:
        limit = self._runner.functions[function].concurrency
        if limit is not None and self._runner.running(function) >= limit:
            self.dropped[function] += 1
            return
        call = threading.Thread(
            target=self._call, args=(function,), daemon=True, name=f"call-{function}"
        )
        with self._lock:
            self._calls.add(call)
        call.start()

    def _call(self, function: str) -> None:
        try:
            invocation = self._runner.invoke(function, scheduled_event(function))
            if invocation.failure is not None and invocation.failure.kind == THROTTLED:
                self.dropped[function] += 1
            elif self._on_result is not None:
                self._on_result(invocation)
        except RuntimeError:
            if not self._stopping.is_set():
                raise
        finally:
            with self._lock:
                self._calls.discard(threading.current_thread())
