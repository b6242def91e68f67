"""What the end-to-end tests share: a clean environment, small files, and looking for processes."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from local.runner import PROJECT
from tests.support.folders import temporary_folder

VARIABLES = ("DATABASE_URL", "SUME_BASE_URL", "SUME_API_KEY", "PROMPTS")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """Nothing of the shell that runs the tests reaches a bundle inside a test."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def write_prompts(folder):
    """A file of twelve usable prompts and two bad lines."""
    path = folder / "prompts.csv"
    rows = [f"a still life with {n} apples," for n in range(12)]
    rows.insert(3, ",1")
    rows.insert(7, "too urgent,9")
    path.write_text("prompt,priority\n" + "\n".join(rows) + "\n")
    return path


def begin(folder, module, *arguments, **environment):
    """Start `python -m local.<module>` in a folder; what it prints can be read from `stdout`."""
    return subprocess.Popen(
        [sys.executable, "-m", f"local.{module}", "--folder", str(folder), *arguments],
        cwd=PROJECT,
        env={
            **{name: value for name, value in os.environ.items() if name not in VARIABLES},
            "PYTHONPATH": ".:shared",
            "COLUMNS": "200",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process):
    """Make sure that a process has ended and is forgotten."""
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def tmp_path():
    """In the place of pytest's own, which an embedded Postgres cannot always reach."""
    with temporary_folder() as folder:
        yield folder


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "folder"


@pytest.fixture
def start(folder):
    """`begin` in a folder of the test's own; ended with the test."""
    started = []

    def start(module, *arguments, **environment):
        started.append(begin(folder, module, *arguments, **environment))
        return started[-1]

    yield start
    for process in started:
        end(process)


def processes_of(folder):
    """All processes that have to do with a folder, or whose working files are in it."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or []):
            found.append(process.pid)
    return found


def wait_until(condition, seconds):
    """Look now and then until the condition holds; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
