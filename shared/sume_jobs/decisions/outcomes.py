"""The outcome table: what an HTTP answer of Sume does to the row and to the queue.

Written from `sume-api.md` section 7; every line of the tables has a test. A call that was
answered is an `Answer`; one that was not is a `NoAnswer`, which knows whether the request may
have left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from sume_jobs.decisions import answers
from sume_jobs.decisions.backoff import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping

Action = Literal["accepted", "requeue", "fail", "collision"]
Stop = Literal["backoff", "account"]


class Answer(NamedTuple):
    """An HTTP answer. Header names are lower-case; `complete` is False for a cut or capped body."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    complete: bool = True


class NoAnswer(NamedTuple):
    """No HTTP answer came. `sent` is False only where the request certainly never left.

    `unsendable` tells that it never can: this very request is no HTTP.
    """

    sent: bool
    reason: str
    unsendable: bool = False


class Line(NamedTuple):
    """One line of the submit table."""

    action: Action
    # The request was refused politely or never left: the attempt is given back.
    give_back_attempt: bool = False
    # Sume may have accepted it: the key's life counts from here.
    unknown: bool = False
    # It says nothing about Sume's health except that something is wrong.
    ambiguous: bool = False
    stop: Stop | None = None
    code: str | None = None


ACCEPTED: Final = Line("accepted")
COLLISION: Final = Line("collision", code="idempotency_key_collision")
NO_JOB_ID: Final = Line("requeue", unknown=True, ambiguous=True)
NEVER_SENT: Final = Line("requeue", give_back_attempt=True)
UNSENDABLE: Final = Line("fail", code="unsendable_request")
NO_ANSWER: Final = Line("requeue", unknown=True, ambiguous=True)
PACED: Final = Line("requeue", give_back_attempt=True, stop="backoff")
ACCOUNT: Final = Line("requeue", give_back_attempt=True, stop="account")
# A 401 for a key that was rotated while the container was warm.
OLD_KEY: Final = Line("requeue", give_back_attempt=True)
CONFIGURATION: Final = Line("requeue", give_back_attempt=True, stop="account", code="wrong_address")
OUTAGE: Final = Line("requeue", unknown=True, ambiguous=True)
OUTAGE_FINAL: Final = Line("fail", unknown=True, ambiguous=True)
TWIN: Final = Line("requeue", unknown=True)
TRY_AGAIN: Final = Line("requeue")
REFUSED: Final = Line("fail")

_AMBIGUOUS_4XX: Final = (408, 425, 499)
_IN_PROGRESS: Final = ("in_progress", "in progress", "inprogress", "in_flight", "concurrent")


class SubmitOutcome(NamedTuple):
    """What one submit came to: the table's line and the facts of the answer."""

    line: Line
    job_id: str | None = None
    state: answers.JobState | None = None
    idempotency_hit: bool = False
    capacity: int | None = None
    retry_after: float | None = None
    error: answers.ApiError = answers.ApiError()
    http_status: int | None = None
    reason: str | None = None

    @property
    def error_code(self) -> str:
        """A code for the row: the table's, else Sume's, else one made of the HTTP status."""
        if self.line.code and self.line.action != "requeue":
            return self.line.code
        return self.error.code or (f"http_{self.http_status}" if self.http_status else "no_answer")


def decide_submit(answer: Answer | NoAnswer, first_send: bool, now: float) -> SubmitOutcome:
    """Read the answer to a submit.

    `first_send` tells that no earlier request with this key can have reached Sume, so that a
    replay means somebody else used the key. `now` (seconds since the epoch) only serves a
    Retry-After date that comes without a Date header.
    """
    if isinstance(answer, NoAnswer):
        line = NO_ANSWER if answer.sent else UNSENDABLE if answer.unsendable else NEVER_SENT
        return SubmitOutcome(line, reason=answer.reason)
    body = _parsed(answer)
    facts = SubmitOutcome(
        line=REFUSED,
        job_id=answers.submitted_job_id(body) if 200 <= answer.status < 300 else None,
        state=_state(body),
        idempotency_hit=answers.idempotency_hit(body),
        capacity=answers.queue_capacity(body),
        retry_after=_retry_after(answer, now),
        error=answers.api_error(body, answer.headers),
        http_status=answer.status,
    )
    return facts._replace(line=_submit_line(facts, first_send))


