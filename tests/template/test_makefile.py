"""The Makefile finds a Python that works, and explains itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.template.deployment import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def chosen_python(path: str) -> str:
    """What PYTHON is where PATH is `path`."""
    make = shutil.which("make")
    assert make is not None, "make is needed"
    database = subprocess.run(
        [make, "-C", str(ROOT), "--no-print-directory", "-pnq", "help"],
        env={"PATH": path, "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = re.search(r"^PYTHON :?= ?(.*)$", database, re.MULTILINE)
    return found[1] if found else ""


def executable(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + script, encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ({"python3.13": "exit 0", "python3": "exit 0"}, "python3.13"),
        # A version manager's stub: there, but it only fails.
        ({"python3.13": "echo 'not found' >&2; exit 127", "python3.12": "exit 0"}, "python3.12"),
        # Too old: the check itself exits with 1.
        ({"python3.13": "exit 127", "python3": "exit 1"}, ""),
        ({"python3": "exit 0"}, "python3"),
    ],
)
def test_the_first_python_that_works_is_taken(
    commands: dict[str, str], expected: str, tmp_path: Path
) -> None:
    for name, script in commands.items():
        executable(tmp_path, name, script + "\n")
    (tmp_path / "sh").symlink_to("/bin/sh")
    assert chosen_python(str(tmp_path)) == expected


def test_without_a_python_it_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    (folder / "requirements").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "requirements" / "local.txt").touch()
    make = shutil.which("make")
    assert make is not None, "make is needed"
    done = subprocess.run(
        [make, "-C", str(folder), "setup", "PYTHON="],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "No Python 3.11 or newer" in done.stderr


def test_help_lists_every_target() -> None:
    phony = {
        name
        for line in re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
        for name in line.split()
    }
    explained = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
    assert phony == explained


def test_ci_runs_what_check_runs() -> None:
    check = re.search(r"^check: (.*?) ##", MAKEFILE, re.MULTILINE)
    assert check is not None
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r'^section "[^"]*" (\S+)$', script, re.MULTILINE) == check[1].split()
