"""Write the newest figures into docs/benchmarks.md: `python -m tests.benchmarks.document`.

Between two marks of one subject stands its table, made from the newest kept run that has it (or
from the runs that are named); everything else on the page is written by hand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from local.runner import PROJECT
from tests.benchmarks.peers.contenders import PYTHON
from tests.benchmarks.results import shown
from tests.benchmarks.server import FOLDER

PAGE = PROJECT / "docs" / "benchmarks.md"
PLOTS = PROJECT / "docs" / "benchmarks"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def newest(paths: list[Path]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """By name of subject, the newest one and the run that it is from."""
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for run in sorted(
        (json.loads(path.read_text()) for path in paths), key=lambda run: run["ended"]
    ):
        for subject in run["subjects"]:
            name = subject.get("name")
            if name == "queue_core" and "on disk" in run["machine"]["server"]:
                name = "queue_core_disk"
            if name:
                found[name] = subject, run
    return found


def table(subject: dict[str, Any], run: dict[str, Any]) -> str:
    """A subject as Markdown: when and how, the figures, the notes."""
    machine = run["machine"]
    lines = [
        f"{run['ended'][:10]}, {machine['cores']} cores, load {machine['load'][0]:.1f}, "
        f"{machine['server']}.",
        "",
        f"| {subject['title']} | median | min - max | unit | aim | note |",
        "|---|---:|---:|---|---|---|",
    ]
    for figure in subject["figures"]:
        samples = figure["samples"]
        spread = f"{shown(min(samples))} - {shown(max(samples))}" if len(samples) > 1 else ""
        aim = ""
        if figure["aim"]:
            sign, number = figure["aim"]
            word = "met" if figure["met"] else "**not met**"
            aim = f"{'≥' if sign == '>=' else '≤'} {shown(number)} {word}"
        cells = (
            figure["name"],
            shown(figure["median"]),
            spread,
            figure["unit"],
            aim,
            figure["note"],
        )
        lines.append("| " + " | ".join(cells) + " |")
    if subject.get("notes"):
        lines += ["", "; ".join(subject["notes"]).rstrip(".") + "."]
    return "\n".join(lines) + "\n"


def main() -> None:
    named = [Path(each) for each in sys.argv[1:]]
    found = newest(named or list(FOLDER.glob("*.json")))

    def block(match: re.Match[str]) -> str:
        if match[2] not in found:
            print(f"no run has {match[2]}: its table stays as it is")
            return match[0]
        return match[1] + table(*found[match[2]]) + match[3]

    PAGE.write_text(BLOCK.sub(block, PAGE.read_text("utf-8")), "utf-8")
    if not PYTHON.exists():
        print("no plots: make bench-peers installs what draws them")
        return
    together = FOLDER / "newest.txt"
    subjects = [{**subject, "name": name} for name, (subject, _) in found.items()]
    together.write_text(json.dumps({"subjects": subjects}))
    command = [str(PYTHON), "-m", "tests.benchmarks.plots", str(together), str(PLOTS)]
    subprocess.run(command, cwd=PROJECT, check=True)
    together.unlink()


if __name__ == "__main__":
    main()
