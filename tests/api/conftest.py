"""One container of functions/api, called with the events that API Gateway makes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from tests.api.serving import serving
from tests.support.bundle import Answer, Bundle
from tests.support.postgres import Database


def http_event(
    method: str,
    path: str,
    query: dict[str, str] | str = "",
    body: Any = None,
    content_type: str | None = "application/json",
    encoded: bool = False,
) -> dict[str, Any]:
    """A payload 2.0 event; `body` is JSON-able, or text or bytes that are sent as they are."""
    text = query if isinstance(query, str) else urlencode(query)
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": f"{method} {path}",
        "rawPath": path,
        "rawQueryString": text,
        "headers": {"content-type": content_type} if body is not None and content_type else {},
        "requestContext": {
            "accountId": "123456789012",
            "http": {"method": method, "path": path, "sourceIp": "192.0.2.1"},
            "requestId": "JKJaXmPLvHcESHA=",
            "stage": "$default",
        },
        "isBase64Encoded": encoded,
    }
    if text:
        event["queryStringParameters"] = dict(parse_qsl(text, keep_blank_values=True))
    if body is not None:
        sent = body if isinstance(body, str | bytes) else json.dumps(body)
        if encoded:
            raw = sent.encode() if isinstance(sent, str) else sent
            sent = base64.b64encode(raw).decode()
        event["body"] = sent.decode() if isinstance(sent, bytes) else sent
    return event


Call = Callable[..., Answer]


@pytest.fixture
def call(bundle: Bundle) -> Call:
    """`call("GET", "/jobs", query={...}, body=...)`."""

    def call(method: str, path: str, **options: Any) -> Answer:
        reply = bundle.start("api", event=http_event(method, path, **options)).result()
        headers = {name.lower(): value for name, value in (reply.get("headers") or {}).items()}
        return Answer(reply["statusCode"], reply["body"], headers)

    return call


@pytest.fixture
def url(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The API's URL, served from this process."""
    from sume_jobs import runtime

    monkeypatch.setenv("DATABASE_URL", database.url)
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "SumeJobs")
    with serving() as address:
        yield address
    runtime.reset()
