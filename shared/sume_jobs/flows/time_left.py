"""How much of the invocation is left."""

from __future__ import annotations

import time
from typing import Any


class TimeLeft:
    """The invocation's remaining time, as Lambda's context tells it; a minute without a context."""

    def __init__(self, context: Any) -> None:
        self._ask = getattr(context, "get_remaining_time_in_millis", None)
        self._end = time.monotonic() + 60.0

    def seconds(self) -> float:
        """Seconds until the function is killed; may be 0 or negative."""
        return self._ask() / 1000.0 if self._ask else self._end - time.monotonic()
