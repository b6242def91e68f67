"""Copies artifacts of completed jobs to a bucket: reads an SQS queue of follow-ups."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    process_partial_response,
)
from sume_jobs import runtime, telemetry
from sume_jobs.flows import archive
from sume_jobs.flows.time_left import TimeLeft


def handler(event: dict[str, Any], context: Any) -> Any:
    """Take a batch. Gives the records that are to be delivered again: batchItemFailures."""
    left = TimeLeft(context)
    current = runtime.current(left.seconds)

    def take(record: Any) -> str:
        return archive.receive(current, record.raw_event, left)

    try:
        return process_partial_response(
            event=event, record_handler=take, processor=_processor(event), context=context
        )
    finally:
        telemetry.flush()


def _processor(event: dict[str, Any]) -> BatchProcessor:
    """A FIFO queue keeps the order of each group, which is a job."""
    first = (event.get("Records") or [{}])[0]
    if str(first.get("eventSourceARN", "")).endswith(".fifo"):
        processor: BatchProcessor = SqsFifoPartialProcessor(skip_group_on_error=True)
    else:
        processor = BatchProcessor(event_type=EventType.SQS)
    # Each failed record is named; a run in which all fail is no failed run.
    processor.raise_on_entire_batch_failure = False
    return processor
