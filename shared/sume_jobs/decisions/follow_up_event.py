"""What a follow-up says to whoever receives it: ids and a status, never a prompt or a secret.

The format is documented in docs/follow-ups.md and described by follow_up_event.schema.json.
Ids are text, because a reader with binary floats would round numbers above 2^53.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

VERSION: Final = 1
SOURCE: Final = "sume-jobs"

# What SQS takes as a group or deduplication id.
_QUEUE_ID: Final = re.compile(r"[!-~]{1,128}", re.ASCII)


class Message(NamedTuple):
    """A follow-up ready to be sent. `id` is stable: the same end always has the same one."""

    id: str
    kind: str
    group: str
    body: str
    occurred_at: datetime


def message(
    *,
    kind: str,
    job_id: str | None,
    idempotency_key: str | None,
    render_job_id: int | None,
    reference: str | None,
    status: str,
    error_code: str | None,
    occurred_at: datetime,
) -> Message:
    """Write a follow-up as JSON. Without a job the idempotency key stands for it in the id."""
    subject = job_id or idempotency_key or ""
    event_id = f"{subject}:{kind}"
    at = occurred_at.astimezone(UTC)
    body = {
        "version": VERSION,
        "id": event_id,
        "kind": kind,
        "job_id": job_id,
        "idempotency_key": idempotency_key,
        "render_job_id": None if render_job_id is None else str(render_job_id),
        "reference": reference,
        "status": status,
        "error_code": error_code,
        "occurred_at": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }
    return Message(event_id, kind, subject, json.dumps(body, ensure_ascii=False), at)


def queue_id(text: str) -> str:
    """Make an id of a FIFO queue: the text itself where SQS takes it, else its digest."""
    if _QUEUE_ID.fullmatch(text):
        return text
    # Hardly any id is like that.
    import hashlib

    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def parse(body: object) -> dict[str, object]:
    """Read an event that was received, from a queue or from a bus by way of a queue.

    Raises ValueError where it is not one, or is of a version that this code does not know.
    """
    event = json.loads(body) if isinstance(body, str) else None
    if isinstance(event, dict) and event.get("source") == SOURCE and "detail" in event:
        event = event["detail"]
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        raise ValueError("not a follow-up event")
    if event.get("version") != VERSION:
        raise ValueError("a follow-up event of another version")
    return event
