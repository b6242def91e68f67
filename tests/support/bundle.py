"""The words of the pitfall cases: D, R, P and W invoke the real handlers, each in its own process.

`Bundle` holds one deployment: an environment (settings), a database, a fake Sume, and one warm
container for each function, made when it is first used. `another()` gives a second container of a
function (an overlapping or a cold run).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.container import Container, HandlerRaised, Invocation, Nursery

if TYPE_CHECKING:
    from local.fake_sume import FakeSume
    from tests.support.postgres import Database

SECRET = "whsec_test"
API_KEY = "sume_live_test_key_0123456789"


def signature(body: bytes, timestamp: str, secret: str = SECRET) -> str:
    """The hexadecimal HMAC-SHA256 over `<timestamp>.<body>`."""
    signed = timestamp.encode() + b"." + body
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def event_body(
    job_id: Any,
    status: Any = "completed",
    event_id: str | None = None,
    error: Any = None,
    **extra: Any,
) -> bytes:
    """A webhook body as Sume sends it: sume-api.md section 5; `extra` goes beside status."""
    body: dict[str, Any] = {
        "type": f"job.{status}",
        "data": {
            "object": {
                "id": job_id,
                "type": "image_generation",
                "status": status,
                "error": error,
                **extra,
            }
        },
    }
    if event_id is not None:
        body = {"id": event_id, **body}
    return json.dumps(body).encode()


@dataclass
class Answer:
    """What the HTTP function answered. A handler that raised counts as 502, as at API Gateway."""

    status: int
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None
    # What the request was, for the invariant "no bad one 5xx, no good one 4xx".
    good: bool = False
    unavailable_allowed: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def outcome(self) -> str | None:
        """The word of R8: applied, noop, duplicate, held or ignored."""
        try:
            parsed = json.loads(self.body)
        except ValueError:
            return None
        return parsed.get("outcome") if isinstance(parsed, dict) else None


class Pending:
    """A webhook call under way."""

    def __init__(self, bundle: Bundle, invocation: Invocation, good: bool) -> None:
        self._bundle, self._invocation, self._good = bundle, invocation, good

    @property
    def done(self) -> bool:
        return self._invocation.done

    @property
    def container(self) -> Container:
        return self._invocation.container

    def result(self, timeout: float = 60.0) -> Answer:
        try:
            reply = self._invocation.result(timeout)
        except HandlerRaised as error:
            answer = Answer(502, error=str(error))
        else:
            body = reply.get("body") or ""
            if reply.get("isBase64Encoded"):
                body = base64.b64decode(body).decode()
            headers = dict(reply.get("headers") or {})
            for name, values in (reply.get("multiValueHeaders") or {}).items():
                headers[name] = values[-1]
            answer = Answer(int(reply["statusCode"]), body, headers)
        answer.seconds = self._invocation.seconds or 0.0
        answer.good = self._good
        answer.unavailable_allowed = self._bundle.storage_down
        self._bundle.answers.append(answer)
        return answer


class Bundle:
    """One deployment of the product. Settings are `environment`; change them before the first call
    of a function, or use `set()` which also lets running containers go.
    """

    def __init__(self, nursery: Nursery, database: Database, fake: FakeSume | None) -> None:
        self.nursery = nursery
        self.database = database
        self.fake = fake
        self.environment: dict[str, str] = {
            "DATABASE_URL": database.url,
            "SUME_API_KEY": API_KEY,
            "SUME_WEBHOOK_SECRETS": SECRET,
            # High enough that pace does not matter where a test is not about pace.
            "SUME_WRITES_PER_MINUTE": "60000",
            "SUME_READS_PER_MINUTE": "60000",
        }
        if fake is not None:
            self.environment["SUME_BASE_URL"] = fake.url
        self.answers: list[Answer] = []
        self.storage_down = False
        # Keys that a test lets two different rows use (a restored database).
        self.reused_keys: set[str] = set()
        self._warm: dict[str, Container] = {}
        self._all: list[Container] = []

    # ------------------------------------------------------------------ containers

    def set(self, **settings: str | int | float | None) -> None:
        """Change settings (None removes one); functions start cold afterwards."""
        for name, value in settings.items():
            if value is None:
                self.environment.pop(name, None)
            else:
                self.environment[name] = str(value)
        self.cold()

    def cold(self) -> None:
        """Let every warm container go: the next call of each function starts in a new process."""
        for container in self._warm.values():
            container.close()
        self._warm.clear()

    def warm(self, name: str) -> Container:
        """The function's container, made when there is none (or when it was killed)."""
        container = self._warm.get(name)
        if container is None or not container.alive:
            container = self._warm[name] = self.another()
        return container

    def another(self, **settings: str) -> Container:
        """A new process of its own, with the bundle's settings and these changes."""
        container = self.nursery.container({**self.environment, **settings})
        self._all.append(container)
        return container

    def close(self) -> None:
        for container in self._all:
            container.close()

    # ------------------------------------------------------------------ invocations

    def start(
        self,
        name: str,
        remaining: float = 60.0,
        container: Container | None = None,
        event: Any = None,
    ) -> Invocation:
        chosen = container or self.warm(name)
        return chosen.start(name, scheduled_event() if event is None else event, remaining)

    def D(self, remaining: float = 60.0, container: Container | None = None) -> dict[str, Any]:
        """submit, once."""
        return self._run("submit", remaining, container)

    def R(self, remaining: float = 60.0, container: Container | None = None) -> dict[str, Any]:
        """reap, once."""
        return self._run("reap", remaining, container)

    def P(self, remaining: float = 60.0, container: Container | None = None) -> dict[str, Any]:
        """poll, once."""
        return self._run("poll", remaining, container)

    def _run(self, name: str, remaining: float, container: Container | None) -> dict[str, Any]:
        result = self.start(name, remaining, container).result()
        assert isinstance(result, dict), f"{name} returned {result!r}"
        return result

    def W(self, body: bytes | str | None, **options: Any) -> Answer:
        """webhook, once: see `webhook_event` for the options, and `container` for the process."""
        return self.start_W(body, **options).result()

    def start_W(
        self,
        body: bytes | str | None,
        container: Container | None = None,
        remaining: float = 10.0,
        good: bool | None = None,
        **options: Any,
    ) -> Pending:
        raw = body.encode() if isinstance(body, str) else body
        event = webhook_event(raw, **options)
        if good is None:
            good = not options and raw is not None and len(raw) <= 256 * 1024 and _is_object(raw)
        chosen = container or self.warm("webhook")
        return Pending(self, chosen.start("webhook", event, remaining), good)

    def send(self, event: dict[str, Any], container: Container | None = None) -> Answer:
        """webhook, once, with an event of the test's own making."""
        chosen = container or self.warm("webhook")
        return Pending(self, chosen.start("webhook", event, 10.0), False).result()

    # ------------------------------------------------------------------ shortcuts

    def accepted(
        self, count: int = 1, prompt: str = "a lighthouse at dusk"
    ) -> list[tuple[int, str]]:
        """Insert rows and submit them; (row id, job id) of each."""
        rows = self.database.insert_many(count, prompt)
        self.D()
        pairs = [(row, self.database.row(row)["sume_job_id"]) for row in rows]
        assert all(job for _, job in pairs), self.database.rows()
        return pairs

    def job(self) -> tuple[int, str]:
        """One row and its accepted job."""
        (pair,) = self.accepted()
        return pair

    def poll_now(self, interval: str = "30 minutes", **options: Any) -> dict[str, Any]:
        """AGE, so that every job in flight is due and every gate open, and poll."""
        self.database.age(interval)
        return self.P(**options)

    def submit_later(self, interval: str = "30 minutes", **options: Any) -> dict[str, Any]:
        """AGE, so that every back-off and every gate is over, and submit."""
        self.database.age(interval)
        return self.D(**options)

    # ------------------------------------------------------------------ logs and metrics

    def output(self) -> str:
        """All that the handlers wrote."""
        return "".join(container.output() for container in self._all)

    def log_lines(self) -> Iterator[dict[str, Any]]:
        """Every structured line of the handlers' output (metrics included)."""
        for line in self.output().splitlines():
            if line.startswith("{"):
                try:
                    parsed = json.loads(line)
                except ValueError:
                    continue
                if isinstance(parsed, dict):
                    yield parsed

    def logs(self, level: str | None = None) -> list[dict[str, Any]]:
        return [
            line
            for line in self.log_lines()
            if "_aws" not in line and (level is None or line.get("level") == level)
        ]

    def metric(self, name: str) -> float:
        """The sum of a metric's values over all invocations so far."""
        total = 0.0
        for line in self.log_lines():
            if "_aws" in line and name in line:
                value = line[name]
                total += sum(value) if isinstance(value, list) else value
        return total

    def metric_values(self, name: str) -> list[float]:
        values: list[float] = []
        for line in self.log_lines():
            if "_aws" in line and name in line:
                value = line[name]
                values += value if isinstance(value, list) else [value]
        return values


