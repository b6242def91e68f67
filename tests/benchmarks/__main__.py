"""Measures speed, statements, memory and the use of the budget: `python -m tests.benchmarks`.

Nothing here is a test: a time never fails the suite. Aims are shown beside the figures.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from tests.benchmarks import budget, cold_start, cost, end_to_end, ends, latency, memory, queue_core
from tests.benchmarks.results import Subject, keep, show
from tests.benchmarks.server import FOLDER
from tests.benchmarks.stand import Stand


def main() -> None:
    """Run the chosen subjects one after the other on one server; print and keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    names = (
        "end_to_end",
        "queue_core",
        "latency",
        "memory",
        "cold_start",
        "cost",
        "budget",
        "ends",
    )
    parser.add_argument("subjects", nargs="*", choices=[[], *names], help="all of them")
    parser.add_argument("--long", action="store_true", help="budget at every latency (10 minutes)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=600, help="prompts of end_to_end")
    parser.add_argument(
        "--latencies", type=float, nargs="*", default=[0.0, 0.2], help="of end_to_end, in seconds"
    )
    parser.add_argument("--disk", action="store_true", help="the server's data on disk")
    parser.add_argument("--before", type=Path, help="folder of another state of the code")
    given = parser.parse_args()
    chosen = given.subjects or [name for name in names if name != "ends" or given.long]
    before = given.before.resolve() if given.before else None
    # Ended from outside, it stops what it started and takes its data with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if Console().is_terminal else 160)
    with Stand(on_disk=given.disk) as stand:
        server = stand.describe()
        console.print(f"{server}; {given.repeats} repeats\n", highlight=False)
        measures: dict[str, Callable[[], Subject]] = {
            "end_to_end": lambda: end_to_end.measure(
                stand, given.repeats, given.rows, given.latencies, before
            ),
            "queue_core": lambda: queue_core.measure(stand, given.repeats),
            "latency": lambda: latency.measure(min(2, given.repeats)),
            "memory": lambda: memory.measure(1),
            "cold_start": lambda: cold_start.measure(stand, given.repeats),
            "cost": lambda: cost.measure(stand),
            "ends": lambda: ends.measure(),
            "budget": lambda: budget.measure(stand, given.long),
        }
        path = FOLDER / time.strftime("%Y%m%d-%H%M%S.json")
        command = " ".join(["python -m tests.benchmarks", *sys.argv[1:]])
        subjects: dict[str, Subject] = {}
        failed: list[str] = []
        for name in names:
            if name in chosen:
                begun = time.monotonic()
                try:
                    subjects[name] = measures[name]()
                except Exception as error:
                    # The others are still worth having.
                    failed.append(name)
                    console.print(f"{name} failed: {error!r}\n", style="red", markup=False)
                    continue
                show(console, subjects[name])
                console.print(f"{name} took {time.monotonic() - begun:.0f} s\n", highlight=False)
                keep(path, server, command, subjects)
    if subjects:
        console.print(f"kept in {path.relative_to(Path.cwd())}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
