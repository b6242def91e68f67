"""Contender: the bundle's real submit handler, its statements counted and timed by kind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sume_jobs.connection import Database
from sume_jobs.store import render_jobs

from functions.submit import app

KINDS = {
    render_jobs.CLAIM: "claim",
    render_jobs.RECORD_NEW: "record",
    render_jobs.RECORD: "record",
}

statements: Counter[str] = Counter()
seconds: Counter[str] = Counter()
_run = Database.run


def _counted(
    self: Database, sql: str, parameters: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    kind = KINDS.get(sql, "other")
    begun = time.monotonic()
    try:
        return _run(self, sql, parameters)
    finally:
        statements[kind] += 1
        seconds[kind] += time.monotonic() - begun  # type: ignore[assignment]


Database.run = _counted  # type: ignore[method-assign]


def handler(event: Any, context: Any) -> dict[str, Any]:
    """Run submit once. Gives its counts, its seconds, and number and seconds of statements."""
    statements.clear()
    seconds.clear()
    begun = time.monotonic()
    counts = app.handler(event, context)
    return {
        **counts,
        "seconds": time.monotonic() - begun,
        "statements": dict(statements),
        "statement_seconds": dict(seconds),
    }
