"""One container of functions/api, called with the events that API Gateway makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api.serving import serving
from tests.support.bundle import Answer, Bundle
from tests.support.http_events import http_event
from tests.support.postgres import Database

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
