"""The HTTP API and the board, behind API Gateway (HTTP API, payload 2.0), which authorizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from sume_jobs import runtime, telemetry
from sume_jobs.flows import api, board
from sume_jobs.flows.time_left import TimeLeft

if TYPE_CHECKING:
    from collections.abc import Callable

app = APIGatewayHttpResolver()
HERE = Path(__file__).parent


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answer one request; what goes wrong is answered as a problem, nothing is raised."""
    try:
        return app.resolve(event, context)
    finally:
        telemetry.flush()


def _current() -> runtime.Runtime:
    return runtime.current(TimeLeft(app.lambda_context).seconds)


def _answer(call: Callable[[], api.Reply]) -> Response[str]:
    reply = api.answer(call)
    return Response(
        status_code=reply.status,
        content_type=reply.content_type,
        body=reply.body,
        headers={"cache-control": "no-store", "x-content-type-options": "nosniff", **reply.headers},
    )


@app.post("/jobs")
def create_jobs() -> Response[str]:
    return _answer(lambda: api.create_jobs(_current(), app.current_event.raw_event))


@app.get("/jobs")
def list_jobs() -> Response[str]:
    query = app.current_event.query_string_parameters
    return _answer(lambda: api.list_jobs(_current(), query))


@app.get("/jobs/<job_id>")
def show_job(job_id: str) -> Response[str]:
    return _answer(lambda: api.show_job(_current(), job_id))


@app.post("/jobs/<job_id>/cancel")
def cancel_job(job_id: str) -> Response[str]:
    return _answer(lambda: api.cancel_job(_current(), job_id))


@app.get("/support/jobs/<job_id>")
def show_support(job_id: str) -> Response[str]:
    return _answer(lambda: api.show_support(_current(), job_id))


@app.get("/stats")
def show_stats() -> Response[str]:
    return _answer(lambda: api.show_stats(_current()))


@app.get("/openapi.json")
def show_openapi() -> Response[str]:
    return _answer(lambda: api.Reply(200, (HERE / "openapi.json").read_text("utf-8"), {}))


@app.get("/board")
def show_board() -> Response[str]:
    page = board.page(HERE / "board.html")
    return Response(
        status_code=200,
        content_type="text/html; charset=utf-8",
        body=page.html,
        headers=page.headers,
    )


@app.not_found
def no_such_route(_: Exception) -> Response[str]:
    event = app.current_event
    return _answer(lambda: api.no_such_route(event.http_method, event.path))
