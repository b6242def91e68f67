"""The routes of the API, as `sume-api` describes them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, Any

from .behaviour import (
    ARTIFACT_WEATHER,
    CANCEL_WEATHER,
    NORMAL,
    READ_WEATHER,
    RESULT_WEATHER,
    SUBMIT_WEATHER,
    UNSET,
    Behaviour,
)
from .model import faults_of
from .picture import png
from .views import JOB_TYPE, Answer, answer, artifact_signature, new_request_id, problem

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from .model import FakeJob
    from .service import Received, Service

ROUTER_PATHS = frozenset({"/v1/image-router/generate", "/v1/video-router/generate"})
RUN_PATH = re.compile(r"/v1/models/sume/[^/]+/v1\.0/runs")
JOB_PATH = re.compile(r"/v1/jobs/(?P<id>[^/]+)(?:/(?P<view>status|result|events|cancel))?")
ARTIFACT_PATH = re.compile(r"/artifacts/(?P<name>[^/]+)\.png")
# Paths that need no API key.
OPEN_PATHS = frozenset({"/health", "/v1/health", "/v1/open/catalog"})
MODELS = {
    "sume/auto": "image",
    "sume/image": "image",
    "sume/avatar": "image",
    "sume/avatar-video": "video",
}
LONGEST_KEY = 255
SYNC_SECONDS = 30.0


class Api:
    """Answers one request after the other; what it decides is in `Service`."""

    def __init__(self, service: Service, threads: Executor) -> None:
        self._service = service
        self._threads = threads
        self._answering: dict[str, asyncio.Event] = {}
        self.errors = service.errors

    def is_submit(self, path: str) -> bool:
        return (
            path in {"/v1/images", self._service.options.submit_path}
            or path in ROUTER_PATHS
            or RUN_PATH.fullmatch(path) is not None
        )

    async def answer(self, received: Received) -> tuple[Answer, Behaviour]:
        """The answer to a request, and how it is to be sent. Takes the time it is told to."""
        path, method = received.path, received.method
        if method == "POST" and self.is_submit(path):
            received.submit = True
            self._service.log.submits += 1
            return await self._submit(received)
        match = JOB_PATH.fullmatch(path)
        if match is not None:
            cancels = match["view"] == "cancel"
            if cancels != (method == "POST"):
                return problem(405), NORMAL
            received.job_id = match["id"]
            return await (self._cancel if cancels else self._read)(received, match["view"])
        match = ARTIFACT_PATH.fullmatch(path)
        if match is not None and method == "GET":
            return await self._artifact(received, match["name"])
        return await self._other(received)

    # Submit ------------------------------------------------------------------------------------

    async def _submit(self, received: Received) -> tuple[Answer, Behaviour]:
        service, key = self._service, received.key
        behaviour = (
            service.scripts.submit.next(key)
            or service.weather.request(SUBMIT_WEATHER, key or "")
            or NORMAL
        )
        if not behaviour.accepts:
            await self._wait(behaviour, None)
            return self._spoil(behaviour, None, None), behaviour
        mine = asyncio.Event()
        if key is not None:
            twin = behaviour.twin or service.options.twin
            if twin == "conflict" and key in self._answering:
                return problem(409, "idempotency_in_progress"), behaviour
            while twin == "wait" and key in self._answering:
                await self._answering[key].wait()
            self._answering.setdefault(key, mine)
        try:
            refused, headers = (
                (None, {}) if behaviour.status is not None else self._refusal(received)
            )
            if refused is not None:
                await self._wait(behaviour, None)
                return refused, behaviour
            job, hit = service.accept(
                key=key, body=received.body, path=received.path, behaviour=behaviour
            )
            received.job_id = job.id
            capacity = service.capacity() if behaviour.capacity is UNSET else behaviour.capacity
            value = service.views.accepted(job, hit=hit, capacity=capacity, behaviour=behaviour)
            if job.mode in {"sync", "subscribe"}:
                await self._finish_in_time(job, value["data"])
            status = behaviour.status or (behaviour.replay_status if hit else None) or 202
            normal = answer(status, value, headers=headers)
            if not hit and job.webhook_behaviour is not None and job.webhook_behaviour.early:
                await self._end_early(job)
            await self._wait(behaviour, job)
            return self._spoil(behaviour, job, normal), behaviour
        finally:
            if key is not None and self._answering.get(key) is mine:
                del self._answering[key]
                mine.set()

    def _refusal(self, received: Received) -> tuple[Answer | None, dict[str, str]]:
        """Why a submit is not accepted (None: it is), and the headers for the answer."""
        service, key = self._service, received.key
        refused, headers = self._admit(received)
        if refused is not None:
            return refused, headers
        if key is not None and not (0 < len(key) <= LONGEST_KEY):
            errors = [{"path": "Idempotency-Key", "message": "Must have 1 to 255 characters."}]
            return problem(400, details={"errors": errors}, headers=headers), headers
        known = service.book.by_key.get(key) if key is not None else None
        if known is not None:
            if known.body != received.body or known.path != received.path:
                return problem(409, "idempotency_conflict", headers=headers), headers
            return None, headers
        prompt_required = received.path in {"/v1/images", service.options.submit_path}
        errors = faults_of(received.body, prompt_required=prompt_required)
        if errors:
            return problem(400, details={"errors": errors}, headers=headers), headers
        credits_left = service.credits_left()
        if credits_left is not None and credits_left <= 0:
            return problem(402, headers=headers), headers
        if service.capacity() <= 0:
            return problem(429, "queue_full", headers=headers), headers
        return None, headers

    async def _finish_in_time(self, job: FakeJob, data: dict[str, Any]) -> None:
        wait = json.loads(job.body).get("wait_timeout_seconds", SYNC_SECONDS)
        await self._service.until_ended(job, float(wait))
        sync: dict[str, Any] = {"completed": job.status == "completed", "status": job.status}
        if job.status == "completed":
            sync["result"] = self._service.views.result(job, time.time())["data"]["result"]
        data["sync"] = sync
        data["job"]["status"] = job.status

    async def _end_early(self, job: FakeJob) -> None:
        status, error = self._service.generation.end_of(job)
        delivery = self._service.move(job, status, error=error)
        if delivery is not None:
            await asyncio.wait({delivery}, timeout=self._service.options.webhook_timeout)

    # Jobs --------------------------------------------------------------------------------------

    async def _read(self, received: Received, view: str | None) -> tuple[Answer, Behaviour]:
        service = self._service
        job = service.book.jobs.get(received.job_id or "")
        subject = (job.key or job.id) if job is not None else (received.job_id or "")
        result = view == "result"
        script = service.scripts.result if result else service.scripts.read
        behaviour = (
            script.next(received.job_id, subject)
            or service.weather.request(RESULT_WEATHER if result else READ_WEATHER, subject)
            or NORMAL
        )
        refused, headers = (None, {}) if behaviour.status is not None else self._admit(received)
        await self._wait(behaviour, job)
        if refused is not None:
            return refused, behaviour
        if job is None:
            normal = problem(404, "job_not_found", headers=headers)
        else:
            normal = self._view(received, view, job, behaviour, headers)
        return self._spoil(behaviour, job, normal), behaviour

    def _view(
        self,
        received: Received,
        view: str | None,
        job: FakeJob,
        behaviour: Behaviour,
        headers: dict[str, str],
    ) -> Answer:
        views = self._service.views
        if view == "status":
            return answer(200, views.status(job, behaviour), headers=headers)
        if view == "result":
            if job.status != "completed":
                details = {"status": job.status}
                return problem(409, "job_not_completed", details=details, headers=headers)
            return answer(200, views.result(job, time.time()), headers=headers)
        if view == "events":
            limit = _limit(received.query, 50)
            if limit is None:
                return problem(400, details=_limit_fault(), headers=headers)
            return answer(200, views.events(job, limit), headers=headers)
        return answer(200, {"data": {"job": views.record(job, behaviour)}}, headers=headers)

    async def _cancel(self, received: Received, view: str | None) -> tuple[Answer, Behaviour]:
        service = self._service
        job = service.book.jobs.get(received.job_id or "")
        subject = (job.key or job.id) if job is not None else (received.job_id or "")
        behaviour = (
            service.scripts.cancel.next(received.job_id, subject)
            or service.weather.request(CANCEL_WEATHER, subject)
            or NORMAL
        )
        refused, headers = (None, {}) if behaviour.status is not None else self._admit(received)
        normal: Answer | None = None
        if refused is None and behaviour.accepts:
            normal = self._cancel_now(job, behaviour, headers)
        await self._wait(behaviour, job)
        if refused is not None:
            return refused, behaviour
        return self._spoil(behaviour, job, normal), behaviour

    def _cancel_now(
        self, job: FakeJob | None, behaviour: Behaviour, headers: dict[str, str]
    ) -> Answer:
        if job is None:
            return problem(404, "job_not_found", headers=headers)
        details = {"status": job.status, "cancelable": False}
        if job.status in {"completed", "failed"}:
            return problem(409, "job_not_cancelable", details=details, headers=headers)
        if job.status != "canceled":
            if job.started:
                code = "job_generation_already_started"
                return problem(409, code, details=details, headers=headers)
            self._service.move(job, "canceled")
        return answer(200, self._service.views.canceled(job, behaviour), headers=headers)

    # Files -------------------------------------------------------------------------------------

    async def _artifact(self, received: Received, name: str) -> tuple[Answer, Behaviour]:
        service = self._service
        job = service.book.jobs.get(f"job_{name}")
        if job is None:
            return problem(404), NORMAL
        received.job_id = job.id
        behaviour = (
            service.scripts.artifact.next(job.id, job.key)
            or service.weather.request(ARTIFACT_WEATHER, job.key or job.id)
            or NORMAL
        )
        await self._wait(behaviour, job)
        if service.options.artifact_seconds is not None and not _still_valid(name, received.query):
            page = b"<html><body>This link has expired.</body></html>"
            return Answer(403, page, {"Content-Type": "text/html"}), behaviour
        normal = Answer(200, png(name), {"Content-Type": "image/png"})
        return self._spoil(behaviour, job, normal), behaviour

    # The rest ----------------------------------------------------------------------------------

    async def _other(self, received: Received) -> tuple[Answer, Behaviour]:
        path, method = received.path, received.method
        behaviour = NORMAL
        if path == "/v1/jobs" and method == "GET":
            behaviour = self._service.scripts.list.next() or NORMAL
        refused, headers = self._admit(received, open_to_all=path in OPEN_PATHS)
        await self._wait(behaviour, None)
        if refused is not None:
            return refused, behaviour
        if method == "POST" and path == "/v1/generation/admission-preview":
            return self._preview(received, headers), behaviour
        if method != "GET":
            return problem(404, headers=headers), behaviour
        if path == "/v1/jobs":
            return self._spoil(behaviour, None, self._list(received, headers)), behaviour
        if path == "/v1/usage":
            return self._usage(received, headers), behaviour
        data = self._data(path)
        if data is None:
            return problem(404, headers=headers), behaviour
        return answer(200, {"data": data}, headers=headers), behaviour

    def _data(self, path: str) -> dict[str, Any] | None:
        service = self._service
        if path in {"/health", "/v1/health"}:
            return {"status": "ok"}
        if path == "/v1/me":
            return {"account": {"workspace_id": "ws_fake"}, "api_key": {"mode": "live"}}
        if path == "/v1/balance":
            left = service.credits_left()
            price = service.options.price_usd_micros
            available = 1_000_000_000 if left is None else max(0, left) * price
            return {"available_balance_usd_micros": available, "currency": "USD"}
        if path in {"/v1/catalog", "/v1/open/catalog"}:
            return {"models": [_model(name, kind) for name, kind in MODELS.items()]}
        if path.startswith("/v1/open/catalog/"):
            # Any model is in the catalog, as the fake runs whatever it is asked for.
            name = path.removeprefix("/v1/open/catalog/")
            return _model(name, MODELS.get(name, "image"))
        return None

    def _preview(self, received: Received, headers: dict[str, str]) -> Answer:
        service = self._service
        try:
            value = json.loads(received.body)
        except (ValueError, RecursionError):
            value = None
        request = value.get("request") if isinstance(value, dict) else None
        if not isinstance(request, dict):
            errors = [{"path": "request", "message": "Must be an object."}]
            return problem(400, details={"errors": errors}, headers=headers)
        left = service.credits_left()
        reason = None
        if left is not None and left <= 0:
            reason = "insufficient_credits"
        elif service.capacity() <= 0:
            reason = "queue_full"
        data = {
            "admission": {"would_accept": reason is None, "reason": reason},
            "usage": {
                "currency": "USD",
                "billable_amount_usd_micros": service.options.price_usd_micros,
            },
        }
        return answer(200, {"data": data}, headers=headers)

    def _list(self, received: Received, headers: dict[str, str]) -> Answer:
        page = self._page(received)
        if page is None:
            return problem(400, details=_limit_fault(), headers=headers)
        jobs, cursor = page
        records = [self._service.views.record(job, NORMAL) for job in jobs]
        return answer(200, {"data": {"jobs": records, "next_cursor": cursor}}, headers=headers)

    def _usage(self, received: Received, headers: dict[str, str]) -> Answer:
        page = self._page(received)
        if page is None:
            return problem(400, details=_limit_fault(), headers=headers)
        jobs, cursor = page
        price = self._service.options.price_usd_micros
        usage = [
            {
                "id": f"usage_{job.number}",
                "job_id": job.id,
                "amount_usd_micros": price,
                "status": self._service.views.usage(job)["status"],
            }
            for job in jobs
        ]
        return answer(200, {"data": {"usage": usage, "next_cursor": cursor}}, headers=headers)

    def _page(self, received: Received) -> tuple[list[FakeJob], str | None] | None:
        """The jobs of one page and the cursor of the next; None if the query is not valid."""
        limit = _limit(received.query, 20)
        cursor = received.query.get("cursor")
        if limit is None or not (cursor is None or cursor.isdecimal()):
            return None
        wanted = received.query.get("status")
        if received.query.get("type", JOB_TYPE) != JOB_TYPE:
            return [], None
        found: list[FakeJob] = []
        for job in self._service.book.newest_first(int(cursor) if cursor else None):
            if wanted is not None and job.status != wanted:
                continue
            if len(found) == limit:
                return found, str(found[-1].number)
            found.append(job)
        return found, None

    # Shared ------------------------------------------------------------------------------------

    def _admit(
        self, received: Received, *, open_to_all: bool = False
    ) -> tuple[Answer | None, dict[str, str]]:
        """Why a request is turned away at the door (None: it is not), and the rate headers."""
        if open_to_all:
            return None, {}
        service = self._service
        token = _token(received.headers)
        allowed = service.options.api_keys
        if allowed is not None and token not in allowed:
            return problem(401), {}
        window = service.window(received, token)
        if window is None:
            return None, {}
        wait = window.take(received.at)
        headers = window.headers(received.at)
        if wait is None:
            return None, headers
        # Whole seconds, rounded up: after that long the call does go through.
        return problem(429, headers={**headers, "Retry-After": str(int(wait) + 1)}), headers

    async def _wait(self, behaviour: Behaviour, job: FakeJob | None) -> None:
        """What happens between deciding on an answer and giving it."""
        if behaviour.call is not None:
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._threads, behaviour.call, job)
            except Exception as error:
                # The answer goes on; the test that made the call finds its error in `errors`.
                self.errors.append(error)
        latency = self._service.options.latency
        if not isinstance(latency, int | float):
            least, most = latency
            latency = least + (most - least) * self._service.weather.draw(
                "latency", new_request_id()
            )
        if latency + behaviour.delay > 0:
            await asyncio.sleep(latency + behaviour.delay)
        if behaviour.hold is not None:
            await self._service.holds.wait(behaviour.hold)

    def _spoil(self, behaviour: Behaviour, job: FakeJob | None, normal: Answer | None) -> Answer:
        """The answer that the behaviour asks for in place of the normal one."""
        if behaviour is NORMAL and normal is not None:
            return normal
        status = behaviour.status or (normal.status if normal is not None else 200)
        if behaviour.body is not None:
            kind = "text/html" if behaviour.body[:1] == b"<" else "application/json"
            headers = {"Content-Type": kind, "x-sume-request-id": new_request_id()}
            spoiled = Answer(status, behaviour.body, headers)
        elif behaviour.json is not UNSET:
            value = behaviour.json(job) if callable(behaviour.json) else behaviour.json
            spoiled = answer(status, value)
        elif normal is None or (behaviour.status is not None and not 200 <= status < 300):
            spoiled = problem(
                status,
                behaviour.code,
                message=behaviour.message,
                details=behaviour.details,
                retryable=behaviour.retryable,
            )
        else:
            spoiled = normal
            spoiled.status = status
        spoiled.headers.update(behaviour.headers)
        return spoiled


def _token(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return headers.get("x-api-key", "").strip()


def _limit(query: Mapping[str, str], default: int) -> int | None:
    """The `limit` of a query, None if it is not a whole number from 1 to 100."""
    text = query.get("limit", str(default))
    return int(text) if text.isascii() and text.isdecimal() and 1 <= int(text) <= 100 else None


def _limit_fault() -> dict[str, Any]:
    return {"errors": [{"path": "limit", "message": "Must be from 1 to 100."}]}


def _model(name: str, kind: str) -> dict[str, Any]:
    return {"id": name, "name": name, "kind": kind, "status": "available"}


def _still_valid(name: str, query: Mapping[str, str]) -> bool:
    expires, signature = query.get("expires", ""), query.get("signature", "")
    if signature != artifact_signature(name, expires):
        return False
    return time.time() < float(expires)
