"""Runs tests of the store on mutated statements: tests collected once, a fork for each trial.

    python -m tests.reliability.mutant_session TESTS…   as `mutant_worker`, in the copy

Statements are constants of modules, so a fork reads the mutated module anew and puts its constants
into the one that the tests hold. That saves the start of a test run, which costs more than the one
test that notices a mutant. (Tests that start the handlers need `mutant_worker`.)
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.mutant_worker import Watch, trial

STORE = "sume_jobs.store"


def take_statements_anew() -> None:
    """Give every module of the store the statements that its file has now."""
    held = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(STORE)}
    try:
        for name, module in held.items():
            for constant, value in vars(importlib.import_module(name)).items():
                if isinstance(value, str) and not constant.startswith("__"):
                    setattr(module, constant, value)
    finally:
        sys.modules.update(held)


class Trials:
    """In place of pytest's own loop over the tests: a fork for each line of JSON that comes in."""

    def __init__(self, answers: int, output: Path) -> None:
        self.answers, self.output = answers, output

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for line in sys.stdin:
            asked = json.loads(line)
            answer = trial(partial(self.run, session, asked), asked["seconds"], self.output)
            os.write(self.answers, json.dumps(answer).encode() + b"\n")
        return True

    def run(self, session: pytest.Session, asked: dict[str, Any]) -> int:
        os.environ["TEST_TEMPLATE"] = asked["template"]
        take_statements_anew()
        watch = Watch(asked["likely"])
        session.config.pluginmanager.register(watch)
        items = [
            item
            for item in session.items
            if item.nodeid not in asked["left_out"]
            and any(f"{item.nodeid}::".startswith(f"{each}::") for each in asked["tests"])
        ]
        watch.pytest_collection_modifyitems(items)
        for place, item in enumerate(items):
            following = items[place + 1] if place + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if watch.failed:
                break
        session._setupstate.teardown_exact(None)
        self.output.with_suffix(".failed").write_text(json.dumps(watch.failed))
        return 1 if watch.failed else 0 if items else 5


def main() -> None:
    output = Path(os.environ["MUTANT_OUTPUT"])
    answers = os.dup(1)
    log = os.open(output.with_suffix(".session"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    options = "-q --tb=short -p no:cacheprovider -p no:xdist -s"
    sys.exit(pytest.main([*options.split(), *sys.argv[1:]], [Trials(answers, output)]))


if __name__ == "__main__":
    main()
