"""Flat as it grows: the hot paths beside history, backlog and weather, in turns on one server.

`python -m tests.benchmarks.flat` takes about 15 minutes and 12 GB in memory (--disk: on disk;
--finished 0 500000: less). Beside the rate stands the time that the server's process was on a
processor, in which other work on the machine does not show.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from rich.console import Console
from sume_jobs.store import render_jobs

from tests.benchmarks import life
from tests.benchmarks.large import (
    Cost,
    Large,
    LargeServer,
    claim_and_record,
    end,
    measured,
)
from tests.benchmarks.results import Subject, keep, show
from tests.benchmarks.server import FOLDER
from tests.database.sessions import claiming

ROWS = 2_000
WAITING = 200_000
PINNED_SECONDS = 100
# A batch of 50 in each turn: 400 jobs a second in each of two databases.
TURN_SECONDS = 0.125
IDLE_CLAIMS = 200


def main() -> None:
    """Run the chosen subjects; print and keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.flat", description=__doc__)
    names = ("turns", "idle", "pinned", "life")
    parser.add_argument("subjects", nargs="*", choices=[[], *names], help="all of them")
    parser.add_argument("--disk", action="store_true", help="the server's data on disk")
    parser.add_argument("--finished", type=int, nargs="*", default=[0, 500_000, 5_000_000])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--shared-buffers", default=LargeServer.SETTINGS["shared_buffers"])
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if Console().is_terminal else 160)
    with LargeServer(on_disk=given.disk, shared_buffers=given.shared_buffers) as server:
        console.print(f"{server.describe()}; {given.repeats} repeats\n", highlight=False)
        path = FOLDER / time.strftime("flat-%Y%m%d-%H%M%S.json")
        subjects: dict[str, Subject] = {}
        databases = {} if given.subjects == ["life"] else _databases(server, given.finished)
        measures: dict[str, Callable[[], Subject]] = {
            "turns": lambda: _turns(databases, given.repeats),
            "idle": lambda: _idle(databases),
            "pinned": lambda: _pinned(server, databases),
            "life": lambda: life.measure(server.database("life"), given.repeats),
        }
        for name in given.subjects or measures:
            subjects[name] = measures[name]()
            show(console, subjects[name])
            keep(path, server.describe(), shlex.join(sys.argv), subjects)
    console.print(f"kept in {path.relative_to(Path.cwd())}")


