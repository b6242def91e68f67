"""How a fake Sume is set up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

# What failed jobs say, drawn by key. `public_reason` is the one value that is publicly known.
FAILURES: tuple[Mapping[str, Any], ...] = (
    {
        "code": "generation_failed",
        "message": "The model did not deliver an image.",
        "category": "provider",
        "retryable": True,
        "next_action": "resubmit",
    },
    {
        "code": "provider_unavailable",
        "message": "The model is not available.",
        "category": "provider",
        "retryable": False,
        "next_action": "contact_support",
    },
    {
        "code": "content_policy_rejected",
        "message": "The prompt was refused by the content policy.",
        "category": "input",
        "retryable": False,
        "next_action": "change_prompt",
        "public_reason": "content_policy_rejected",
    },
)


@dataclass(kw_only=True)
class Options:
    """Every setting of the fake; all may also be changed while it runs, but host and port."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    latency: float | tuple[float, float] = 0.0
    """Seconds before each API answer: fixed, or from a range."""
    auto_advance: bool = True
    """Whether jobs go on to their end by themselves."""
    job_seconds: tuple[float, float] = (0.05, 0.2)
    """The least and the most time from acceptance to the end, queueing for a slot apart."""
    concurrency: int | None = None
    """How many jobs may be processed at once in the workspace; the others wait in `queued`."""
    writes_per_minute: int | None = None
    reads_per_minute: int | None = None
    """Limits for each API key over a sliding window of 60 s."""
    queue_capacity: int | None = None
    """How many jobs may be `queued` before submits get 429 `queue_full`."""
    credits: int | None = None
    """How many jobs the balance pays for before submits get 402."""
    price_usd_micros: int = 90_000
    api_keys: Collection[str] | None = None
    """The keys that are let in; None lets everybody in."""
    submit_path: str = "/v1/images"
    """One more path that takes submits, besides those of the API."""
    twin: Literal["replay", "wait", "conflict"] = "replay"
    """What a submit gets while another one with its key is still being answered: the job that the
    first one made, the same but only after the first was answered, or 409."""
    tell_keys: bool = False
    """Whether a job's record and the list tell its idempotency key; no public source says so."""
    failures: Sequence[Mapping[str, Any]] = FAILURES
    """The errors that failed jobs carry."""
    artifact_seconds: float | None = None
    """How long an artifact URL works; None for ever. Each read of the result gives a new one."""
    webhook_secret: str = "whsec_test"  # noqa: S105 (the fake's own default, for tests)
    webhook_retries: int = 3
    webhook_backoff: float = 0.5
    """Seconds before the first redelivery, doubling."""
    webhook_timeout: float = 10.0
    journal: str | Path | None = None
    """A file that keeps jobs and keys over a restart, or a kill, of the process."""
    seed: int = 0
    weather: Mapping[str, float] = field(default_factory=dict)
    keep_requests: int | None = None
    """How many requests the log keeps; None keeps all."""
