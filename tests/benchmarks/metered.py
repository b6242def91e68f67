"""Contender: any handler of the bundle, with its statements and the processor's time counted."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sume_jobs.connection import Database

statements: Counter[str] = Counter()
_run = Database.run


def _counted(
    self: Database, sql: str, parameters: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    statements["all"] += 1
    return _run(self, sql, parameters)


Database.run = _counted  # type: ignore[method-assign]


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Run ``event["function"]`` once for each of ``event["events"]``.

    Gives seconds on the clock and of the processor, statements, and the last answer.
    """
    function = importlib.import_module(f"functions.{event['function']}.app").handler
    statements.clear()
    begun, processor = time.monotonic(), time.process_time()
    answer: Any = None
    for each in event["events"]:
        answer = function(each, context)
    return {
        "seconds": time.monotonic() - begun,
        "processor": time.process_time() - processor,
        "statements": statements["all"],
        "answer": answer,
    }
