"""Housekeeping: retention over a long history while claims run, and sizes after a year.

`python -m tests.benchmarks.housekeeping` takes about 12 minutes and 9 GB in memory (--disk: on
disk; --rows 500000: less).
"""

from __future__ import annotations

import argparse
import shlex
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from rich.console import Console
from sume_jobs.store import retention, webhook_events

from tests.benchmarks.large import (
    BATCH,
    Cost,
    Large,
    LargeServer,
    claim_and_record,
    end,
    measured,
)
from tests.benchmarks.results import Subject, keep, show
from tests.benchmarks.server import FOLDER
from tests.support import history

RETENTION_DAYS = 30
KEY_LIFE = 86_400
# Claims alone and claims beside retention, in turns of so many seconds.
WINDOW = 5.0
# A batch of 50 so often: 200 jobs a second, 100 times the pace of one key.
TURN_SECONDS = 0.25
# Bytes by which prompt, result and event are longer than the least that they could be: a prompt
# of 140 characters, the address of a file, an event of 300.
PADDING = 100
YEAR_A_DAY = 3_000


def main() -> None:
    """Run both subjects; print and keep the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.housekeeping", description=__doc__
    )
    names = ("year", "retention")
    parser.add_argument("subjects", nargs="*", choices=[[], *names], help="both")
    parser.add_argument("--disk", action="store_true", help="the server's data on disk")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, default=120.0, help="of retention")
    parser.add_argument("--days", type=int, default=365, help="of the simulated year")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if Console().is_terminal else 160)
    with LargeServer(on_disk=given.disk) as server:
        console.print(f"{server.describe()}\n", highlight=False)
        path = FOLDER / time.strftime("housekeeping-%Y%m%d-%H%M%S.json")
        subjects: dict[str, Subject] = {}
        measures: dict[str, Callable[[], Subject]] = {
            "year": lambda: _year(server, given.days),
            "retention": lambda: _retention(server, given.rows, given.seconds),
        }
        for name in given.subjects or measures:
            subjects[name] = measures[name]()
            show(console, subjects[name])
            keep(path, server.describe(), shlex.join(sys.argv), subjects)
    console.print(f"kept in {path.relative_to(Path.cwd())}")


def _retention(server: LargeServer, rows: int, seconds: float) -> Subject:
    """Windows with retention at work and without, in turns."""
    large = server.database("retention", finished=rows, newest=f"{RETENTION_DAYS + 2} days")
    windows = max(2, round(seconds / WINDOW))
    large.add_pending(2 * windows * round(WINDOW / TURN_SECONDS) * BATCH)
    large.run("vacuum analyze render_jobs")
    server.superuser("checkpoint")
    subject = Subject(f"Retention over {rows:,} rows, in batches of {retention.BATCH:,}")
    claims: dict[bool, list[Cost]] = {False: [], True: []}
    ends: dict[bool, list[Cost]] = {False: [], True: []}
    keeper = _Keeper(large)
    store = large.store()
    for window in range(2 * windows):
        is_on = bool(window % 2)
        keeper.go_on() if is_on else keeper.pause()
        begun = time.monotonic()
        for turn in range(round(WINDOW / TURN_SECONDS)):
            time.sleep(max(0.0, begun + turn * TURN_SECONDS - time.monotonic()))
            with measured(store, BATCH) as claim:
                jobs = claim_and_record(store, BATCH, rows)
            with measured(store, BATCH) as ended:
                end(store, jobs)
            if window > 1:
                claims[is_on] += claim
                ends[is_on] += ended
    keeper.stop()
    store.close()
    gone = sum(keeper.gone)
    subject.add("rows deleted", "rows", [gone])
    subject.add("a batch", "ms", [1000 * each for each in keeper.seconds])
    rate = [each / spent for each, spent in zip(keeper.gone, keeper.seconds, strict=True)]
    subject.add("rate", "rows/s", rate)
    took = sum(keeper.seconds) / gone * rows / 60
    subject.add(f"all {rows:,}", "minutes", [took], "by arithmetic" if gone < rows else "")
    for what, costs in (("claim + record", claims), ("guarded end", ends)):
        for is_on, label in ((False, "alone"), (True, "beside retention")):
            rates = [1000 * BATCH / each.rate for each in costs[is_on]]
            subject.add(f"{what}, {label}", "ms/50 jobs", rates)
            processor = [each.processor for each in costs[is_on]]
            subject.add("  server", "microseconds/job", processor)
        for name, values in (
            ("time", {on: [1 / each.rate for each in costs[on]] for on in costs}),
            ("server", {on: [each.processor for each in costs[on]] for on in costs}),
        ):
            ratio = statistics.median(values[True]) / statistics.median(values[False])
            subject.add(f"  {name}, beside / alone", "times", [ratio], aim=("<=", 1.1))
    server.drop(large.name)
    return subject


class _Keeper:
    """Purges in a thread of its own while it may; a store that takes the time of each batch."""

    def __init__(self, large: Large) -> None:
        self.gone: list[int] = []
        self.seconds: list[float] = []
        self._store = large.store()
        self._may_run = threading.Event()
        self._is_idle = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def run(self, sql: str, parameters: dict[str, object]) -> list[dict[str, object]]:
        begun = time.monotonic()
        rows = self._store.run(sql, parameters)
        if gone := rows[0]["gone"]:
            self.seconds.append(time.monotonic() - begun)
            self.gone.append(gone)
        return rows

    def go_on(self) -> None:
        self._may_run.set()

    def pause(self) -> None:
        self._may_run.clear()
        self._is_idle.wait()

    def stop(self) -> None:
        self._is_over = True
        self._may_run.set()
        self._thread.join()
        self._store.close()

    def _work(self) -> None:
        while not self._is_over:
            self._is_idle.set()
            self._may_run.wait()
            self._is_idle.clear()
            if not self._is_over:
                # Each time from the first row on, as each run of reap.
                retention.purge(self, RETENTION_DAYS, KEY_LIFE, self._may_run.is_set)  # type: ignore[arg-type]


def _year(server: LargeServer, days: int) -> Subject:
    """A year at 3,000 a day with a retention of 30 days, day by day; more by arithmetic."""
    large = server.database("year")
    subject = Subject(
        f"{days} days at {YEAR_A_DAY:,} a day, kept for {RETENTION_DAYS} days (then by arithmetic)"
    )
    store = large.store()
    with psycopg.connect(large.superuser_url, autocommit=True) as connection:
        for day in range(days):
            ago = days - 1 - day
            history.load(
                connection,
                YEAR_A_DAY,
                first=1 + day * YEAR_A_DAY,
                newest=f"{ago} days",
                gap="28 seconds",
                padding=PADDING,
                rebuild=False,
            )
            # On that day this was `RETENTION_DAYS` ago.
            old = ago + RETENTION_DAYS
            while webhook_events.purge_old(store, old):
                pass
            retention.purge(store, old, KEY_LIFE, lambda: True)
            # As autovacuum does after 5,000 changes; by then a day and a half have gone.
            if day % 2:
                connection.execute("vacuum analyze")
        connection.execute("vacuum analyze")
        rows = connection.execute(
            "select relname, pg_table_size(oid), pg_indexes_size(oid) from pg_class"
            " where relname = any (%s)",
            (list(history.TABLES),),
        ).fetchall()
        (kept,) = connection.execute("select count(*) from render_jobs").fetchone() or (0,)
    subject.add("rows of render_jobs kept", "rows", [kept])
    whole = 0
    for name, table, indexes in rows:
        whole += table + indexes
        subject.add(f"{name}, table", "MB", [table / 1e6], f"{table / kept:,.0f} bytes a job")
        subject.add(f"{name}, indexes", "MB", [indexes / 1e6], f"{indexes / kept:,.0f} bytes a job")
    a_job = whole / kept
    subject.add("all", "MB", [whole / 1e6], f"{a_job:,.0f} bytes a job")
    for a_day, keeping in ((3_000, 365), (300_000, 30), (300_000, 365)):
        size = a_job * a_day * (keeping + 1)
        note = "by arithmetic from the bytes a job above"
        subject.add(f"{a_day:,} a day, kept {keeping} days", "GB", [size / 1e9], note)
    store.close()
    server.drop(large.name)
    return subject


if __name__ == "__main__":
    main()
