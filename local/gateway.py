"""API Gateway's role on this machine: HTTP on loopback in, payload 2.0 events to functions.

What clients send and get back follows an HTTP API with Lambda proxy integrations: lower-case
header names, repeated headers joined with commas, base64 for bodies that are not text, 404 for an
unknown route, 413 over 10 MB, 500 when the function failed, 503 when it is throttled or slow.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import re
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from local.runner import THROTTLED, TOO_LARGE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from local.runner import Runner

BODY_BYTES = 10 * 1024 * 1024
INTEGRATION_SECONDS = 30.0
ACCOUNT = "000000000000"
API_ID = "local"
# Content types whose bodies arrive as text; all others arrive as base64.
TEXT = re.compile(
    r"^\s*(text/[^;]*|application/(json|javascript|xml|x-www-form-urlencoded|[^;]*\+(json|xml)))"
    r"\s*(;|$)",
    re.IGNORECASE,
)
# Set by the server itself, so never taken from a function's answer.
NOT_FROM_FUNCTIONS = frozenset({"content-length", "transfer-encoding", "connection"})


@dataclass(frozen=True)
class Route:
    """Send ``method`` (or ``ANY``) on ``path`` to ``function``; ``{name}`` matches one segment."""

    method: str
    path: str
    function: str

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"

    def match(self, method: str, path: str) -> dict[str, str] | None:
        """The path parameters if this route takes the request, else None."""
        if self.method not in ("ANY", method):
            return None
        pattern = "/".join(
            f"(?P<{part[1:-1]}>[^/]+)" if part.startswith("{") else re.escape(part)
            for part in self.path.split("/")
        )
        found = re.fullmatch(pattern, path)
        return {key: unquote(value) for key, value in found.groupdict().items()} if found else None


WEBHOOK = Route("POST", "/webhooks/sume", "webhook")
BOARD = Route("GET", "/board", "api")
# In AWS only authorized callers reach these; here whoever can reach this machine's loopback.
API = (
    Route("POST", "/jobs", "api"),
    Route("GET", "/jobs", "api"),
    Route("GET", "/jobs/{id}", "api"),
    Route("POST", "/jobs/{id}/cancel", "api"),
    Route("GET", "/support/jobs/{id}", "api"),
    Route("GET", "/stats", "api"),
    Route("GET", "/openapi.json", "api"),
    BOARD,
)


class Gateway:
    """The HTTP server; runs in a thread of its own between ``start`` and ``stop``.

    ``responses`` counts the status codes answered, by function. ``outcomes`` counts the
    ``outcome`` in JSON answers of functions, which is what webhook calls came to. ``concurrency``
    is how many requests may be in functions at once; those beyond wait for a moment.
    """

    def __init__(
        self,
        runner: Runner,
        routes: Iterable[Route] = (WEBHOOK,),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        concurrency: int = 8,
    ) -> None:
        self.responses: Counter[tuple[str, int]] = Counter()
        self.outcomes: Counter[str] = Counter()
        self._runner = runner
        self._routes = list(routes)
        self._host = host
        self._port = port
        self._calls = ThreadPoolExecutor(concurrency, thread_name_prefix="gateway")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failure: OSError | None = None
        self._ending: asyncio.Event | None = None

    def __enter__(self) -> Gateway:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://{self._host}:{self._port}"

    def start(self) -> str:
        """Listen, and return the URL; raises OSError when the port is taken."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="gateway")
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self.url

    def stop(self) -> None:
        """Stop listening; requests in progress get a second to end."""
        if self._loop is not None and self._ending is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ending.set)
        if self._thread is not None:
            self._thread.join()
        self._calls.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        server = web.ServerRunner(
            web.Server(self._handle, access_log=None), shutdown_timeout=1.0, handle_signals=False
        )
        await server.setup()
        site = web.TCPSite(server, self._host, self._port, backlog=512)
        await site.start()
        addresses = server.addresses
        self._port = addresses[0][1]
        self._started.set()
        try:
            await self._ending.wait()
        finally:
            await server.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        for route in self._routes:
            parameters = route.match(request.method, path)
            if parameters is not None:
                break
        else:
            return _plain(404, "Not Found")
        body = await _read(request)
        if body is None:
            self.responses[route.function, 413] += 1
            return _plain(413, "Request Entity Too Large")
        event = event_of(request, body, route, parameters)
        status, response = await self._invoke(route.function, event)
        self.responses[route.function, status] += 1
        return response

    async def _invoke(self, function: str, event: dict[str, Any]) -> tuple[int, web.StreamResponse]:
        loop = asyncio.get_running_loop()
        try:
            invocation = await asyncio.wait_for(
                loop.run_in_executor(self._calls, self._runner.invoke, function, event),
                INTEGRATION_SECONDS,
            )
        except (TimeoutError, RuntimeError):
            return 503, _plain(503, "Service Unavailable")
        failure = invocation.failure
        if failure is not None and failure.kind == THROTTLED:
            return 503, _plain(503, "Service Unavailable")
        if failure is not None and failure.kind == TOO_LARGE:
            return 413, _plain(413, "Request Entity Too Large")
        if failure is not None:
            return 500, _plain(500, "Internal Server Error")
        try:
            response, outcome = response_of(invocation.value)
        except ValueError:
            return 500, _plain(500, "Internal Server Error")
        if outcome is not None:
            self.outcomes[outcome] += 1
        return response.status, response


