"""Compare two kept runs: `python -m tests.benchmarks.compare A.json B.json`.

For each figure of both, the ratio of the medians, B over A. It is marked where the two spreads
(minimum to maximum) do not even touch: so much is more than noise of that day.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.results import shown

# Spreads that do not touch but lie as close as this are no news.
NEAR = 0.05


def verdict(a: dict[str, Any], b: dict[str, Any]) -> str:
    """`same`, `higher` or `lower`: how B lies to A, beyond the spread of both."""
    low, high = max(min(a["samples"]), min(b["samples"])), min(max(a["samples"]), max(b["samples"]))
    if low <= high or abs(b["median"] - a["median"]) <= NEAR * abs(a["median"]):
        return "same"
    return "higher" if b["median"] > a["median"] else "lower"


def figures(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The figures of a kept run by subject and name."""
    subjects = json.loads(path.read_text())["subjects"]
    return {
        (subject.get("name", subject["title"]), figure["name"]): figure
        for subject in subjects
        for figure in subject["figures"]
    }


def table(first: Path, second: Path) -> Table:
    """A row for each figure of both runs."""
    a, b = figures(first), figures(second)
    table = Table(title=f"B {second.name} over A {first.name}", title_justify="left")
    for name in ("subject", "figure", "unit"):
        table.add_column(name)
    for name in ("A", "B", "B / A"):
        table.add_column(name, justify="right")
    table.add_column("beyond the spread")
    colours = {"same": "", "higher": "[cyan]higher[/]", "lower": "[magenta]lower[/]"}
    for key in (key for key in a if key in b):
        before, after = a[key]["median"], b[key]["median"]
        ratio = f"{after / before:.2f}" if before else "-"
        row = (*key, a[key]["unit"], shown(before), shown(after), ratio)
        table.add_row(*row, colours[verdict(a[key], b[key])])
    return table


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("name two kept runs: make bench-compare A=.local/bench/….json B=….json")
    console = Console(width=None if Console().is_terminal else 160)
    console.print(table(Path(sys.argv[1]), Path(sys.argv[2])))


if __name__ == "__main__":
    main()
