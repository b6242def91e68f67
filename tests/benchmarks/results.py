"""Figures: samples of one measurement, their median and spread; shown as tables, kept as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured thing: a sample for each repeat. ``aim`` tells what the median should keep.

    ``aim`` is ``(">=", number)`` or ``("<=", number)``.
    """

    name: str
    unit: str
    samples: list[float]
    note: str = ""
    aim: tuple[str, float] | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; None without one."""
        if self.aim is None:
            return None
        sign, number = self.aim
        return self.median >= number if sign == ">=" else self.median <= number


@dataclass
class Subject:
    """What one file of this folder measured."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    # What a reader of the figures has to know besides: what was left out and why, versions.
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        unit: str,
        samples: list[float],
        note: str = "",
        aim: tuple[str, float] | None = None,
    ) -> None:
        self.figures.append(Figure(name, unit, samples, note, aim))

    def table(self) -> Table:
        """The table to show."""
        table = Table(title=self.title, title_justify="left", title_style="bold")
        table.add_column("")
        table.add_column("median", justify="right")
        table.add_column("min - max", justify="right")
        table.add_column("unit")
        table.add_column("aim")
        table.add_column("note", style="dim")
        for figure in self.figures:
            aim = ""
            if figure.aim is not None:
                colour = "green" if figure.met else "red"
                word = "met" if figure.met else "NOT met"
                aim = f"[{colour}]{figure.aim[0]} {shown(figure.aim[1])} {word}[/]"
            table.add_row(
                figure.name,
                shown(figure.median),
                f"{shown(min(figure.samples))} - {shown(max(figure.samples))}",
                figure.unit,
                aim,
                figure.note,
            )
        return table


def ratios(over: list[float], under: list[float]) -> list[float]:
    """Divide repeat by repeat, so that what slowed one repeat slowed both sides of it."""
    return [above / below for above, below in zip(over, under, strict=True)]


def interleaved(repeats: int, *measures: Callable[[], Any]) -> list[list[Any]]:
    """Run each measure once per repeat, one after the other; gives the samples of each."""
    samples: list[list[Any]] = [[] for _ in measures]
    for _ in range(repeats):
        for place, measure in zip(samples, measures, strict=True):
            place.append(measure())
    return samples


def keep(path: Path, server: str, command: str, subjects: dict[str, Subject]) -> None:
    """Write everything as JSON, each subject under the name that chose it."""
    content = {
        "command": command,
        "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load": list(os.getloadavg()),
            "python": platform.python_version(),
            "server": server,
        },
        "subjects": [
            {
                "name": name,
                "title": subject.title,
                "notes": subject.notes,
                "figures": [
                    {**asdict(figure), "median": figure.median, "met": figure.met}
                    for figure in subject.figures
                ],
            }
            for name, subject in subjects.items()
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1))


def show(console: Console, subject: Subject) -> None:
    """Print a subject's table."""
    console.print(subject.table())
    for note in subject.notes:
        console.print(note, style="dim", highlight=False, markup=False)
    console.print()


def shown(number: float) -> str:
    """A number as a person reads it, with three digits or so."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.3f}".rstrip("0").rstrip(".")
