"""The server in its thread, and the interface that tests use from outside that thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import ClientPayloadError, web

from .api import Api
from .behaviour import NORMAL, Behaviour, WebhookBehaviour
from .control import control
from .options import Options
from .service import Received, Service
from .views import problem
from .webhooks import Delivery, event_body, signed_headers
from .wire import reset, send

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from types import TracebackType

    from .model import FakeJob

T = TypeVar("T")
# Threads for the `call` of behaviours.
THREADS = 64
# The longest that a call from another thread waits for the server's thread.
PATIENCE_SECONDS = 30.0


class FakeSume:
    """A fake Sume on a real port. Settings are the fields of `Options`, given by name.

    Every method may be called from any thread, and from the `call` of a behaviour. State is kept
    over `stop()` and `start()`, and so is the port: that is an outage.
    """

    def __init__(self, options: Options | None = None, **settings: Any) -> None:
        self.options = dataclasses.replace(options or Options(), **settings)
        self._service = Service(self.options)
        self._port = self.options.port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event | None = None
        self._server: web.Server | None = None
        self._api: Api | None = None

    # Life --------------------------------------------------------------------------------------

    def start(self) -> FakeSume:
        """Listen; returns once the port is open. Raises OSError if the port is taken."""
        if self._thread is None:
            opened: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._serve(opened)), name="fake-sume", daemon=True
            )
            self._thread.start()
            try:
                opened.result(PATIENCE_SECONDS)
            except BaseException:
                self._thread = None
                raise
        return self

    def stop(self) -> None:
        """Close the port and every connection, answered or not; jobs and keys are kept."""
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None:
            return
        loop.call_soon_threadsafe(stopping.set)
        thread.join(PATIENCE_SECONDS)
        self._thread = None

    def __enter__(self) -> FakeSume:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"http://{self.options.host}:{self._port}"

    # What happened -----------------------------------------------------------------------------

    @property
    def requests(self) -> list[Received]:
        """All requests so far (those on `/_fake` apart), in order of arrival."""
        return list(self._service.log.requests)

    def posts(self, key: str | None = None) -> list[Received]:
        """The submits, of one key or of all."""
        return [item for item in self.requests if item.submit and (key is None or item.key == key)]

    @property
    def billed(self) -> int:
        """How many distinct jobs were ever created."""
        return self._service.book.billed

    @property
    def billed_by_key(self) -> dict[str, int]:
        return dict(self._service.book.billed_by_key)

    @property
    def jobs(self) -> dict[str, FakeJob]:
        """All jobs by id."""
        return dict(self._service.book.jobs)

    def job_for(self, key: str) -> FakeJob | None:
        return self._service.book.by_key.get(key)

    @property
    def deliveries(self) -> list[Delivery]:
        """Every webhook POST that was made, and its answer."""
        return list(self._service.sender.deliveries)

    @property
    def errors(self) -> list[Exception]:
        """What the `call` of a behaviour raised; the request itself was answered all the same."""
        return list(self._service.errors)

    def stats(self, *, keys: bool = False) -> dict[str, Any]:
        """What `GET /_fake/stats` answers."""
        return self._inside(lambda: self._service.stats(keys=keys))

    def max_in_window(self, seconds: float = 60.0) -> int:
        """The largest number of POSTs, of any kind, that arrived within that many seconds."""
        return self._inside(lambda: self._service.log.posts.most_within(seconds))

    # Orders ------------------------------------------------------------------------------------

    def on_submit(self, *behaviours: Behaviour, key: str | None = None) -> None:
        """How the next submits (of that key) are answered, one behaviour each."""
        self._service.scripts.submit.add(behaviours, key)

    def always_on_submit(self, behaviour: Behaviour | None, *, key: str | None = None) -> None:
        """How all submits (of that key) are answered; None ends it."""
        self._service.scripts.submit.set(behaviour, key)

    def on_read(
        self, *behaviours: Behaviour, job_id: str | None = None, key: str | None = None
    ) -> None:
        """How the next reads of a job, or of its status or events, are answered."""
        self._service.scripts.read.add(behaviours, job_id or key)

    def always_on_read(
        self, behaviour: Behaviour | None, *, job_id: str | None = None, key: str | None = None
    ) -> None:
        self._service.scripts.read.set(behaviour, job_id or key)

    def on_result(
        self, *behaviours: Behaviour, job_id: str | None = None, key: str | None = None
    ) -> None:
        self._service.scripts.result.add(behaviours, job_id or key)

    def always_on_result(
        self, behaviour: Behaviour | None, *, job_id: str | None = None, key: str | None = None
    ) -> None:
        self._service.scripts.result.set(behaviour, job_id or key)

    def on_cancel(
        self, *behaviours: Behaviour, job_id: str | None = None, key: str | None = None
    ) -> None:
        self._service.scripts.cancel.add(behaviours, job_id or key)

    def always_on_cancel(
        self, behaviour: Behaviour | None, *, job_id: str | None = None, key: str | None = None
    ) -> None:
        self._service.scripts.cancel.set(behaviour, job_id or key)

    def on_list(self, *behaviours: Behaviour) -> None:
        self._service.scripts.list.add(behaviours, None)

    def always_on_list(self, behaviour: Behaviour | None) -> None:
        self._service.scripts.list.set(behaviour, None)

    def on_artifact(
        self, *behaviours: Behaviour, job_id: str | None = None, key: str | None = None
    ) -> None:
        """How the next downloads of a job's file are answered."""
        self._service.scripts.artifact.add(behaviours, job_id or key)

    def always_on_artifact(
        self, behaviour: Behaviour | None, *, job_id: str | None = None, key: str | None = None
    ) -> None:
        self._service.scripts.artifact.set(behaviour, job_id or key)

    def on_webhook(
        self, *behaviours: WebhookBehaviour, key: str | None = None, job_id: str | None = None
    ) -> None:
        """What goes wrong with the webhooks of the jobs made next (with that key), or of a job
        that is there already (`job_id`)."""
        self._service.scripts.webhook.add(behaviours, job_id or key)

    def always_on_webhook(
        self, behaviour: WebhookBehaviour | None, *, key: str | None = None
    ) -> None:
        self._service.scripts.webhook.set(behaviour, key)

    def behave(self) -> None:
        """Forget all behaviours and all weather: everything is answered normally."""
        self._service.scripts.clear()
        self._service.weather.replace({})

    def weather(self, **shares: float) -> None:
        """Change the weather; names and shares as in `behaviour.py`."""
        self._service.weather.update(shares)

    # Jobs --------------------------------------------------------------------------------------

    def set_status(
        self,
        job_id: str,
        status: str,
        error: Any = None,
        artifacts: list[dict[str, Any]] | None = None,
        *,
        webhook: bool = True,
    ) -> None:
        """Give a job any status, backwards and unknown ones included; it no longer goes on by
        itself. Its end sends the webhook, if the submit asked for one and `webhook` is true.
        Raises KeyError for an unknown job."""
        job = self._service.book.jobs[job_id]
        self._inside(
            lambda: self._service.set_status(
                job, status, error=error, artifacts=artifacts, webhook=webhook
            )
        )

    def forget_key(self, key: str) -> None:
        """The key's retention ended: the next submit with it makes a second job."""
        self._inside(lambda: self._service.forget(key))

    def close_connections(self, *, idle_only: bool = True) -> int:
        """Reset the connections that clients keep alive; how many those were."""
        return self._inside(lambda: self._close_connections(idle_only))

    # Webhooks ----------------------------------------------------------------------------------

    def sign(
        self, body: bytes, timestamp: int | str | None = None, secret: str | None = None
    ) -> dict[str, str]:
        """The headers of a delivery of these bytes: now, with the integration's secret, unless
        told otherwise."""
        return signed_headers(
            body,
            int(time.time()) if timestamp is None else timestamp,
            self.options.webhook_secret if secret is None else secret,
        )

    def webhook_body(
        self, job_id: str, status: str | None = None, event_id: str | None = None, **extra: Any
    ) -> bytes:
        """The body of a job's event. `status` and `extra` (such as `error`) replace or add fields
        of `data.object`; the job need not exist."""
        job = self._service.book.jobs.get(job_id)
        record: dict[str, Any] = {
            "id": job_id,
            "type": "image_generation",
            "status": "completed",
            "error": None,
        }
        if job is not None:
            record = self._service.views.record(job, NORMAL)
            del record["webhook_status"]
        if status is not None:
            record["status"] = status
        return event_body({**record, **extra}, event_id=event_id)

    def deliver(
        self,
        job_id: str,
        url: str | None = None,
        *,
        status: str | None = None,
        event_id: str | None = None,
        body: bytes | None = None,
        timestamp: int | str | None = None,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> int | None:
        """POST one signed delivery now, to the job's own webhook URL unless told otherwise; the
        HTTP status of the answer, None if there was none. Raises ValueError without a URL."""
        job = self._service.book.jobs.get(job_id)
        url = url or (job.webhook_url if job is not None else None)
        if url is None:
            raise ValueError(f"no webhook URL for {job_id}")
        if body is None:
            body = self.webhook_body(job_id, status, event_id, **extra)
        signed = {**self.sign(body, timestamp, secret), **(headers or {})}
        return self._run(self._service.sender.post(job_id, url, body, signed))

    # Inside ------------------------------------------------------------------------------------

    async def _serve(self, opened: concurrent.futures.Future[None]) -> None:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fake-sume-call")
        self._api = Api(self._service, threads)
        self._server = web.Server(self._handle, access_log=None)
        runner = web.ServerRunner(self._server, shutdown_timeout=0.05)
        await runner.setup()
        try:
            site = web.TCPSite(
                runner, self.options.host, self._port, backlog=4096, reuse_address=True
            )
            try:
                await site.start()
                self._port = runner.addresses[0][1]
                self._stopping = asyncio.Event()
                self._loop = asyncio.get_running_loop()
                await self._service.begin(self.url)
            except BaseException as error:
                opened.set_exception(error)
                return
            opened.set_result(None)
            await self._stopping.wait()
        finally:
            self._close_connections(idle_only=False)
            await runner.cleanup()
            await self._service.end()
            threads.shutdown(wait=False, cancel_futures=True)
            self._loop = self._server = self._api = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        api, log = self._api, self._service.log
        assert api is not None
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(
            at=time.monotonic(),
            method=request.method,
            path=request.path,
            query=dict(request.query) if request.query_string else {},
            headers=headers,
            body=b"",
            key=headers.get("idempotency-key"),
        )
        controls = received.path.startswith("/_fake/")
        if not controls:
            log.arrived(received)
        try:
            received.body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            log.answered(received, 413)
            return await send(request, problem(413), NORMAL)
        except (ConnectionError, ClientPayloadError):
            # The client died before its request was complete: nothing was asked for.
            return web.Response(status=400)
        if controls:
            return await send(request, control(self._service, received), NORMAL)
        answer, behaviour = await api.answer(received)
        dropped = behaviour.drop in {"before", "after"}
        log.answered(received, None if dropped else answer.status)
        return await send(request, answer, behaviour)

    def _close_connections(self, idle_only: bool) -> int:
        closed = 0
        for connection in self._server.connections if self._server is not None else []:
            transport = connection.transport
            if transport is None or (idle_only and connection._current_request is not None):
                continue
            reset(transport)
            closed += 1
        return closed

    def _inside(self, action: Callable[[], T]) -> T:
        """Do something in the server's thread, or here if there is none."""
        loop = self._loop
        if loop is None or threading.current_thread() is self._thread:
            return action()

        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), loop).result(PATIENCE_SECONDS)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None:
            work.close()
            raise RuntimeError("the fake is not running")
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_SECONDS)
