"""The HTTP API and the board, behind API Gateway (HTTP API, payload 2.0), which authorizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sume_jobs import runtime, telemetry
from sume_jobs.flows import api
from sume_jobs.flows.time_left import TimeLeft

if TYPE_CHECKING:
    from collections.abc import Callable

    from sume_jobs.flows.api import Reply

HERE = Path(__file__).parent


class Request(NamedTuple):
    """An event of API Gateway; `id` is that of the path, empty where it has none."""

    event: dict[str, Any]
    context: Any
    id: str

    @property
    def runtime(self) -> runtime.Runtime:
        """Settings and database; asked for only by what needs them."""
        return runtime.current(TimeLeft(self.context).seconds)

    @property
    def query(self) -> dict[str, str]:
        """The query, decoded."""
        return self.event.get("queryStringParameters") or {}


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answer one request; what goes wrong is answered as a problem, nothing is raised."""
    try:
        reply = api.answer(lambda: _route(event, context))
    finally:
        telemetry.flush()
    return {
        "statusCode": reply.status,
        "headers": {
            "content-type": reply.content_type,
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            **reply.headers,
        },
        "body": reply.body,
        "isBase64Encoded": False,
    }


def _route(event: dict[str, Any], context: Any) -> Reply:
    method, path = api.asked_for(event)
    call, job_id = api.find_route(ROUTES, method, path)
    return call(Request(event, context, job_id))


def _show_openapi(_: Request) -> Reply:
    return api.Reply(200, (HERE / "openapi.json").read_text("utf-8"), {})


def _show_board(_: Request) -> Reply:
    from sume_jobs.flows import board

    page = board.page(HERE / "board.html")
    return api.Reply(200, page.html, page.headers)


# Path and method, as docs/openapi.json and the template have them.
ROUTES: dict[str, dict[str, Callable[[Request], Reply]]] = {
    "/jobs": {
        "GET": lambda request: api.list_jobs(request.runtime, request.query),
        "POST": lambda request: api.create_jobs(request.runtime, request.event),
    },
    "/jobs/{id}": {"GET": lambda request: api.show_job(request.runtime, request.id)},
    "/jobs/{id}/cancel": {"POST": lambda request: api.cancel_job(request.runtime, request.id)},
    "/support/jobs/{id}": {"GET": lambda request: api.show_support(request.runtime, request.id)},
    "/stats": {"GET": lambda request: api.show_stats(request.runtime)},
    "/openapi.json": {"GET": _show_openapi},
    "/board": {"GET": _show_board},
}
