"""How much of Sume's budget is used, and that it is never passed, counted at the fake's door."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import psycopg
import requests

from local.bundle import Fake
from local.runner import InvocationError, Runner
from tests.benchmarks.results import Subject
from tests.benchmarks.stand import Stand, result_of

BUDGETS = (120, 600, 6000)
SUBMITTERS = (1, 4)
MINUTES = 2
SHARE = 0.97


def measure(stand: Stand) -> Subject:
    """Each run lasts two full minutes and a little; one repeat."""
    subject = Subject("Budget: posts counted at the fake, 50 ms latency, two full minutes each")
    for budget in BUDGETS:
        for submitters in SUBMITTERS:
            most, minutes = _run(stand, budget, submitters)
            label = f"{budget:,} a minute, {submitters} submitter{'s' * (submitters > 1)}: "
            aim = ("<=", float(budget))
            subject.add(label + "most in any 60 s", "posts", [float(most)], "", aim)
            note = "minutes " + ", ".join(f"{share:.1%}" for share in minutes)
            least = [min(minutes)]
            aim = (">=", SHARE)
            subject.add(label + "least of a full minute", "of the budget", least, note, aim)
    return subject


def _run(stand: Stand, budget: int, submitters: int) -> tuple[int, list[float]]:
    rows = budget * (MINUTES + 1) + 200
    seconds = 60 * MINUTES + 5
    with (
        stand.database(pending=rows) as url,
        stand.fake("0.05", "--keep-requests", "30000") as fake,
    ):
        environment = {
            "DATABASE_URL": url,
            "SUME_BASE_URL": fake.url,
            "SUME_WRITES_PER_MINUTE": str(budget),
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
    begun = times[0]
    minutes = [
        sum(begun + 60 * minute <= at < begun + 60 * (minute + 1) for at in times) / budget
        for minute in range(MINUTES)
    ]
    return most, minutes


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