def _databases(server: LargeServer, finished: list[int]) -> dict[str, Large]:
    databases = {
        f"{count:,} finished": server.database(f"finished_{count}", finished=count)
        for count in finished
    }
    pending = databases[f"{WAITING:,} pending"] = server.database("pending")
    pending.add_pending(WAITING)
    later = databases[f"{WAITING:,} in the future"] = server.database("future")
    for priority in range(4):
        later.add_pending(WAITING // 4, "1 day", priority)
    for each in (pending, later):
        each.run("vacuum analyze")
    server.superuser("checkpoint")
    return databases


def _turns(databases: dict[str, Large], repeats: int) -> Subject:
    """Each database in turn, so that what slows the machine slows all of them."""
    subject = Subject(f"Flat: {ROWS:,} jobs a turn, batches of 50, one connection")
    claims: dict[str, list[Cost]] = {name: [] for name in databases}
    ends: dict[str, list[Cost]] = {name: [] for name in databases}
    stores = {name: large.store() for name, large in databases.items()}
    for turn in range(repeats + 1):
        for name, large in databases.items():
            store = stores[name]
            large.add_pending(ROWS)
            with measured(store, ROWS) as claim:
                jobs = claim_and_record(store, ROWS, max(large.finished, ROWS))
            with measured(store, ROWS) as ended:
                end(store, jobs)
            # The first turn warms caches.
            if turn:
                claims[name] += claim
                ends[name] += ended
    for what, costs in (("claim + record", claims), ("guarded end", ends)):
        base = next(iter(costs.values()))
        for name, found in costs.items():
            subject.add(f"{what}, {name}", "jobs/s", [cost.rate for cost in found])
            processor = [cost.processor for cost in found]
            subject.add("  server", "microseconds/job", processor)
            if found is not base:
                aim = (">=", 0.9)
                rates = [cost.rate / first.rate for cost, first in zip(found, base, strict=True)]
                subject.add("  rate / first", "times", rates, aim=aim)
                server = [
                    first.processor / cost.processor
                    for cost, first in zip(found, base, strict=True)
                ]
                subject.add("  first / server", "times", server, aim=aim)
    for store in stores.values():
        store.close()
    return subject


def _idle(databases: dict[str, Large]) -> Subject:
    """A claim that finds nothing."""
    subject = Subject("An idle claim")
    for name, large in databases.items():
        if "pending" in name:
            continue
        store = large.store()
        sql, parameters = _statement()
        plans = []
        for _ in range(IDLE_CLAIMS):
            (row,) = store.run("explain (analyze, timing off, format json) " + sql, parameters)
            plans.append(row["QUERY PLAN"][0])
        execution = [plan["Execution Time"] for plan in plans]
        subject.add(f"{name}: execution", "ms", execution, aim=("<=", 0.1))
        subject.add("  planning", "ms", [plan["Planning Time"] for plan in plans])
        with measured(store, IDLE_CLAIMS) as cost:
            for _ in range(IDLE_CLAIMS):
                assert not render_jobs.claim(store, claiming(), 16, True).claims
        subject.add("  server in all", "microseconds", [cost[0].processor])
        store.close()
    return subject


def _statement() -> tuple[str, dict[str, object]]:
    """The claim's statement and parameters, taken down on the way to the database."""
    seen: list[tuple[str, dict[str, object]]] = []

    class Watcher:
        def run(self, sql: str, parameters: dict[str, object]) -> list[dict[str, object]]:
            seen.append((sql, parameters))
            raise InterruptedError

    with contextlib.suppress(InterruptedError):
        render_jobs.claim(Watcher(), claiming(), 16, True)  # type: ignore[arg-type]
    return seen[0]


def _pinned(server: LargeServer, done: dict[str, Large]) -> Subject:
    """A database where another session holds a snapshot, in turns with one where none does.

    Dead rows stay for the sake of a snapshot of their own database only.
    """
    subject = Subject(
        f"A snapshot held for {PINNED_SECONDS} s at {50 / TURN_SECONDS:.0f} jobs a second"
    )
    for large in done.values():
        server.drop(large.name)
    names = ("free", "pinned")
    databases = {name: server.database(name, finished=500_000) for name in names}
    turns = int(PINNED_SECONDS / TURN_SECONDS)
    for each in databases.values():
        each.add_pending(turns * 50)
        each.run("vacuum analyze")
    server.superuser("checkpoint")
    stores = {name: large.store() for name, large in databases.items()}
    costs: dict[str, list[tuple[Cost, Cost]]] = {name: [] for name in names}
    with psycopg.connect(databases["pinned"].url) as holder:
        holder.execute("set idle_in_transaction_session_timeout = 0")
        holder.commit()
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select count(*) from pace_gate")
        begun = time.monotonic()
        for turn in range(turns):
            time.sleep(max(0.0, begun + turn * TURN_SECONDS - time.monotonic()))
            for name, store in stores.items():
                with measured(store, 50) as claim:
                    jobs = claim_and_record(store, 50, 500_000)
                with measured(store, 50) as ended:
                    end(store, jobs)
                costs[name].append((claim[0], ended[0]))
        taken = time.monotonic() - begun
        holder.rollback()
    for store in stores.values():
        store.close()
    subject.add("held for", "s", [taken])
    tenth = turns // 10
    for place, what in enumerate(("claim + record", "guarded end")):
        for name in names:
            for when, part in (("first", costs[name][:tenth]), ("last", costs[name][-tenth:])):
                rates = [turn[place].rate for turn in part]
                subject.add(f"{what}, {name}, {when} {tenth} turns", "jobs/s", rates)
        last = [
            statistics.median(turn[place].processor for turn in costs[name][-tenth:])
            for name in names
        ]
        rates = [
            statistics.median(turn[place].rate for turn in costs[name][-tenth:]) for name in names
        ]
        subject.add("  rate, pinned / free", "times", [rates[1] / rates[0]], aim=(">=", 0.7))
        subject.add("  server, free / pinned", "times", [last[0] / last[1]], aim=(">=", 0.7))
    return subject


if __name__ == "__main__":
    main()
