"""Copies artifacts of completed jobs to a bucket: reads an SQS queue of follow-ups."""

from __future__ import annotations

from typing import Any

from sume_jobs import runtime, telemetry
from sume_jobs.flows import archive
from sume_jobs.flows.time_left import TimeLeft


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Take a batch. Gives the records that are to be delivered again: batchItemFailures.

    Each failed record is named; a run in which all fail is no failed run.
    """
    left = TimeLeft(context)
    current = runtime.current(left.seconds)
    failed: list[str] = []
    failed_groups: set[str] = set()
    try:
        for record in event["Records"]:
            group = _group(record)
            if group not in failed_groups and _take(current, record, left):
                continue
            failed.append(record["messageId"])
            if group is not None:
                failed_groups.add(group)
    finally:
        telemetry.flush()
    return {"batchItemFailures": [{"itemIdentifier": each} for each in failed]}


def _group(record: dict[str, Any]) -> str | None:
    """A FIFO queue keeps the order of each group, which is a job; None for any other queue."""
    is_fifo = str(record.get("eventSourceARN", "")).endswith(".fifo")
    return (record.get("attributes") or {}).get("MessageGroupId") if is_fifo else None


def _take(current: runtime.Runtime, record: dict[str, Any], left: TimeLeft) -> bool:
    try:
        archive.receive(current, record, left)
    except Exception:  # it was logged there, and the other records are none the worse for it
        return False
    return True
