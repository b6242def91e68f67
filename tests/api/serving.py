"""functions/api behind the local gateway, in this process: for tools that want a URL."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from local.gateway import Gateway, Route

PATHS = (
    "/jobs",
    "/jobs/{id}",
    "/jobs/{id}/cancel",
    "/support/jobs/{id}",
    "/stats",
    "/board",
    "/openapi.json",
)


@dataclass
class Invocation:
    """What the gateway reads of an invocation."""

    value: Any
    failure: None = None


class InProcess:
    """Calls the handler here, one request at a time, as one container does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def invoke(self, name: str, event: dict[str, Any]) -> Invocation:
        from functions.api import app

        with self._lock:
            # Through JSON both ways, as between API Gateway and Lambda.
            answer = app.handler(json.loads(json.dumps(event)), None)
            return Invocation(json.loads(json.dumps(answer)))


@contextmanager
def serving() -> Iterator[str]:
    """Serve, with the database that DATABASE_URL names; gives the URL."""
    routes = [Route("ANY", path, "api") for path in PATHS]
    gateway = Gateway(InProcess(), routes)  # type: ignore[arg-type]
    try:
        yield gateway.start()
    finally:
        gateway.stop()
