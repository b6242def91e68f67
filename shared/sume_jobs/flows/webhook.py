"""webhook: verifies a delivery, stores it once and applies it, in one statement."""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sume_jobs import telemetry
from sume_jobs.decisions import answers, signature
from sume_jobs.secrets import SecretUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sume_jobs.runtime import Runtime
    from sume_jobs.settings import Settings

LARGEST_BODY: Final = 256 * 1024
# A delivery is answered within 5 seconds, whatever becomes of the database.
ANSWER_SECONDS: Final = 4.8
_LONGEST_ID: Final = 500


class Response(NamedTuple):
    """An HTTP answer: status and a JSON-able body."""

    status: int
    body: dict[str, str]


class Delivery(NamedTuple):
    """One delivery: the raw bytes as they were signed, and the headers by lower-case name.

    A header that came several times has its values joined by commas; `timestamp` is None where
    two of them differ.
    """

    body: bytes
    timestamp: str | None
    signature: str | None
    event_id: str | None


class BadDelivery(ValueError):
    """The delivery cannot be read; `status` is the HTTP status to answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def read_delivery(event: Mapping[str, Any]) -> Delivery:
    """Take a delivery out of an API Gateway event (payload 2.0 or 1.0). Raises BadDelivery."""
    body = event.get("body") or ""
    if not isinstance(body, str):
        raise BadDelivery(400, "the body is not text")
    if len(body) > LARGEST_BODY * 4 // 3 + 4:
        raise BadDelivery(413, f"the body is larger than {LARGEST_BODY} bytes")
    if event.get("isBase64Encoded"):
        try:
            raw = base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            raise BadDelivery(400, "the body is not base64") from None
    else:
        raw = body.encode("utf-8", "surrogatepass")
    if len(raw) > LARGEST_BODY:
        raise BadDelivery(413, f"the body is larger than {LARGEST_BODY} bytes")
    values = _header_values(event)
    stamps = set(values.get(signature.TIMESTAMP_HEADER, []))
    return Delivery(
        body=raw,
        timestamp=stamps.pop() if len(stamps) == 1 else None,
        signature=",".join(values.get(signature.SIGNATURE_HEADER, [])) or None,
        event_id=answers.text(",".join(values.get(signature.EVENT_ID_HEADER, [])), _LONGEST_ID),
    )


def _header_values(event: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    single, several = event.get("headers"), event.get("multiValueHeaders")
    pairs: list[tuple[object, object]] = []
    if isinstance(several, dict):
        pairs += [
            (name, each)
            for name, each_of in several.items()
            for each in (each_of if isinstance(each_of, list) else [each_of])
        ]
    if isinstance(single, dict):
        pairs += list(single.items())
    for name, value in pairs:
        if isinstance(name, str) and isinstance(value, str):
            values = found.setdefault(name.lower(), [])
            if value.strip() not in values:
                values.append(value.strip())
    return found


def receive(runtime: Runtime, event: Mapping[str, Any]) -> Response:
    """Answer one delivery: 200 with its outcome, 400, 401, 413, or 503 to be asked again."""
    try:
        delivery = read_delivery(event)
        secrets = runtime.secrets.webhook_secrets()
    except BadDelivery as error:
        telemetry.count("WebhookRejected")
        telemetry.warn("webhook_rejected", status=error.status, reason=str(error))
        return _problem(error.status, str(error))
    except SecretUnavailable as error:
        telemetry.alarm("secret_unavailable", reason=str(error))
        return _problem(503, "the signing secret is not available, please deliver again")
    if not _is_genuine(runtime, delivery, secrets) and not _is_genuine_anew(runtime, delivery):
        return _unverified(runtime, delivery, bool(secrets))
    try:
        parsed = answers.parse_json(delivery.body)
        return _verified(runtime, delivery, parsed)
    except answers.NotJson:
        telemetry.warn("webhook_rejected", status=400, reason="signed, but not JSON")
        telemetry.count("WebhookRejected")
        return _problem(400, "the body is not JSON in UTF-8, or it is nested too deeply")


def _is_genuine(runtime: Runtime, delivery: Delivery, secrets: tuple[str, ...]) -> bool:
    return signature.verify(
        delivery.body,
        delivery.timestamp,
        delivery.signature,
        secrets,
        time.time(),
        runtime.settings.webhook_tolerance,
    )


def _is_genuine_anew(runtime: Runtime, delivery: Delivery) -> bool:
    """Try once more with the secrets past the cache: one may have been added while warm."""
    if not runtime.settings.webhook_secrets_arn or not delivery.signature:
        return False
    try:
        return _is_genuine(runtime, delivery, runtime.secrets.webhook_secrets(refresh=True))
    except SecretUnavailable as error:
        telemetry.warn("secret_unavailable", reason=str(error))
        return False


def _unverified(runtime: Runtime, delivery: Delivery, has_secrets: bool) -> Response:
    settings: Settings = runtime.settings
    if settings.webhook_verification == "reread":
        return _hint(runtime, delivery)
    telemetry.count("WebhookRejected")
    if not has_secrets:
        telemetry.alarm(
            "no_webhook_secret",
            advice="set SUME_WEBHOOK_SECRETS or SUME_WEBHOOK_SECRETS_ARN; until then no delivery "
            "is accepted and polling carries the results",
        )
    else:
        telemetry.warn("webhook_rejected", status=401, reason="signature or timestamp")
    return _problem(401, "the signature does not verify")


def _hint(runtime: Runtime, delivery: Delivery) -> Response:
    """Take an unsigned delivery for a hint: it changes nothing but the job's next poll time."""
    from sume_jobs.store import gen_jobs

    try:
        job_id = answers.event_state(answers.parse_json(delivery.body)).job_id
    except answers.NotJson:
        return _problem(400, "the body is not JSON in UTF-8, or it is nested too deeply")
    if job_id:
        try:
            gen_jobs.look_soon(runtime.database, job_id)
        except _database_errors() as error:
            return _unavailable(error)
    return Response(200, {"outcome": "ignored"})


