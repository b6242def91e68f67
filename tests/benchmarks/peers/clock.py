"""The clock of a peer: from its first job until its database shows none left.

So neither starting the worker nor stopping it is counted, which favours the peers.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version

import psycopg


@dataclass
class Clock:
    """Counts jobs as they run; `count_left` is a query for those that are not finished yet."""

    url: str
    rows: int
    count_left: str
    seconds: float = 0.0
    _begun: float = 0.0
    _ran: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _all_ran: threading.Event = field(default_factory=threading.Event)

    def job(self) -> None:
        """Note that one job runs; called in the job."""
        with self._lock:
            if not self._ran:
                self._begun = time.perf_counter()
            self._ran += 1
            if self._ran == self.rows:
                self._all_ran.set()

    def watch(self, then: Callable[[], None]) -> threading.Thread:
        """Wait in a thread until all jobs have run and are finished, then call `then`."""

        def wait() -> None:
            self._all_ran.wait(120)
            with psycopg.connect(self.url, autocommit=True) as connection:
                while connection.execute(self.count_left.encode()).fetchone() != (0,):
                    time.sleep(0.001)
            self.seconds = time.perf_counter() - self._begun
            then()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def tell(self, package: str) -> None:
        """Print the figures for the one who started this process."""
        if self._ran != self.rows:
            raise RuntimeError(f"{self._ran} jobs ran instead of {self.rows}")
        print(json.dumps({"rows": self.rows, "seconds": self.seconds, "version": version(package)}))


def arguments() -> tuple[str, bool, int, int]:
    """Give the database's URL, whether tuned, the jobs to run and the finished ones to have."""
    url, mode, rows, finished = sys.argv[1:]
    return url, mode == "tuned", int(rows), int(finished)


def execute(url: str, *statements: str) -> None:
    """Run statements one by one."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
