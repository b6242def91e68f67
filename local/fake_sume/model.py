"""Jobs, idempotency keys and money: the state of the fake, with no HTTP and no clock of its own.

Everything here is plain data and is only ever changed from the server's thread.
"""

from __future__ import annotations

import json
import sys
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .behaviour import WebhookBehaviour

TERMINAL = frozenset({"completed", "failed", "canceled"})
MODES = frozenset({"async", "sync", "subscribe", "webhook"})


@dataclass(slots=True, eq=False)
class FakeJob:
    """One generation job. `created_at` and `updated_at` are Unix seconds."""

    id: str
    key: str | None
    body: bytes
    path: str
    number: int
    """1 for the first job this fake ever created, 2 for the next, and so on."""
    created_at: float
    updated_at: float
    model: str = "sume/auto"
    mode: str = "async"
    webhook_url: str | None = None
    status: str = "queued"
    error: Any = None
    """The public error (an object), or whatever a test put there."""
    artifacts: list[dict[str, Any]] | None = None
    """None: one image is made up on each read. A list is given out as it is."""
    webhook_status: str | None = None
    """pending, retrying, delivered or exhausted; None when no webhook was asked for."""
    webhook_attempts: int = 0
    started: bool = False
    """Whether generation has begun; a started job cannot be canceled."""
    history: list[tuple[float, str, str, dict[str, Any] | None]] = field(default_factory=list)
    """What happened: when, which kind of event, a sentence, and what else there is to say."""
    webhook_behaviour: WebhookBehaviour | None = None

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    def note(self, at: float, kind: str, summary: str, data: dict[str, Any] | None = None) -> None:
        """Add a line to what `GET /v1/jobs/{id}/events` shows."""
        self.history.append((at, kind, summary, data))


class Book:
    """All jobs, and which job each idempotency key stands for."""

    def __init__(self) -> None:
        self.jobs: dict[str, FakeJob] = {}
        self.by_key: dict[str, FakeJob] = {}
        self.billed_by_key: dict[str, int] = {}
        self.queued = 0
        self.refunded = 0

    @property
    def billed(self) -> int:
        """How many distinct jobs were ever created."""
        return len(self.jobs)

    def create(
        self, *, key: str | None, body: bytes, path: str, at: float, job_id: str | None = None
    ) -> FakeJob:
        """Make a new, queued job; the key now stands for it."""
        fields = delivery_fields(body)
        job = FakeJob(
            id=job_id or f"job_{uuid.uuid4()}",
            key=key,
            body=body,
            path=path,
            number=len(self.jobs) + 1,
            created_at=at,
            updated_at=at,
            model=fields["model"],
            mode=fields["mode"],
            webhook_url=fields["webhook_url"],
        )
        if job.webhook_url:
            job.webhook_status = "pending"
        job.note(at, "job.accepted", "Job accepted.")
        self.jobs[job.id] = job
        self.queued += 1
        if key is not None:
            self.by_key[key] = job
            self.billed_by_key[key] = self.billed_by_key.get(key, 0) + 1
        return job

    def move(
        self,
        job: FakeJob,
        status: str,
        at: float,
        *,
        error: Any = None,
        artifacts: list[dict[str, Any]] | None = None,
    ) -> bool:
        """Give a job another status; True if it became terminal by this."""
        was_terminal = job.terminal
        self.queued += (status == "queued") - (job.status == "queued")
        job.status = status
        job.updated_at = at
        if status in {"failed", "canceled"} and not was_terminal:
            self.refunded += 1
        if error is not None or status != "failed":
            job.error = error
        if artifacts is not None:
            job.artifacts = artifacts
        if status != "queued":
            job.started = True
        if status == "failed":
            code = error.get("code") if isinstance(error, dict) else None
            job.note(at, "provider_failure", "The model did not deliver a result.", {"code": code})
        # Interned, as there may be a million of them.
        job.note(at, sys.intern(f"job.{status}"), sys.intern(f"Job is {status}."))
        return job.terminal and not was_terminal

    def forget(self, key: str) -> None:
        """The key's retention is over: the next submit with it makes another job."""
        self.by_key.pop(key, None)

    def newest_first(self, before: int | None = None) -> Iterator[FakeJob]:
        """Jobs from the newest to the oldest, from number `before` (excluded) on."""
        for job in reversed(self.jobs.values()):
            if before is None or job.number < before:
                yield job


def delivery_fields(body: bytes) -> dict[str, Any]:
    """Model, mode and webhook URL of a submit body; the defaults where it is not readable."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    data = value if isinstance(value, dict) else {}
    model, mode, url = data.get("model"), data.get("mode"), data.get("webhook_url")
    return {
        "model": model if isinstance(model, str) else "sume/auto",
        "mode": mode if isinstance(mode, str) else "async",
        "webhook_url": url if isinstance(url, str) and url else None,
    }


def faults_of(body: bytes, *, prompt_required: bool) -> list[dict[str, str]]:
    """What is wrong with a submit body, one `{path, message}` for each fault."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return [{"path": "", "message": "The body is not valid JSON."}]
    if not isinstance(value, dict):
        return [{"path": "", "message": "The body must be a JSON object."}]
    faults = []
    if not isinstance(value.get("model", "sume/auto"), str):
        faults.append({"path": "model", "message": "Must be a string."})
    prompt = value.get("prompt")
    if prompt is None and prompt_required:
        faults.append({"path": "prompt", "message": "Is required."})
    elif prompt is not None and (not isinstance(prompt, str) or not prompt.strip()):
        faults.append({"path": "prompt", "message": "Must be a non-empty string."})
    mode = value.get("mode", "async")
    if mode not in MODES if isinstance(mode, str) else True:
        faults.append({"path": "mode", "message": f"Must be one of {', '.join(sorted(MODES))}."})
    url = value.get("webhook_url")
    if url is not None and (
        not isinstance(url, str) or not url.startswith(("https://", "http://"))
    ):
        faults.append({"path": "webhook_url", "message": "Must be a public URL."})
    if mode == "webhook" and not url:
        faults.append({"path": "webhook_url", "message": "Is required with mode webhook."})
    wait = value.get("wait_timeout_seconds")
    if wait is not None and (
        isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= 30
    ):
        faults.append({"path": "wait_timeout_seconds", "message": "Must be from 0 to 30."})
    return faults
