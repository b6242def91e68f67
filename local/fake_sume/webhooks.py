"""Signing and delivering webhooks. Written on its own, so that it can prove a receiver wrong."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from .behaviour import NORMAL, NORMAL_WEBHOOK
from .views import instant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .behaviour import WebhookBehaviour
    from .model import FakeJob
    from .options import Options
    from .views import Views

# How long a delivery that is to arrive out of order waits for another one to pass it.
REORDER_SECONDS = 2.0
WRONG_SECRET = "whsec_of_somebody_else"  # noqa: S105 (its only use is to sign wrongly)


def signed_headers(body: bytes, timestamp: int | str, secret: str) -> dict[str, str]:
    """The headers of a delivery, names in lower case.

    `x-sume-signature` is `v1=` and the HMAC-SHA256 over `<timestamp>.<body>` in lower-case hex.
    `x-sume-event-id` is there if the body is a JSON object with a string `id`.
    """
    signed = str(timestamp).encode() + b"." + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    headers = {"x-sume-timestamp": str(timestamp), "x-sume-signature": f"v1={digest}"}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    event_id = value.get("id") if isinstance(value, dict) else None
    if isinstance(event_id, str) and event_id.isascii() and event_id.isprintable():
        headers["x-sume-event-id"] = event_id
    return headers


def event_id_of(job_id: str, status: str) -> str:
    """Stable for one job and one kind of end."""
    return f"evt_{hashlib.blake2b(f'{job_id}|{status}'.encode(), digest_size=12).hexdigest()}"


def event_body(
    record: Mapping[str, Any], *, event_id: str | None = None, at: float | None = None
) -> bytes:
    """The body of an event: the public job object under `data.object`."""
    status = str(record.get("status"))
    value = {
        "id": event_id or event_id_of(str(record.get("id")), status),
        "type": f"job.{status}",
        "created_at": instant(time.time() if at is None else at),
        "data": {"object": dict(record)},
    }
    return json.dumps(value).encode()


@dataclass(frozen=True, slots=True)
class Delivery:
    """One POST of an event and what came of it; `status` is None if there was no answer."""

    at: float
    job_id: str
    event_id: str
    attempt: int
    url: str
    status: int | None
    body: bytes


class Sender:
    """Delivers each terminal event until it is answered 2xx or the tries are used up."""

    def __init__(
        self,
        options: Options,
        views: Callable[[], Views],
        changed: Callable[[FakeJob], None],
    ) -> None:
        self._options = options
        self._views = views
        self._changed = changed
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._held_back: list[asyncio.Event] = []
        self.deliveries: list[Delivery] = []
        self.keep: int | None = options.keep_requests
        self.answers: Counter[str] = Counter()
        """HTTP statuses of the answers, or `no answer`."""
        self.outcomes: Counter[str] = Counter()
        """The `outcome` words of the answers' bodies."""

    async def begin(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=256, force_close=False),
            auto_decompress=False,
        )

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def start(self, job: FakeJob, behaviour: WebhookBehaviour | None) -> asyncio.Task[None] | None:
        """Deliver the job's event in the background; None if the job has no webhook."""
        if not job.webhook_url or self._session is None:
            return None
        task = asyncio.get_running_loop().create_task(
            self._deliver(job, job.webhook_url, behaviour or NORMAL_WEBHOOK)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def post(
        self, job_id: str, url: str, body: bytes, headers: Mapping[str, str], attempt: int = 1
    ) -> int | None:
        """POST one event; the HTTP status of the answer, or None if there was none."""
        if self._session is None:
            return None
        at = time.monotonic()
        status, answered = None, b""
        sent = {
            "content-type": "application/json",
            "user-agent": "sume-webhooks/1.0",
            **headers,
        }
        try:
            async with self._session.post(
                url,
                data=body,
                headers=sent,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self._options.webhook_timeout),
            ) as response:
                answered = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError):
            status = None
        event_id = headers.get("x-sume-event-id", "")
        self.deliveries.append(Delivery(at, job_id, event_id, attempt, url, status, answered))
        if self.keep is not None and len(self.deliveries) > 2 * self.keep:
            del self.deliveries[: -self.keep]
        self.answers[str(status) if status is not None else "no answer"] += 1
        outcome = _outcome(answered)
        if outcome is not None:
            self.outcomes[outcome] += 1
        return status

    async def _deliver(self, job: FakeJob, url: str, behaviour: WebhookBehaviour) -> None:
        if behaviour.lost:
            self._mark(job, "exhausted", 0)
            return
        if behaviour.delay:
            await asyncio.sleep(behaviour.delay)
        if behaviour.reorder:
            await self._wait_to_be_passed()
        record = self._views().record(job, NORMAL)
        # The state of the delivery itself is no part of what is delivered.
        del record["webhook_status"]
        first = self._signed(record, job.updated_at, behaviour, 0)
        for attempt in range(1, self._options.webhook_retries + 2):
            body, headers = first
            if attempt > 1 and not behaviour.same_timestamp:
                body, headers = self._signed(record, job.updated_at, behaviour, attempt)
            posts = [self.post(job.id, url, body, headers, attempt)]
            if attempt == 1:
                for copy in range(behaviour.duplicate):
                    copied = self._signed(record, job.updated_at, behaviour, 100 + copy)
                    posts.append(self.post(job.id, url, *copied))
            statuses = await asyncio.gather(*posts)
            if not behaviour.reorder:
                self._let_pass()
            if any(status is not None and 200 <= status < 300 for status in statuses):
                self._mark(job, "delivered", attempt)
                return
            if attempt <= self._options.webhook_retries:
                self._mark(job, "retrying", attempt)
                await asyncio.sleep(self._options.webhook_backoff * 2 ** (attempt - 1))
        self._mark(job, "exhausted", attempt)

    def _signed(
        self, record: Mapping[str, Any], at: float, behaviour: WebhookBehaviour, number: int
    ) -> tuple[bytes, dict[str, str]]:
        event_id = event_id_of(str(record["id"]), str(record["status"]))
        if behaviour.new_event_id and number:
            event_id = f"{event_id}{number:03d}"
        body = event_body(record, event_id=event_id, at=at)
        secret = WRONG_SECRET if behaviour.bad_signature else self._options.webhook_secret
        timestamp = int(time.time() - behaviour.old_by)
        return body, signed_headers(body, timestamp, secret)

    def _mark(self, job: FakeJob, word: str, attempts: int) -> None:
        job.webhook_status = word
        job.webhook_attempts = attempts
        job.note(time.time(), "webhook.delivery", f"Webhook {word}.", {"attempts": attempts})
        self._changed(job)

    async def _wait_to_be_passed(self) -> None:
        passed = asyncio.Event()
        self._held_back.append(passed)
        try:
            await asyncio.wait_for(passed.wait(), REORDER_SECONDS)
        except TimeoutError:
            if passed in self._held_back:
                self._held_back.remove(passed)

    def _let_pass(self) -> None:
        for passed in self._held_back:
            passed.set()
        self._held_back.clear()


def _outcome(body: bytes) -> str | None:
    if not body.startswith(b"{") or len(body) > 10_000:
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    outcome = value.get("outcome")
    return outcome if isinstance(outcome, str) else None
