"""Counting requests over a sliding window."""

from __future__ import annotations

import math
from array import array
from collections import deque


class SlidingWindow:
    """Lets `limit` calls through in any `seconds`; a refused call does not count.

    >>> window = SlidingWindow(2)
    >>> [window.take(at) for at in (0.0, 1.0, 2.0, 60.5)]
    [None, None, 58.0, None]
    """

    def __init__(self, limit: int, seconds: float = 60.0) -> None:
        self.limit = limit
        self.seconds = seconds
        self._taken: deque[float] = deque()

    def take(self, now: float) -> float | None:
        """None if the call may go on, else the seconds until the next one may."""
        self._expire(now)
        if len(self._taken) < self.limit:
            self._taken.append(now)
            return None
        return self.reset(now) if self._taken else self.seconds

    def remaining(self, now: float) -> int:
        self._expire(now)
        return max(0, self.limit - len(self._taken))

    def reset(self, now: float) -> float:
        """Seconds until the oldest call leaves the window; 0 when it is empty."""
        return max(0.0, self._taken[0] + self.seconds - now) if self._taken else 0.0

    def headers(self, now: float) -> dict[str, str]:
        """The `RateLimit-*` headers and their older `X-` copies."""
        values = {
            "Limit": str(self.limit),
            "Remaining": str(self.remaining(now)),
            "Reset": str(math.ceil(self.reset(now))),
        }
        return {
            f"{prefix}RateLimit-{name}": value
            for prefix in ("", "X-")
            for name, value in values.items()
        }

    def _expire(self, now: float) -> None:
        while self._taken and self._taken[0] <= now - self.seconds:
            self._taken.popleft()


class Arrivals:
    """The times of all POSTs (eight bytes each), for measuring what a client really sent."""

    def __init__(self) -> None:
        self._times = array("d")
        self._minute: deque[float] = deque()
        self.most_in_a_minute = 0
        """The same as `most_within(60.0)`, without counting anew."""

    def __len__(self) -> int:
        return len(self._times)

    def add(self, at: float) -> None:
        """Count an arrival; times must not go backwards."""
        self._times.append(at)
        self._minute.append(at)
        while self._minute[0] <= at - 60.0:
            self._minute.popleft()
        self.most_in_a_minute = max(self.most_in_a_minute, len(self._minute))

    def most_within(self, seconds: float) -> int:
        """The largest number of arrivals in any half-open window of that many seconds."""
        times = self._times
        most = first = 0
        for last, at in enumerate(times):
            while times[first] <= at - seconds:
                first += 1
            most = max(most, last - first + 1)
        return most
