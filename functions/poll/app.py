"""Reconciles jobs in flight with Sume: on a schedule, overlapping runs allowed."""

from __future__ import annotations

from typing import Any

from sume_jobs import runtime, telemetry
from sume_jobs.flows import poll
from sume_jobs.flows.time_left import TimeLeft


def handler(event: Any, context: Any) -> dict[str, int]:
    """Run once. Gives counts: polled, changed, results."""
    left = TimeLeft(context)
    try:
        return poll.run(runtime.current(left.seconds), left)
    finally:
        telemetry.flush()
