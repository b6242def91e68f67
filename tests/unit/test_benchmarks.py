"""What the benchmarks compute from their figures. None of them is run here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import compare, cost, document, prices
from tests.benchmarks.results import Figure, Subject, keep, ratios


def figure(*samples: float) -> dict[str, Any]:
    return {"samples": list(samples), "median": sorted(samples)[len(samples) // 2]}


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ((10, 11, 12), (20, 21, 22), "higher"),
        ((20, 21, 22), (10, 11, 12), "lower"),
        ((10, 11, 12), (12, 13, 14), "same"),  # the spreads touch
        ((10, 11, 30), (20, 21, 22), "same"),  # one holds the other
        ((100, 100, 100), (104, 104, 104), "same"),  # too near to be news
        ((100,), (106,), "higher"),
    ],
)
def test_only_what_lies_beyond_both_spreads_has_moved(
    a: tuple[float, ...], b: tuple[float, ...], verdict: str
) -> None:
    assert compare.verdict(figure(*a), figure(*b)) == verdict


def test_an_aim_is_kept_by_the_median() -> None:
    assert Figure("rate", "jobs/s", [1.0, 5.0, 9.0], aim=(">=", 5.0)).met
    assert not Figure("wait", "s", [1.0, 5.0, 9.0], aim=("<=", 4.9)).met
    assert Figure("rate", "jobs/s", [1.0]).met is None
    assert ratios([10.0, 9.0], [5.0, 3.0]) == [2.0, 3.0]


def run(path: Path, name: str, median: float, ended: str) -> Path:
    subject = Subject("A title", notes=["a note"])
    subject.add("rate", "jobs/s", [median, median], aim=(">=", 5.0))
    keep(path, "PostgreSQL, data in memory", "a command", {name: subject})
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "ended": ended}))
    return path


def test_the_page_shows_the_newest_run_of_each_subject(tmp_path: Path) -> None:
    paths = [
        run(tmp_path / "a.json", "latency", 1.0, "2026-01-03T00:00:00Z"),
        run(tmp_path / "b.json", "latency", 7.0, "2026-01-05T00:00:00Z"),
        run(tmp_path / "c.json", "memory", 3.0, "2026-01-01T00:00:00Z"),
    ]
    found = document.newest(paths)
    assert set(found) == {"latency", "memory"}
    shown = document.table(*found["latency"])
    assert shown.startswith("2026-01-05, ")
    assert "| rate | 7 | 7 - 7 | jobs/s | ≥ 5 met |  |" in shown
    assert "**not met**" in document.table(*found["memory"])


def test_every_subject_has_its_place_on_the_page() -> None:
    names = {match[2] for match in document.BLOCK.finditer(document.PAGE.read_text("utf-8"))}
    assert names >= {"queue_core", "end_to_end", "budget", "latency", "cold_start", "cost", "ends"}


def test_a_call_lasts_as_long_as_it_waits_and_computes() -> None:
    use = cost.Use(waiting=0.2, processor=0.01, statements=1.0)
    assert use.seconds(prices.PROCESSOR_MEGABYTES) == pytest.approx(0.21)
    assert use.seconds(prices.PROCESSOR_MEGABYTES // 2) == pytest.approx(0.22, abs=1e-4)
    # One thread uses one processor at most.
    assert use.seconds(10 * prices.PROCESSOR_MEGABYTES) == pytest.approx(0.21)
