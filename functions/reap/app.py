"""Takes back stale claims, tells the levels, keeps house: on a schedule."""

from __future__ import annotations

from typing import Any

from sume_jobs import runtime, telemetry
from sume_jobs.flows import reap
from sume_jobs.flows.time_left import TimeLeft


def handler(event: Any, context: Any) -> dict[str, int]:
    """Run once. Gives counts: reaped, expired."""
    left = TimeLeft(context)
    try:
        return reap.run(runtime.current(left.seconds), left)
    finally:
        telemetry.flush()
