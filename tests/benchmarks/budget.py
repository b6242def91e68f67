"""How much of Sume's budget is used, and that it is never passed, counted at the fake's door."""

from __future__ import annotations

import contextlib
import math
import threading
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import psycopg
import requests

from local.bundle import Fake
from local.runner import InvocationError, Runner
from tests.benchmarks.results import Subject
from tests.benchmarks.stand import Stand, result_of

BUDGETS = (120, 300, 6000)
SUBMITTERS = (1, 4)
LATENCIES = (0.0, 0.05, 0.2, 2.0)
QUICK_LATENCIES = (0.2,)
SHARE = 0.97
# As many in flight as the budget needs, and half more; settings allow 200.
MOST_IN_FLIGHT = 200


class Used(NamedTuple):
    """What one run used: the most posts in any 60 s, and the least of any full minute."""

    most: int
    least: int
    in_flight: int


def measure(stand: Stand, long: bool) -> Subject:
    """Every budget with one and with four submitters; those of one latency run side by side."""
    seconds = 140 if long else 75
    subject = Subject(f"Budget: posts counted at the fake's door for {seconds} s")
    subject.notes.append(
        "A full minute is any 60 s, beginning on a second, once the first answer has come back."
    )
    for latency in LATENCIES if long else QUICK_LATENCIES:
        for (budget, submitters), used in _side_by_side(stand, latency, seconds).items():
            label = f"{latency * 1000:,.0f} ms, {budget:,} a minute, {submitters} submitter"
            label += "s" * (submitters > 1) + ": "
            aim = ("<=", float(budget))
            note = f"{used.in_flight} in flight at most, each"
            subject.add(label + "most in any 60 s", "posts", [float(used.most)], note, aim)
            least = [used.least / budget]
            note = f"{used.least:,} of {budget:,}"
            aim = (">=", SHARE)
            subject.add(label + "least of a full minute", "of the budget", least, note, aim)
    return subject


def _side_by_side(stand: Stand, latency: float, seconds: int) -> dict[tuple[int, int], Used]:
    pairs = [(budget, submitters) for budget in BUDGETS for submitters in SUBMITTERS]
    with contextlib.ExitStack() as stack:
        urls = [
            # Created one after the other: they have one template.
            stack.enter_context(stand.database(pending=budget * (seconds // 60 + 2) + 200))
            for budget, _ in pairs
        ]
        pool = stack.enter_context(ThreadPoolExecutor(len(pairs)))
        runs = [
            pool.submit(_run, stand, url, latency, budget, submitters, seconds)
            for url, (budget, submitters) in zip(urls, pairs, strict=True)
        ]
        return {pair: run.result() for pair, run in zip(pairs, runs, strict=True)}


def _run(
    stand: Stand, url: str, latency: float, budget: int, submitters: int, seconds: int
) -> Used:
    rows = budget * (seconds // 60 + 2) + 200
    in_flight = min(MOST_IN_FLIGHT, max(16, math.ceil(1.5 * budget / 60 * latency)))
    with stand.fake(str(latency), "--keep-requests", str(rows)) as fake:
        environment = {
            "DATABASE_URL": url,
            "SUME_BASE_URL": fake.url,
            "SUME_WRITES_PER_MINUTE": str(budget),
            "SUBMIT_CONCURRENCY": str(in_flight),
            "LINGER_SECONDS": "600",
        }
        with stand.runner(environment, submitters) as runner:
            threads = [threading.Thread(target=_submit, args=(runner,)) for _ in range(submitters)]
            for thread in threads:
                thread.start()
            _wait_for_first_post(fake)
            threading.Event().wait(seconds)
            times = _posts(fake, rows)
            most = fake.stats()["max_posts_in_60_seconds"]
            with psycopg.connect(url, autocommit=True) as connection:
                left = connection.execute(
                    "select count(*) from render_jobs where status = 'pending'"
                ).fetchone()
            if left is None or not left[0]:
                raise RuntimeError("the rows were too few")
            runner.close()
            for thread in threads:
                thread.join(10)
    # The first call of a run goes alone; a minute that holds it is not a full one.
    begun = math.ceil(times[0] + 2 * latency + 1)
    least = min(
        bisect_left(times, start + 60) - bisect_left(times, start)
        for start in range(begun, int(times[-1]) - 60)
    )
    return Used(most, least, in_flight)


def _submit(runner: Runner) -> None:
    # Killed at the end, in the middle of its run.
    with contextlib.suppress(InvocationError):
        result_of(runner, "ours", {})


def _wait_for_first_post(fake: Fake) -> None:
    for _ in range(300):
        if _posts(fake, 1):
            return
        threading.Event().wait(0.1)
    raise RuntimeError("no post came within 30 s")


def _posts(fake: Fake, last: int) -> list[float]:
    """The arrival times of the last requests (all are posts), in the fake's own seconds."""
    answer = requests.get(f"{fake.url}/_fake/requests?last={last}", timeout=30)
    found: list[dict[str, Any]] = answer.json()
    return [each["at"] for each in found]
