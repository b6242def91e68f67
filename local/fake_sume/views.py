"""What the API shows: the bodies of its answers, made from jobs."""

from __future__ import annotations

import datetime
import json
import uuid
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .behaviour import UNSET

if TYPE_CHECKING:
    from .behaviour import Behaviour
    from .model import FakeJob
    from .options import Options

JOB_TYPE = "image_generation"
ERROR_CODES = {
    400: "invalid_request",
    401: "unauthorized",
    402: "insufficient_credits",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    410: "gone",
    413: "payload_too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
    429: "rate_limit_exceeded",
    500: "internal_error",
    502: "bad_gateway",
    503: "service_unavailable",
    504: "gateway_timeout",
}
MESSAGES = {
    "invalid_request": "The request is not valid.",
    "unauthorized": "The API key is missing, unknown or revoked.",
    "insufficient_credits": "The balance does not pay for this generation.",
    "forbidden": "This API key has no access to that.",
    "not_found": "There is nothing at this path.",
    "job_not_found": "There is no such job.",
    "job_not_completed": "Job is not completed.",
    "job_not_cancelable": "Job has already ended.",
    "job_generation_already_started": "Generation has started; the job can not be canceled.",
    "idempotency_conflict": "This idempotency key was used with another request body.",
    "idempotency_in_progress": "A request with this idempotency key is still in progress.",
    "rate_limit_exceeded": "Too many requests.",
    "queue_full": "The queue of this workspace is full.",
    "service_unavailable": "The service is not available, try again later.",
    "internal_error": "Something went wrong.",
}


@dataclass(slots=True)
class Answer:
    """An HTTP answer that is not sent yet."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def new_request_id() -> str:
    """The id of one HTTP request (never of a job)."""
    return f"req_{uuid.uuid4().hex[:20]}"


def instant(at: float) -> str:
    """Unix seconds as ISO 8601 in UTC."""
    moment = datetime.datetime.fromtimestamp(at, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def answer(
    status: int, value: Any, *, request_id: str | None = None, headers: dict[str, str] | None = None
) -> Answer:
    """A JSON answer; every answer of the API names its request in a header."""
    return Answer(
        status,
        json.dumps(value).encode(),
        {
            "Content-Type": "application/json",
            "x-sume-request-id": request_id or new_request_id(),
            **(headers or {}),
        },
    )


def problem(
    status: int,
    code: str | None = None,
    *,
    message: str | None = None,
    details: Any = None,
    retryable: bool | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """The error envelope, with the request id in all three of its places."""
    code = code or ERROR_CODES.get(status, "error")
    request_id = new_request_id()
    if retryable is None:
        retryable = status in {408, 429} or status >= 500 or code == "idempotency_in_progress"
    error = {
        "code": code,
        "message": message or MESSAGES.get(code, code.replace("_", " ").capitalize() + "."),
        "request_id": request_id,
        "retryable": retryable,
    }
    if details is not None:
        error["details"] = details
    value = {"request_id": request_id, "error": error}
    return answer(status, value, request_id=request_id, headers=headers)


class Views:
    """Makes the bodies; `url` is the address that the fake is reached at."""

    def __init__(self, url: str, options: Options) -> None:
        self.url = url
        self._options = options

    def accepted(self, job: FakeJob, *, hit: bool, capacity: Any, behaviour: Behaviour) -> Any:
        """The answer to a submit. `capacity` is UNSET where there is none to tell."""
        shown = {
            "id": job.id,
            "type": JOB_TYPE,
            "status": behaviour.job_status or job.status,
            "model": job.model,
            "communication_mode": job.mode,
        }
        data: dict[str, Any] = {
            "request_id": job.id,
            "job": shown,
            **self._links(job),
            "idempotency_hit": hit,
            "sync": None,
        }
        value: dict[str, Any] = {"data": data}
        if capacity is not UNSET and capacity != "missing":
            place = {"data": data, "root": value, "job": shown}[behaviour.capacity_place]
            place["generation_limits"] = {"queue_capacity_remaining": capacity}
        return value

    def record(self, job: FakeJob, behaviour: Behaviour) -> dict[str, Any]:
        """The public job object, as reads and webhooks carry it."""
        error = job.error if behaviour.job_error is UNSET else behaviour.job_error
        told = {"idempotency_key": job.key} if self._options.tell_keys else {}
        return {
            "id": behaviour.job_id or job.id,
            "type": JOB_TYPE,
            "status": behaviour.job_status or job.status,
            "model": job.model,
            "communication_mode": job.mode,
            "error": error,
            "webhook_status": job.webhook_status,
            "usage": self.usage(job),
            "created_at": instant(job.created_at),
            "updated_at": instant(job.updated_at),
            **told,
        }

    def status(self, job: FakeJob, behaviour: Behaviour) -> Any:
        """The polling view."""
        record = self.record(job, behaviour)
        status, error = record["status"], record["error"]
        action = {"queued": "poll", "processing": "poll", "completed": "fetch_result"}.get(status)
        if status == "failed" and isinstance(error, dict):
            action = error.get("next_action")
        return {
            "data": {
                "request_id": record["id"],
                "job_id": record["id"],
                "status": status.upper(),
                "sume_status": status,
                "result_ready": status == "completed",
                "next_action": action,
                "recommended_poll_interval_seconds": 2,
                "job": record,
                "usage": record["usage"],
            }
        }

    def events(self, job: FakeJob, limit: int) -> Any:
        """The last events of a job, the oldest of them first."""
        events = [
            {"type": kind, "summary": summary, "created_at": instant(at), "data": data or {}}
            for at, kind, summary, data in job.history[-limit:]
        ]
        return {"data": {"request_id": job.id, "job_id": job.id, "events": events}}

    def result(self, job: FakeJob, now: float) -> Any:
        artifacts = job.artifacts
        if artifacts is None:
            artifacts = [
                {"url": self.artifact_url(job, now), "type": "image", "content_type": "image/png"}
            ]
        return {
            "data": {
                "request_id": job.id,
                "status": job.status.upper(),
                "result": {"artifacts": artifacts},
            }
        }

    def artifact_url(self, job: FakeJob, now: float) -> str:
        name = job.id.removeprefix("job_")
        url = f"{self.url}/artifacts/{name}.png"
        if self._options.artifact_seconds is None:
            return url
        expires = f"{now + self._options.artifact_seconds:.3f}"
        return f"{url}?expires={expires}&signature={artifact_signature(name, expires)}"

    def canceled(self, job: FakeJob, behaviour: Behaviour) -> Any:
        return {
            "data": {
                "request_id": job.id,
                "job_id": job.id,
                "status": "CANCELED",
                "canceled": True,
                "job": self.record(job, behaviour),
                **self._links(job),
            }
        }

    def usage(self, job: FakeJob) -> dict[str, Any]:
        status = {"completed": "captured", "failed": "refunded", "canceled": "refunded"}
        return {
            "status": status.get(job.status, "reserved"),
            "currency": "USD",
            "billable_amount_usd_micros": self._options.price_usd_micros,
        }

    def _links(self, job: FakeJob) -> dict[str, str]:
        base = f"{self.url}/v1/jobs/{job.id}"
        return {"status_url": f"{base}/status", "result_url": f"{base}/result"}


def artifact_signature(name: str, expires: str) -> str:
    """Ties an expiry to a file; no secret is needed for a fake's picture."""
    return f"{zlib.crc32(f'{name}|{expires}'.encode()):08x}"
