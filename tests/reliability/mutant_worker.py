"""Runs tests on a mutated copy: one interpreter with the libraries loaded, a fork for each trial.

    python -m tests.reliability.mutant_worker   in the copy; a line of JSON in, a line of JSON out

A fork has nothing of the project imported yet, so it sees the files as they are at that moment, and
spends its time on tests instead of on imports.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

LIBRARIES = (
    "aiohttp.web", "aws_lambda_powertools", "aws_lambda_powertools.metrics", "boto3", "botocore",
    "hypothesis.stateful", "moto.server", "psycopg", "psycopg.types.json", "requests",
)  # fmt: skip

# By the exit code of the fork; None where it had to be stopped.
OUTCOMES = {None: "hung", 0: "passed", 1: "failed", 2: "failed"}


class Watch:
    """Puts the tests that noticed most so far first, and notes which one notices now."""

    def __init__(self, likely: list[str]) -> None:
        self.likely = likely
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = {name: place for place, name in enumerate(self.likely)}
        items.sort(key=lambda item: places.get(item.nodeid, len(places)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def run(asked: dict[str, Any], output: Path) -> int:
    """The fork: run the tests, and tell by the exit code and a file which of them failed."""
    watch = Watch(asked["likely"])
    # Of a library that is loaded already pytest says that it cannot rewrite its asserts.
    options = "-q --tb=short -p no:cacheprovider -p no:xdist -W ignore::pytest.PytestWarning"
    left_out = [f"--deselect={name}" for name in asked["left_out"]]
    code = pytest.main([*options.split(), *asked["options"], *left_out, *asked["tests"]], [watch])
    output.with_suffix(".failed").write_text(json.dumps(watch.failed))
    return int(code)


def trial(run: Callable[[], int], seconds: float, output: Path) -> dict[str, Any]:
    """Run the tests in a fork: `passed`, `failed`, `hung` or `broken` (no tests were run)."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        exit_code = 99
        try:
            os.setsid()
            log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            exit_code = run()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)
    code: int | None = None
    while code is None and time.monotonic() - started < seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.01)
    # Whatever the tests left behind, and the tests themselves where they hang.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    failed = output.with_suffix(".failed")
    return {
        "outcome": OUTCOMES.get(code, "broken"),
        "failed": json.loads(failed.read_text()) if code in (1, 2) else [],
        "seconds": round(time.monotonic() - started, 2),
        "pid": child,
    }


def main() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    output = Path(os.environ["MUTANT_OUTPUT"])
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ["TEST_TEMPLATE"] = asked["template"]
        answer = trial(partial(run, asked, output), asked["seconds"], output)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
