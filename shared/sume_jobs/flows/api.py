"""The HTTP API: reads a request, answers with JSON or with a problem (RFC 9457).

Who may call is API Gateway's matter; everything that arrives here is authorized. No text of a
request, nor of a database error that may quote one, is ever logged.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from sume_jobs import telemetry
from sume_jobs.connection import DatabaseUnavailable
from sume_jobs.decisions import enqueue_request
from sume_jobs.decisions.advice import advise
from sume_jobs.decisions.enqueue_request import LARGEST_ID
from sume_jobs.secrets import SecretUnavailable
from sume_jobs.store import enqueue as enqueue_store
from sume_jobs.store import job_views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sume_jobs.runtime import Runtime

LARGEST_BODY: Final = 256 * 1024
MOST_ON_A_PAGE: Final = 100
ON_A_PAGE: Final = 50
STATES: Final = ("working", "done", "needs_attention")
RETRY_SECONDS: Final = 2
# Too busy or broken for now: waited too long for a lock, canceled by a time limit, out of room.
_COME_BACK: Final = ("55P03", "57014", "53", "40", "08", "57P", "58")


class Reply(NamedTuple):
    """An HTTP answer whose body is a JSON text."""

    status: int
    body: str
    headers: dict[str, str]

    @property
    def content_type(self) -> str:
        """The media type: problems have their own."""
        return "application/json" if self.status < 400 else "application/problem+json"


class Problem(Exception):
    """What goes wrong with a request, told as RFC 9457 wants it."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: list[dict[str, str]] | None = None,
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.errors = errors

    def reply(self) -> Reply:
        """Put it into words."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": _TITLES[self.status],
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.errors:
            body["errors"] = self.errors
        return Reply(self.status, json.dumps(body), self.headers)


_TITLES: Final = {
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def answer(call: Callable[[], Reply]) -> Reply:
    """Make a call and give its reply, or the reply to what went wrong; never raises."""
    try:
        return call()
    except Problem as problem:
        return problem.reply()
    except psycopg.errors.CheckViolation as error:
        # The first line and the hint are the schema's own words; the rest quotes the row.
        detail = ". ".join(
            part for part in (error.diag.message_primary, error.diag.message_hint) if part
        )
        return Problem(422, "refused", detail).reply()
    except psycopg.DataError as error:
        telemetry.warn("request_refused", sqlstate=error.sqlstate)
        return Problem(422, "refused", "the database cannot store one of the values").reply()
    except (DatabaseUnavailable, SecretUnavailable, psycopg.Error) as error:
        sqlstate = getattr(error, "sqlstate", None)
        if isinstance(error, psycopg.Error) and not (sqlstate or "08").startswith(_COME_BACK):
            return _broken(error, sqlstate)
        telemetry.alarm("api_unavailable", kind=type(error).__name__, sqlstate=sqlstate)
        return unavailable().reply()
    except Exception as error:
        return _broken(error, None)


def unavailable() -> Problem:
    """Ask the client to come back."""
    return Problem(
        503,
        "unavailable",
        "the database is not available now; repeat the request in a few seconds, with the same "
        "references",
        headers={"retry-after": str(RETRY_SECONDS)},
    )


def _broken(error: Exception, sqlstate: str | None) -> Reply:
    # Without its text, which may quote the request.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{Path(frame.filename).name}:{frame.lineno}"
    telemetry.alarm("api_failed", kind=type(error).__name__, sqlstate=sqlstate, at=at)
    return Problem(
        500, "internal", "this is a fault of the service; its log has an entry api_failed"
    ).reply()


def no_such_route(method: str, path: str) -> Reply:
    """Answer a path that is not there, or one that is, but not with this method."""
    for pattern, methods in _PATHS:
        if re.fullmatch(pattern, path, re.DOTALL):
            if method in methods.split(", "):
                # The router takes fewer characters for an id than may be sent for one.
                raise _no_such_job()
            raise Problem(
                405, "method_not_allowed", f"use {methods} here", headers={"allow": methods}
            )
    raise Problem(404, "no_such_path", "there is no such path; GET /openapi.json lists them all")


_PATHS: Final = (
    ("/jobs", "GET, POST"),
    ("/jobs/[^/]+", "GET"),
    ("/jobs/[^/]+/cancel", "POST"),
    ("/support/jobs/[^/]+", "GET"),
    (r"/(stats|board|openapi\.json)", "GET"),
)


# Jobs -----------------------------------------------------------------------------------------


def create_jobs(runtime: Runtime, event: Mapping[str, Any]) -> Reply:
    """`POST /jobs`: enqueue one job or a list of them."""
    raw = _body(event)
    try:
        jobs, is_list = enqueue_request.read(raw)
    except enqueue_request.NotJson:
        raise Problem(
            400, "not_json", "the body is not JSON in UTF-8, or it is nested too deeply"
        ) from None
    except enqueue_request.Invalid as error:
        errors = [{"pointer": fault.pointer, "detail": fault.detail} for fault in error.faults]
        detail = f"nothing was enqueued; {errors[0]['detail']}"
        raise Problem(422, "invalid", detail, errors=errors) from None
    try:
        enqueued = enqueue_store.enqueue(runtime.database, jobs)
    except enqueue_store.IdsAreBehind:
        telemetry.alarm(
            "ids_are_behind",
            advice="select setval(pg_get_serial_sequence('render_jobs', 'id'), max(id)) from "
            "render_jobs",
        )
        raise Problem(
            503,
            "ids_are_behind",
            "the ids of render_jobs are behind its rows; the log says how to mend it",
            headers={"retry-after": "60"},
        ) from None
    ids = [row_id for row_id, _ in enqueued if row_id is not None]
    found = job_views.find(runtime.database, ids)
    if len(found) < len(jobs):
        # Deleted at this very moment: who repeats the request gets new rows.
        raise unavailable()
    created = sum(is_new for _, is_new in enqueued)
    telemetry.count("Enqueued", created)
    telemetry.event("jobs_enqueued", new=created, repeated=len(jobs) - created)
    status = 201 if created else 200
    if not is_list:
        return Reply(status, found[0], {"location": f"/jobs/{ids[0]}"})
    body = (
        f'{{"jobs": [{", ".join(found)}], "created": {created}, "repeated": {len(jobs) - created}}}'
    )
    return Reply(status, body, {})


def list_jobs(runtime: Runtime, query: Mapping[str, str]) -> Reply:
    """`GET /jobs`: one page of jobs, newest first."""
    state = query.get("state")
    if state is not None and state not in STATES:
        raise _bad_query("state", f"state is one of {', '.join(STATES)}")
    limit = _limit(query.get("limit"))
    before = _before(query.get("cursor"))
    reference = query.get("reference")
    following: int | None = None
    if reference is not None:
        if fault := enqueue_request.reference_fault(reference):
            raise _bad_query("reference", fault)
        jobs = job_views.by_reference(runtime.database, reference, state)
    else:
        jobs, following = job_views.newest(runtime.database, before, limit, state)
    cursor = json.dumps(None if following is None else _cursor(following))
    return Reply(200, f'{{"jobs": [{", ".join(jobs)}], "next": {cursor}}}', {})


def show_job(runtime: Runtime, job_id: str) -> Reply:
    """`GET /jobs/{id}`: what a customer may see."""
    row_id = _row_id(job_id)
    found = job_views.find(runtime.database, [row_id])
    if not found:
        raise _no_such_job()
    return Reply(200, found[0], {})


def cancel_job(runtime: Runtime, job_id: str) -> Reply:
    """`POST /jobs/{id}/cancel`: wish that a job be canceled; 409 where it has ended."""
    from sume_jobs.store import render_jobs

    row_id = _row_id(job_id)
    outcome = render_jobs.request_cancel(runtime.database, row_id)
    if outcome is None:
        raise _no_such_job()
    telemetry.event("cancel_wished", row=row_id, outcome=outcome)
    if outcome == "too_late":
        raise Problem(409, "has_ended", "this job has ended already, there is nothing to cancel")
    found = job_views.find(runtime.database, [row_id])
    if not found:
        raise _no_such_job()
    body = f'{{"outcome": {json.dumps(outcome)}, "job": {found[0]}}}'
    return Reply(200 if outcome == "canceled" else 202, body, {})


def show_support(runtime: Runtime, job_id: str) -> Reply:
    """`GET /support/jobs/{id}`: everything that is known, for the team alone."""
    row = job_views.support(runtime.database, _row_id(job_id))
    if row is None:
        raise _no_such_job()
    advice = advise(row)._asdict() if row["state"] == "needs_attention" else None
    # The text that Postgres wrote is an object: the advice becomes its last member.
    return Reply(200, f'{row["job"][:-1]}, "advice": {json.dumps(advice)}}}', {})


# Figures --------------------------------------------------------------------------------------


def show_stats(runtime: Runtime) -> Reply:
    """`GET /stats`: how many rows are where, how old, how fast, and what stands in the way."""
    from sume_jobs.flows import stats

    return Reply(200, json.dumps(stats.collect(runtime.database, runtime.settings.daily_limit)), {})


# Reading requests -----------------------------------------------------------------------------


def _body(event: Mapping[str, Any]) -> bytes:
    body = event.get("body") or ""
    if not isinstance(body, str) or len(body) > LARGEST_BODY * 4 // 3 + 4:
        raise _too_large()
    headers = event.get("headers") or {}
    content_type = next(
        (value for name, value in headers.items() if name.lower() == "content-type"), ""
    )
    if not re.match(r"\s*application/([a-z0-9.-]+\+)?json\s*(;|$)", content_type, re.IGNORECASE):
        raise Problem(415, "not_json", "send the jobs as JSON, with content-type application/json")
    try:
        raw = (
            base64.b64decode(body, validate=True) if event.get("isBase64Encoded") else body.encode()
        )
    except (binascii.Error, ValueError):
        raise Problem(400, "not_json", "the body is not JSON in UTF-8") from None
    if len(raw) > LARGEST_BODY:
        raise _too_large()
    return raw


def _too_large() -> Problem:
    return Problem(
        413,
        "too_large",
        f"a body has at most {LARGEST_BODY} bytes; send the jobs in several requests",
    )


def _row_id(text: str) -> int:
    # The check of the length comes first: a number may have thousands of digits.
    if re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) and 0 < int(text) <= LARGEST_ID:
        return int(text)
    raise _no_such_job()


def _no_such_job() -> Problem:
    return Problem(
        404,
        "no_such_job",
        "there is no job of this id; an ended one is deleted when its retention is over",
    )


def _bad_query(name: str, detail: str) -> Problem:
    return Problem(422, "invalid", detail, errors=[{"pointer": f"query:{name}", "detail": detail}])


def _limit(text: str | None) -> int:
    if text is None:
        return ON_A_PAGE
    if re.fullmatch(r"[0-9]{1,4}", text, re.ASCII) and 1 <= int(text) <= MOST_ON_A_PAGE:
        return int(text)
    raise _bad_query("limit", f"limit is a whole number from 1 to {MOST_ON_A_PAGE}")


def _cursor(before: int) -> str:
    return base64.urlsafe_b64encode(before.to_bytes(8, "big")).decode().rstrip("=")


def _before(text: str | None) -> int:
    if text is None:
        return LARGEST_ID
    if not re.fullmatch(r"[A-Za-z0-9_-]{11}", text, re.ASCII):
        raise _bad_query("cursor", "cursor is the `next` of the page before, unchanged")
    return min(int.from_bytes(base64.urlsafe_b64decode(text + "="), "big"), LARGEST_ID)