def _submit_line(facts: SubmitOutcome, first_send: bool) -> Line:
    status, code = facts.http_status or 0, (facts.error.code or "").lower()
    if 200 <= status < 300:
        if facts.job_id is None:
            return NO_JOB_ID
        return COLLISION if facts.idempotency_hit and first_send else ACCEPTED
    if status in (429, 503):
        return PACED
    if code == "provider_submission_failed":
        return TRY_AGAIN if facts.error.retryable else REFUSED
    if status in (401, 402, 403):
        return ACCOUNT
    if 300 <= status < 400 or status in (404, 405, 407):
        return REFUSED if "model" in code else CONFIGURATION
    if status == 409:
        return TWIN if any(word in code for word in _IN_PROGRESS) else REFUSED
    if 400 <= status < 500 and status not in _AMBIGUOUS_4XX:
        return REFUSED
    return OUTAGE_FINAL if facts.error.retryable is False else OUTAGE


ReadAction = Literal["state", "result", "later", "missing", "failed"]


class ReadOutcome(NamedTuple):
    """What one read, result fetch or cancel call came to.

    state: `state` holds what Sume reported. result: `result` holds JSON text. later: Sume says
    not yet, or too late. missing: Sume does not know the job. failed: the call says nothing
    about the job.
    """

    action: ReadAction
    state: answers.JobState | None = None
    result: str | None = None
    stop: Stop | None = None
    retry_after: float | None = None
    error: answers.ApiError = answers.ApiError()
    http_status: int | None = None
    reason: str | None = None


def decide_read(answer: Answer | NoAnswer, job_id: str, now: float) -> ReadOutcome:
    """Read the answer to GET /v1/jobs/{id}; a record of another job says nothing about this one."""
    outcome, body = _decide_call(answer, now)
    state = _state(body)
    # Without an id of its own the record is taken for the one that was asked for.
    if outcome.http_status == 200 and state and state.word and state.job_id in (None, job_id):
        return outcome._replace(action="state", state=state)
    return outcome


def decide_result(answer: Answer | NoAnswer, job_id: str, now: float) -> ReadOutcome:
    """Read the answer to GET /v1/jobs/{id}/result: 409 and an empty list mean not yet."""
    outcome, body = _decide_call(answer, now)
    if outcome.http_status == 409 or outcome.action == "missing":
        return outcome._replace(action="later")
    state = _state(body)
    if body is not None and outcome.http_status == 200 and state and state.job_id in (None, job_id):
        result = _result(body)
        return outcome._replace(action="result" if result else "later", result=result)
    return outcome


def decide_cancel(answer: Answer | NoAnswer, job_id: str, now: float) -> ReadOutcome:
    """Read the answer to POST /v1/jobs/{id}/cancel: 409 means too late, which is no failure."""
    outcome, body = _decide_call(answer, now)
    if outcome.http_status == 409:
        return outcome._replace(action="later")
    state = _state(body)
    if outcome.http_status == 200 and state and state.job_id in (None, job_id):
        return outcome._replace(action="state" if state.word else "later", state=state)
    return outcome


def _decide_call(answer: Answer | NoAnswer, now: float) -> tuple[ReadOutcome, object]:
    """Judge the call itself; gives the outcome, `failed` unless told better, and the body."""
    if isinstance(answer, NoAnswer):
        return ReadOutcome("failed", reason=answer.reason), None
    body = _parsed(answer)
    stop: Stop | None = None
    if answer.status in (429, 503):
        stop = "backoff"
    elif answer.status in (401, 402):
        stop = "account"
    return (
        ReadOutcome(
            "missing" if answer.status in (403, 404, 410) else "failed",
            stop=stop,
            retry_after=_retry_after(answer, now),
            error=answers.api_error(body, answer.headers),
            # Any 2xx with a readable body is taken as a 200.
            http_status=200 if 200 <= answer.status < 300 and body is not None else answer.status,
            reason=f"http_{answer.status}",
        ),
        body,
    )


def _retry_after(answer: Answer, now: float) -> float | None:
    return parse_retry_after(answer.headers.get("retry-after"), answer.headers.get("date"), now)


def _parsed(answer: Answer) -> object:
    if not answer.complete:
        return None
    try:
        return answers.parse_json(answer.body)
    except answers.NotJson:
        return None


def _result(body: object) -> str | None:
    try:
        return answers.result_json(body)
    except answers.NotJson:
        return None


def _state(body: object) -> answers.JobState | None:
    try:
        return answers.job_state(body)
    except answers.NotJson:
        return None
