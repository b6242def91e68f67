"""Wait for what another process does, with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, timeout: float = 10.0) -> T:
    """What `condition` gives once that is true; AssertionError after `timeout` seconds."""
    timeout *= slack()
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s in vain: {what}")
        time.sleep(0.01)


def slack() -> float:
    """How many times slower than alone this machine is at the moment: 1.0 or more.

    For limits on elapsed time that say "soon"; limits that a function must keep stay as they are.
    """
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
