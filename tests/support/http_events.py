"""What API Gateway hands over for a request to the API."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import parse_qsl, urlencode


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
