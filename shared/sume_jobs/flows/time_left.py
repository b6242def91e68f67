"""How much of the invocation is left."""

from __future__ import annotations

import time
from typing import Any


class TimeLeft:
    """The invocation's remaining time, as Lambda's context tells it, and `at_most` seconds of it.

    A minute without a context.
    """

    def __init__(self, context: Any, at_most: float | None = None) -> None:
        self._ask = getattr(context, "get_remaining_time_in_millis", None)
        most = at_most if at_most is not None or self._ask else 60.0
        self._end = None if most is None else time.monotonic() + most

    def seconds(self) -> float:
        """Seconds until the function is killed; may be 0 or negative."""
        until_killed = self._ask() / 1000.0 if self._ask else float("inf")
        until_end = float("inf") if self._end is None else self._end - time.monotonic()
        return min(until_killed, until_end)
