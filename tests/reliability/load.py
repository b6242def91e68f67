"""Submitters and deliveries in many processes at once on a long table, judged at the fake.

`python -m tests.reliability.load` is the full run: 100,000 rows, ten submitters, fifty deliveries
in parallel, for three minutes. `tests/reliability/test_load.py` is a smaller one.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "shared")]

from sume_jobs.settings import RECORD_SECONDS  # noqa: E402

from local.fake_sume import FakeSume  # noqa: E402
from tests.support.bundle import (  # noqa: E402
    SECRET,
    Bundle,
    event_body,
    scheduled_event,
    webhook_event,
)
from tests.support.postgres import Database  # noqa: E402

# An answer of the fake takes as long as this; two requests with one key nearer than that overlap.
LATENCY = (0.05, 0.3)
# An invocation may start calls for this long before it must end.
SENDING_SECONDS = 4.0
SUME_SECONDS = 2.0


@dataclass
class Report:
    """What the fake, the tables and the callers saw."""

    rows: int = 0
    seconds: float = 0.0
    posts: int = 0
    billed: int = 0
    most_in_a_minute: int = 0
    allowed_in_a_minute: int = 0
    most_in_two_seconds: int = 0
    share_of_budget: float = 0.0
    overlaps: list[str] = field(default_factory=list)
    billed_twice: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    deliveries: dict[str, int] = field(default_factory=dict)
    slowest_delivery: float = 0.0
    deadlocks_undone: int = 0
    follow_ups: int = 0
    ended: int = 0
    # Processors' worth of work, over the run: of this run with all its processes, and of the whole
    # machine. Where the machine has no more, a missing share of the budget is not the product's.
    cores_used: float = 0.0
    cores_busy: float = 0.0

    def text(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in vars(self).items())


def most_within(seconds: float, instants: list[float]) -> int:
    """The largest number of instants in any window of so many seconds."""
    waiting: deque[float] = deque()
    most = 0
    for instant in sorted(instants):
        waiting.append(instant)
        while waiting[0] <= instant - seconds:
            waiting.popleft()
        most = max(most, len(waiting))
    return most


TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def work_done() -> tuple[float, float]:
    """Seconds of work of this process and all below it, and of the machine; Linux, else zeros."""
    try:
        machine = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
        parents: dict[int, list[int]] = {}
        spent: dict[int, float] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            # Its own time, and that of its children who have ended and were waited for.
            spent[int(entry.name)] = sum(map(int, fields[11:15])) / TICKS
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    except OSError:
        return 0.0, 0.0
    below, total = [os.getpid()], 0.0
    while below:
        process = below.pop()
        total += spent.get(process, 0.0)
        below += parents.get(process, [])
    return total, (sum(machine) - machine[3] - machine[4]) / TICKS


class Run:
    """One run: `start` fills the table, `go` works for some seconds and reports."""

    def __init__(
        self,
        bundle: Bundle,
        database: Database,
        fake: FakeSume,
        budget: int,
        submitters: int,
        deliverers: int,
    ) -> None:
        self.bundle, self.database, self.fake = bundle, database, fake
        self.budget = budget
        self.submitters, self.deliverers = submitters, deliverers
        self.report = Report(allowed_in_a_minute=budget)
        self._end = threading.Event()
        self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lock = threading.Lock()
        fake.options.latency = LATENCY
        bundle.set(
            SUME_WRITES_PER_MINUTE=budget,
            SUME_TIMEOUT_SECONDS=SUME_SECONDS,
            SUBMIT_CONCURRENCY=8,
        )
        with database.server.connect() as admin:
            # Deadlocks are found at once, so that none is hidden by the patience of the default.
            admin.execute(f"alter database {database.name} set deadlock_timeout = '50ms'")

    def fill(self, rows: int) -> None:
        self.database.insert_many(rows)
        self.database.execute("vacuum analyze render_jobs")
        self.report.rows = rows

    def go(self, seconds: float) -> Report:
        containers = [self.bundle.another() for _ in range(self.submitters + self.deliverers + 2)]
        threads = [
            *(
                threading.Thread(target=self._invoke, args=("submit", container))
                for container in containers[: self.submitters]
            ),
            threading.Thread(target=self._invoke, args=("poll", containers[-2])),
            threading.Thread(target=self._invoke, args=("reap", containers[-1])),
            *(
                threading.Thread(target=self._deliver, args=(container,))
                for container in containers[self.submitters : -2]
            ),
            threading.Thread(target=self._make_events),
        ]
        began, before = time.monotonic(), work_done()
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        ours, machine = work_done()
        self.report.cores_used = round((ours - before[0]) / seconds, 2)
        self.report.cores_busy = round((machine - before[1]) / seconds, 2)
        self._end.set()
        for thread in threads:
            thread.join(120)
        self._judge(began, seconds)
        for container in containers:
            container.close()
        return self.report

    def _invoke(self, name: str, container: Any) -> None:
        while not self._end.is_set():
            remaining = SENDING_SECONDS + SUME_SECONDS + RECORD_SECONDS
            reply = container.start(name, scheduled_event(), remaining).wait(90)
            if "error" in reply or reply.get("died"):
                self.report.errors.append(f"{name}: {reply}")

    def _make_events(self) -> None:
        """Each job ends as soon as it was made, so early events are many; and each comes twice."""
        seen = 0
        while not self._end.is_set():
            posts = self.fake.posts()
            for post in posts[seen:]:
                if post.job_id is None:
                    continue
                self.fake.set_status(post.job_id, "completed", webhook=False)
                for body in (
                    event_body(post.job_id, "processing", event_id=f"evt_p_{post.job_id}"),
                    event_body(post.job_id, event_id=f"evt_{post.job_id}"),
                    event_body(post.job_id, event_id=f"evt_{post.job_id}"),
                ):
                    self._events.put(body)
            seen = len(posts)
            time.sleep(0.02)

    def _deliver(self, container: Any) -> None:
        while not self._end.is_set() or not self._events.empty():
            try:
                body = self._events.get(timeout=0.1)
            except queue.Empty:
                continue
            call = container.start("webhook", webhook_event(body), 10.0)
            reply = call.wait(60)
            answer = reply.get("result") or {"statusCode": 502, "body": str(reply)}
            with self._lock:
                outcome = f"{answer['statusCode']} {answer['body']}"
                self.report.deliveries[outcome] = self.report.deliveries.get(outcome, 0) + 1
                self.report.slowest_delivery = max(
                    self.report.slowest_delivery, call.seconds or 0.0
                )
            if answer["statusCode"] != 200:
                self._events.put(body)

    def _judge(self, began: float, seconds: float) -> None:
        report, fake = self.report, self.fake
        posts = fake.posts()
        report.seconds = seconds
        report.posts, report.billed = len(posts), fake.billed
        report.most_in_a_minute = most_within(60.0, [post.at for post in posts])
        report.most_in_two_seconds = most_within(2.0, [post.at for post in posts])
        # Measured from the first request, when every process is up.
        first = posts[0].at
        lasted = began + seconds - first
        sent = sum(post.at <= began + seconds for post in posts)
        report.share_of_budget = sent / (self.budget / 60 * lasted)
        last: dict[str, float] = {}
        for post in posts:
            key = str(post.key)
            if key in last and post.at - last[key] < LATENCY[1]:
                report.overlaps.append(key)
            last[key] = post.at
        report.billed_twice = [key for key, count in fake.billed_by_key.items() if count > 1]
        report.deadlocks_undone = self.database.one(
            "select deadlocks from pg_stat_database where datname = current_database()"
        )
        report.follow_ups = self.database.one("select count(*) from follow_up")
        report.ended = self.database.one(
            "select count(*) from gen_job where status in ('completed', 'failed', 'canceled')"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--submitters", type=int, default=10)
    parser.add_argument("--deliverers", type=int, default=50)
    parser.add_argument("--budget", type=int, default=600, help="requests a minute")
    parser.add_argument("--seconds", type=float, default=180.0)
    options = parser.parse_args()

    from tests.support.container import Nursery
    from tests.support.postgres import Server, create_database

    server = Server().start()
    with tempfile.TemporaryDirectory(prefix="sume-jobs-load-") as folder:
        nursery = Nursery(Path(folder))
        try:
            create_database(server, "sume_load")
            database = Database(server, "sume_load")
            with FakeSume(auto_advance=False, webhook_secret=SECRET) as fake:
                bundle = Bundle(nursery, database, fake)
                bundle.another().invoke("migrate")
                run = Run(
                    bundle, database, fake, options.budget, options.submitters, options.deliverers
                )
                run.fill(options.rows)
                report = run.go(options.seconds)
                print(report.text())
                bundle.close()
            database.close()
        finally:
            nursery.close()
            server.stop()
    faults = [report.overlaps, report.billed_twice, report.errors]
    faults.append([each for each in report.deliveries if not each.startswith("200")])
    good = not any(faults) and report.most_in_a_minute <= report.allowed_in_a_minute
    print("good" if good and report.share_of_budget >= 0.9 else "BAD")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
