"""Prompts through the real submit handler over real HTTP, beside the article's worker.

All contenders talk to the same fake Sume, each in a process of its own, one after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from local.runner import PROJECT
from tests.benchmarks.results import Subject, interleaved, ratios
from tests.benchmarks.stand import ADD_PENDING, Stand, result_of

# Aims: issue 2 for the ratio and the statements, issue 6 for the rates.
ARTICLE_TIMES = 10.0
STATEMENTS = {16: 0.5, 50: 0.3}
SHARE_OF_CEILING = 0.9
SHARE_OF_HTTP = 0.7


def measure(
    stand: Stand, repeats: int, rows: int, latencies: list[float], before: Path | None
) -> Subject:
    """Rates, ratios and statements at the given API latencies, in seconds.

    ``before`` is the folder of another state of the code, measured in the same run.
    """
    subject = Subject(f"End to end over HTTP, {rows:,} prompts")
    for latency in latencies:
        for concurrency in (16, 50):
            _one(subject, stand, repeats, rows, latency, concurrency, before)
    if any(latencies):
        _spread(subject, stand, repeats, rows)
    return subject


def _one(
    subject: Subject,
    stand: Stand,
    repeats: int,
    rows: int,
    latency: float,
    concurrency: int,
    before: Path | None,
) -> None:
    # One at a time at 200 ms is slow and steady: its rate is taken from fewer rows.
    few = rows if latency == 0 else 25
    runs = [
        lambda: ours(stand, rows, str(latency), concurrency),
        lambda: other(stand, "article", few, str(latency), concurrency),
        lambda: other(stand, "http_alone", rows, str(latency), concurrency),
    ]
    if before is not None:
        runs.append(lambda: ours(stand, rows, str(latency), concurrency, before))
    mine, article, alone, *old = interleaved(repeats, *runs)
    label = f"{latency * 1000:.0f} ms, {concurrency} in flight: "
    unit = "jobs/s"
    ceiling = concurrency / latency if latency else 0.0
    aim = (">=", SHARE_OF_CEILING * ceiling) if latency else None
    note = f"{concurrency} / {latency:g} s = {ceiling:.0f}" if latency else ""
    subject.add(label + "submit", unit, _rates(mine), note, aim)
    if old:
        subject.add(label + "submit before", unit, _rates(old[0]))
    note = f"one at a time, rate of {few} rows" if few != rows else "one at a time"
    subject.add(label + "article's worker", unit, _rates(article), note)
    subject.add(label + "HTTP alone", unit, _rates(alone), "no database: the ceiling")
    subject.add(
        label + "submit / article",
        "times",
        ratios(_rates(mine), _rates(article)),
        aim=(">=", ARTICLE_TIMES) if latency else None,
    )
    aim = (">=", SHARE_OF_HTTP) if not latency else None
    subject.add(
        label + "submit / HTTP alone", "times", ratios(_rates(mine), _rates(alone)), "", aim
    )
    _statements(subject, label, mine, ("<=", STATEMENTS[concurrency]) if latency else None)
    if old:
        _statements(subject, label + "before: ", old[0], None)


def _statements(
    subject: Subject, label: str, runs: list[dict[str, Any]], aim: tuple[str, float] | None
) -> None:
    both = [
        (run["statements"]["claim"] + run["statements"]["record"]) / run["submitted"]
        for run in runs
    ]
    every = [sum(run["statements"].values()) / run["submitted"] for run in runs]
    subject.add(label + "statements, claim + record", "a job", both, "article: 2", aim)
    subject.add(label + "statements, all", "a job", every)


def _spread(subject: Subject, stand: Stand, repeats: int, rows: int) -> None:
    """The same where answers take unequal time, so that hardly any two come together."""
    (mine,) = interleaved(repeats, lambda: ours(stand, min(rows, 800), "0.1-0.3", 16))
    label = "100-300 ms, 16 in flight: "
    note = "answers come one by one and none is held back"
    subject.add(label + "submit", "jobs/s", _rates(mine), "16 / 0.2 s = 80")
    both = [
        (run["statements"]["claim"] + run["statements"]["record"]) / run["submitted"]
        for run in mine
    ]
    subject.add(label + "statements, claim + record", "a job", both, note)


def ours(
    stand: Stand, rows: int, latency: str, concurrency: int, code: Path = PROJECT
) -> dict[str, Any]:
    """Figures of one run of the submit handler over ``rows`` rows."""
    with stand.database() as url, stand.fake(latency) as fake:
        environment = {
            "DATABASE_URL": url,
            "SUME_BASE_URL": fake.url,
            "SUBMIT_CONCURRENCY": str(concurrency),
        }
        with stand.runner(environment, code=code) as runner:
            result_of(runner, "ours", {})  # warm: imported and connected
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(ADD_PENDING, {"rows": rows})
            figures = result_of(runner, "ours", {})
        billed = fake.stats()["billed"]
    if figures["submitted"] != rows or billed != rows:
        raise RuntimeError(f"{rows} rows, {figures['submitted']} submitted, {billed} billed")
    return figures


def other(
    stand: Stand, contender: str, rows: int, latency: str, concurrency: int
) -> dict[str, Any]:
    """Figures of one run of another contender."""
    with stand.database() as url, stand.fake(latency) as fake:
        environment = {"DATABASE_URL": url, "SUME_BASE_URL": fake.url}
        with stand.runner(environment) as runner:
            return result_of(runner, contender, {"rows": rows, "threads": concurrency})


def _rates(runs: list[dict[str, Any]]) -> list[float]:
    return [run.get("rows", run.get("submitted", 0)) / run["seconds"] for run in runs]