async def _read(request: web.BaseRequest) -> bytes | None:
    """The whole body; None, with the rest unread, when it is over the limit."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > BODY_BYTES:
            return None
    return bytes(body)


def event_of(
    request: web.BaseRequest, body: bytes, route: Route, parameters: dict[str, str]
) -> dict[str, Any]:
    """The payload 2.0 event of one request."""
    headers: dict[str, str] = {}
    cookies: list[str] = []
    for name, value in request.headers.items():
        lower = name.lower()
        if lower == "cookie":
            cookies += [part.strip() for part in value.split(";")]
        else:
            headers[lower] = f"{headers[lower]},{value}" if lower in headers else value
    path, _, query = request.raw_path.partition("?")
    now = time.time()
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": route.key,
        "rawPath": unquote(path),
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {
            "accountId": ACCOUNT,
            "apiId": API_ID,
            "domainName": headers.get("host", "localhost"),
            "domainPrefix": API_ID,
            "http": {
                "method": request.method,
                "path": unquote(path),
                "protocol": f"HTTP/{request.version.major}.{request.version.minor}",
                "sourceIp": request.remote or "127.0.0.1",
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": uuid.uuid4().hex[:15] + "=",
            "routeKey": route.key,
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now)),
            "timeEpoch": int(now * 1000),
        },
        "isBase64Encoded": False,
    }
    if cookies:
        event["cookies"] = cookies
    if query:
        joined: dict[str, str] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            joined[name] = f"{joined[name]},{value}" if name in joined else value
        event["queryStringParameters"] = joined
    if parameters:
        event["pathParameters"] = parameters
    if body:
        text = _text(body, headers.get("content-type", ""))
        if text is None:
            event["body"] = base64.b64encode(body).decode()
            event["isBase64Encoded"] = True
        else:
            event["body"] = text
    return event


def _text(body: bytes, content_type: str) -> str | None:
    if not TEXT.match(content_type):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def response_of(value: Any) -> tuple[web.Response, str | None]:
    """The HTTP answer for what a function returned, and the ``outcome`` in it, if it says one.

    Raises ValueError for an answer that payload 2.0 does not allow.
    """
    if not (isinstance(value, dict) and "statusCode" in value):
        return web.Response(
            status=200, body=json.dumps(value).encode(), content_type="application/json"
        ), None
    try:
        status = int(value["statusCode"])
        text = value.get("body")
        body = ("" if text is None else str(text)).encode()
        if value.get("isBase64Encoded"):
            body = base64.b64decode(body, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ValueError("malformed Lambda proxy response") from error
    if not 200 <= status <= 599:
        raise ValueError("malformed Lambda proxy response")
    response = web.Response(status=status, body=body)
    for name, content in (value.get("headers") or {}).items():
        if name.lower() not in NOT_FROM_FUNCTIONS:
            response.headers[name] = str(content)
    # What Powertools' resolvers return for payload 1.0; harmless to honour here too.
    for name, contents in (value.get("multiValueHeaders") or {}).items():
        if name.lower() not in NOT_FROM_FUNCTIONS:
            response.headers[name] = ",".join(map(str, contents))
    for cookie in value.get("cookies") or []:
        response.headers.add("Set-Cookie", str(cookie))
    return response, _outcome(body)


def _outcome(body: bytes) -> str | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    outcome = found.get("outcome") if isinstance(found, dict) else None
    return outcome if isinstance(outcome, str) else None


def _plain(status: int, message: str) -> web.Response:
    return web.Response(
        status=status,
        body=json.dumps({"message": message}).encode(),
        content_type="application/json",
    )