def _is_object(raw: bytes) -> bool:
    try:
        return isinstance(json.loads(raw), dict)
    except (ValueError, RecursionError):
        return False


def scheduled_event() -> dict[str, Any]:
    """What an EventBridge schedule sends."""
    return {
        "version": "0",
        "id": "53dc4d37-cffa-4f76-80c9-8b7d4a4d2eaa",
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": "123456789012",
        "time": "2026-01-01T00:00:00Z",
        "region": "eu-central-1",
        "resources": ["arn:aws:events:eu-central-1:123456789012:rule/schedule"],
        "detail": {},
    }


def sign(
    body: bytes,
    timestamp: str | int | None = None,
    secret: str = SECRET,
    event_id: str | None = None,
) -> dict[str, str]:
    """The headers of a delivery, in Sume's own writing."""
    text = str(int(time.time()) if timestamp is None else timestamp)
    headers = {
        "Content-Type": "application/json",
        "X-Sume-Timestamp": text,
        "X-Sume-Signature": "v1=" + signature(body, text, secret),
    }
    if event_id is not None:
        headers["X-Sume-Event-Id"] = event_id
    return headers


def webhook_event(
    body: bytes | None,
    *,
    timestamp: str | int | None = None,
    secret: str = SECRET,
    event_id: str | None = None,
    shape: str = "2.0",
    encoded: bool = False,
    headers: dict[str, str | None] | None = None,
    path: str = "/webhooks/sume",
    stage: str | None = None,
    lower: bool | None = None,
) -> dict[str, Any]:
    """The event of an API Gateway HTTP API (payload 2.0) or REST API (1.0) for one delivery.

    `headers` replaces single headers, a value of None removes one. Names are lower-case in
    payload 2.0 and kept as sent in 1.0 unless `lower` says otherwise. `encoded` sends the body
    as base64.
    """
    sent: dict[str, str] = sign(body or b"", timestamp, secret, event_id)
    for name, value in (headers or {}).items():
        for known in [known for known in sent if known.lower() == name.lower()]:
            del sent[known]
        if value is not None:
            sent[name] = value
    if lower if lower is not None else shape == "2.0":
        sent = {name.lower(): value for name, value in sent.items()}
    text: str | None
    if body is None:
        text = None
    elif encoded:
        text = base64.b64encode(body).decode()
    else:
        text = body.decode()
    if shape == "2.0":
        return {
            "version": "2.0",
            "routeKey": "POST /webhooks/sume",
            "rawPath": f"/{stage}{path}" if stage else path,
            "rawQueryString": "",
            "headers": sent,
            "requestContext": {
                "accountId": "123456789012",
                "apiId": "api-id",
                "domainName": "api-id.execute-api.eu-central-1.amazonaws.com",
                "domainPrefix": "api-id",
                "http": {
                    "method": "POST",
                    "path": f"/{stage}{path}" if stage else path,
                    "protocol": "HTTP/1.1",
                    "sourceIp": "192.0.2.1",
                    "userAgent": "sume-webhooks/1.0",
                },
                "requestId": "JKJaXmPLvHcESHA=",
                "routeKey": "POST /webhooks/sume",
                "stage": stage or "$default",
                "time": "10/Mar/2026:05:16:23 +0000",
                "timeEpoch": 1773119783637,
            },
            "body": text,
            "isBase64Encoded": encoded,
        }
    return {
        "version": "1.0",
        "resource": "/webhooks/sume",
        "path": path,
        "httpMethod": "POST",
        "headers": sent,
        "multiValueHeaders": {name: [value] for name, value in sent.items()},
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
        "pathParameters": None,
        "stageVariables": None,
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "api-id",
            "httpMethod": "POST",
            "identity": {"sourceIp": "192.0.2.1", "userAgent": "sume-webhooks/1.0"},
            "path": f"/{stage or 'prod'}{path}",
            "protocol": "HTTP/1.1",
            "requestId": "c6af9ac6-7b61-11e6-9a41-93e8deadbeef",
            "requestTime": "10/Mar/2026:05:16:23 +0000",
            "requestTimeEpoch": 1773119783637,
            "resourceId": "123456",
            "resourcePath": "/webhooks/sume",
            "stage": stage or "prod",
        },
        "body": text,
        "isBase64Encoded": encoded,
    }


def key_of(row_id: int, prefix: str = "render-job") -> str:
    return f"{prefix}-{row_id}"


def row_of_key(key: str) -> tuple[int, int] | None:
    """(row id, generation) of an idempotency key made by the product; None for any other."""
    match = re.fullmatch(r".*?-(\d+)(?:-(\d+))?", key)
    return (int(match[1]), int(match[2] or 1)) if match else None