def _verified(runtime: Runtime, delivery: Delivery, parsed: object) -> Response:
    """Store and apply a verified event. Raises NotJson where it is nested too deeply."""
    from sume_jobs.store import webhook_events

    state = answers.event_state(parsed)
    event = webhook_events.Event(
        event_id=_event_id(parsed, state.job_id, delivery.body),
        body=answers.clean(delivery.body.decode("utf-8")),
        job_id=state.job_id,
        event_type=answers.text(parsed.get("type"), 200) if isinstance(parsed, dict) else None,
        status=state.reported.status if state.reported else None,
        error_code=state.error_code,
        error=state.error_json,
        header_event_id=delivery.event_id,
    )
    try:
        received = webhook_events.receive(runtime.database, event)
        outcome = received.outcome
        # The job may have been recorded at this very moment, unseen: look once more.
        if outcome == "held" and webhook_events.apply_held(runtime.database, [event.job_id or ""]):
            outcome = "applied"
    except _database_errors() as error:
        return _unavailable(error)
    telemetry.count("WebhookApplied", outcome == "applied")
    telemetry.count("WebhookDuplicate", outcome == "duplicate")
    if received.contradicts:
        telemetry.warn("contradicting_end", job=event.job_id, reported=event.status, by="webhook")
    if state.word and not state.reported:
        telemetry.warn("unknown_status", job=event.job_id, word=state.word)
    telemetry.event("webhook_received", outcome=outcome, job=event.job_id, event=event.event_id)
    return Response(200, {"outcome": outcome})


def _event_id(parsed: object, job_id: str | None, body: bytes) -> str:
    """Name the event by what is signed: its own id where that is not the job's, else its digest."""
    own = parsed.get("id") if isinstance(parsed, dict) else None
    if isinstance(own, str) and not isinstance(own, answers.Number):
        own = answers.clean(own).strip()
        if own and own != job_id and len(own) <= _LONGEST_ID:
            return own
    return "sha256:" + hashlib.sha256(body).hexdigest()


def _database_errors() -> tuple[type[Exception], ...]:
    import psycopg

    from sume_jobs.connection import DatabaseUnavailable

    return (DatabaseUnavailable, SecretUnavailable, psycopg.Error)


def _unavailable(error: Exception) -> Response:
    telemetry.alarm(
        "webhook_not_stored",
        kind=type(error).__name__,
        sqlstate=getattr(error, "sqlstate", None),
    )
    return _problem(503, "the delivery could not be stored, please deliver again")


def _problem(status: int, message: str) -> Response:
    return Response(status, {"error": message})
