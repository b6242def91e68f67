"""Draw a kept run: `python -m tests.benchmarks.plots RUN.json FOLDER`. Needs matplotlib.

Runs in the peers' environment, which has it; nothing else of the project is imported here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

OURS, OTHERS, FLOOR = "#1f6feb", "#9aa4b2", "#d0a215"
Figures = list[dict[str, Any]]


def queue_core(figures: Figures, path: Path) -> None:
    """Jobs a second of every queue at no and at many finished rows."""
    levels = list(dict.fromkeys(each["name"].split(": ")[0] for each in figures))
    picture, axes = plt.subplots(1, len(levels), figsize=(6 * len(levels), 5.2), squeeze=False)
    for axis, level in zip(axes[0], levels, strict=True):
        bars = [
            (each["name"].removeprefix(level + ": "), each)
            for each in figures
            if each["name"].startswith(level) and each["unit"] == "jobs/s"
        ]
        bars = [
            (name.replace("claim + record accepted", "this project"), each)
            for name, each in bars
            if not name.startswith("guarded end")
        ]
        _bars(
            axis,
            sorted(bars, key=lambda bar: bar[1]["median"]),
            "jobs a second, on a scale of powers of ten",
        )
        axis.set_xscale("log")
        axis.set_title(level + " rows", fontsize=11)
    _save(picture, path, "Claim and complete, one worker process (bar: median, line: min to max)")


def end_to_end(figures: Figures, path: Path) -> None:
    """Jobs a second over HTTP at each latency and width."""
    groups = list(dict.fromkeys(each["name"].split(": ")[0] for each in figures))
    groups = [group for group in groups if any(_rates(figures, group).values())]
    picture, axes = plt.subplots(len(groups), 1, figsize=(8, 1.5 * len(groups)), squeeze=False)
    for axis, group in zip(axes[:, 0], groups, strict=True):
        _bars(axis, list(_rates(figures, group).items())[::-1], "")
        axis.set_title(group, fontsize=10, loc="left")
    axes[-1][0].set_xlabel("jobs a second")
    _save(picture, path, "End to end over HTTP (bar: median, line: min to max)")


def budget(figures: Figures, path: Path) -> None:
    """Share of the budget used in the least minute, by latency, budget and submitters."""
    shares = [each for each in figures if each["unit"] == "of the budget"]
    picture, axis = plt.subplots(figsize=(8, 0.32 * len(shares) + 1.6))
    names = [each["name"].removesuffix(": least of a full minute") for each in shares]
    values = [100 * each["median"] for each in shares]
    axis.scatter(values[::-1], names[::-1], color=OURS, s=42, zorder=3)
    for name, value in zip(names, values, strict=True):
        axis.annotate(f"{value:.1f}", (value, name), xytext=(9, -3), textcoords="offset points")
    axis.axvline(97, color=FLOOR, linewidth=1.2)
    axis.set_xlim(90, 100.5)
    axis.set_xlabel("% of the budget in the least full minute (yellow: aim, 97 %)")
    _save(picture, path, "The budget is used")


def cold_start(figures: Figures, path: Path) -> None:
    """Seconds to the first statement, each function beside its floor."""
    bars = [(each["name"], each) for each in figures if each["unit"] == "ms"]
    picture, axis = plt.subplots(figsize=(8, 0.28 * len(bars) + 1.4))
    _bars(axis, bars[::-1], "milliseconds from process start to the first statement")
    _save(picture, path, "Cold start (bar: median, line: min to max)")


DRAWN: dict[str, Callable[[Figures, Path], None]] = {
    "queue_core": queue_core,
    "end_to_end": end_to_end,
    "budget": budget,
    "cold_start": cold_start,
}


def _rates(figures: Figures, group: str) -> dict[str, dict[str, Any]]:
    return {
        each["name"].removeprefix(group + ": "): each
        for each in figures
        if each["name"].startswith(group + ": ") and each["unit"] == "jobs/s"
    }


def _bars(axis: Any, bars: list[tuple[str, dict[str, Any]]], label: str) -> None:
    names = [name for name, _ in bars]
    medians = [each["median"] for _, each in bars]
    low = [each["median"] - min(each["samples"]) for _, each in bars]
    high = [max(each["samples"]) - each["median"] for _, each in bars]
    axis.barh(names, medians, color=[_colour(name) for name in names], height=0.62)
    axis.errorbar(medians, range(len(names)), xerr=[low, high], fmt="none", ecolor="#30363d",
                  elinewidth=1.2, capsize=3)  # fmt: skip
    for place, value in enumerate(medians):
        text = f" {value:,.0f}" if value >= 10 else f" {value:.1f}"
        axis.annotate(text, (max(value + high[place], value), place), va="center", fontsize=8.5)
    axis.margins(x=0.18)
    axis.set_xlabel(label)


def _colour(name: str) -> str:
    if "floor" in name or "HTTP alone" in name:
        return FLOOR
    is_ours = name.startswith(("this project", "submit")) or name.split(":")[0].islower()
    other = ("article", "procrastinate", "graphile", "pg-boss")
    return OURS if is_ours and not name.startswith(other) else OTHERS


def _save(picture: Any, path: Path, title: str) -> None:
    picture.suptitle(title, fontsize=12)
    for axis in picture.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", color="#e3e6ea", linewidth=0.8)
        axis.set_axisbelow(True)
    picture.tight_layout()
    picture.savefig(path, dpi=110, facecolor="white")
    plt.close(picture)


def main() -> None:
    run, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for subject in json.loads(run.read_text())["subjects"]:
        draw = DRAWN.get(subject["name"])
        if draw is not None:
            path = folder / f"{subject['name']}.png"
            draw(subject["figures"], path)
            print(f"drawn {path}")


if __name__ == "__main__":
    main()
