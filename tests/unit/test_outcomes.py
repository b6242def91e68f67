"""The outcome table, line by line as Sume's API is described, and the tables for reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sume_jobs.decisions import answers, outcomes
from sume_jobs.decisions.outcomes import Answer, Line, NoAnswer, decide_submit

NOW = 1_700_000_000.0


def answer(
    status: int,
    body: Any = None,
    code: str | None = None,
    retryable: object = None,
    headers: dict[str, str] | None = None,
    complete: bool = True,
) -> Answer:
    """An answer with a JSON body, or with the error envelope for `code`."""
    if code is not None or retryable is not None:
        error = {"code": code, "message": "text", "retryable": retryable}
        body = {"request_id": "req_1", "error": error}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, headers or {}, raw, complete)


def accepted(job_id: object = "job_1", **extra: Any) -> dict[str, Any]:
    return {"data": {"request_id": job_id, "job": {"id": job_id, "status": "queued"}, **extra}}


def line_of(given: Answer | NoAnswer, first_send: bool = True) -> Line:
    return decide_submit(given, first_send, NOW).line


# ------------------------------------------------------------------------- submit: acceptance


@pytest.mark.parametrize("status", [200, 201, 202, 203, 207])
def test_any_2xx_with_a_job_id_is_acceptance(status: int) -> None:
    outcome = decide_submit(answer(status, accepted()), True, NOW)
    assert outcome.line == Line("accepted")
    assert outcome.job_id == "job_1"


@pytest.mark.parametrize(
    "body",
    [
        {"data": {"job": {"id": "job_1"}}},
        {"data": {"request_id": "job_1"}},
        {"data": {"job_id": "job_1"}},
        {"data": {"id": "job_1"}},
        {"job": {"id": "job_1"}},
        {"job_id": "job_1"},
        {"id": "job_1"},
    ],
)
def test_the_job_id_is_found_in_each_of_its_places(body: object) -> None:
    assert decide_submit(answer(202, body), True, NOW).job_id == "job_1"


def test_only_an_acceptance_brings_a_job_id() -> None:
    assert decide_submit(answer(300, accepted()), True, NOW).job_id is None


def test_data_job_id_goes_before_all_others() -> None:
    body = {"data": {"job": {"id": "job_1"}, "request_id": "job_2"}, "job_id": "job_3"}
    assert decide_submit(answer(202, body), True, NOW).job_id == "job_1"


def test_a_request_id_at_the_root_is_never_a_job_id() -> None:
    body = {"request_id": "req_1", "data": {}}
    assert line_of(answer(202, body)) == outcomes.NO_JOB_ID


@pytest.mark.parametrize(
    "given",
    [
        answer(202, {"data": {}}),
        answer(202, accepted(None)),
        answer(202, accepted("")),
        answer(202, accepted("a job")),
        answer(202, accepted(17)),
        answer(202, accepted("x" * 201)),
        answer(202, b""),
        answer(204, b""),
        answer(202, b"<html>"),
        answer(202, b"[]"),
        answer(202, b"\xff"),
        answer(202, accepted(), complete=False),
        answer(202, json.dumps(accepted()).encode()[:-9]),
    ],
)
def test_2xx_without_a_job_id_is_sent_again_under_the_same_key(given: Answer) -> None:
    expected = Line("requeue", give_back_attempt=False, unknown=True, ambiguous=True, stop=None)
    assert line_of(given) == expected
    assert decide_submit(given, True, NOW).job_id is None


def test_a_replay_on_the_first_send_ever_is_a_collision() -> None:
    hit = answer(202, accepted(idempotency_hit=True))
    assert line_of(hit, first_send=True) == Line("collision", code="idempotency_key_collision")
    assert decide_submit(hit, True, NOW).error_code == "idempotency_key_collision"
    assert line_of(hit, first_send=False) == Line("accepted")


@pytest.mark.parametrize(
    ("mark", "is_hit"),
    [(True, True), ("true", True), (False, False), (None, False), (1, False), ("yes", False)],
)
def test_only_a_clear_mark_is_a_replay(mark: object, is_hit: bool) -> None:
    outcome = decide_submit(answer(202, accepted(idempotency_hit=mark)), False, NOW)
    assert outcome.idempotency_hit is is_hit


def test_a_replay_carries_the_status_of_its_job() -> None:
    error = {"code": "moderation", "retryable": False}
    body = {"data": {"job": {"id": "job_1", "status": "failed", "error": error}}}
    state = decide_submit(answer(202, body), False, NOW).state
    assert state is not None
    assert state.reported is not None
    assert (state.reported.status, state.error_code) == ("failed", "moderation")


@pytest.mark.parametrize(
    ("body", "capacity"),
    [
        ({"data": {"generation_limits": {"queue_capacity_remaining": 42}}}, 42),
        ({"generation_limits": {"queue_capacity_remaining": 0}}, 0),
        ({"data": {"job": {"generation_limits": {"queue_capacity_remaining": -3}}}}, -3),
        ({"data": {"generation_limits": {"queue_capacity_remaining": "42"}}}, None),
        ({"data": {"generation_limits": {"queue_capacity_remaining": 4.5}}}, None),
        ({"data": {"generation_limits": {"queue_capacity_remaining": None}}}, None),
        ({"data": {"generation_limits": [1]}}, None),
        ({"data": {}}, None),
    ],
)
def test_the_capacity_is_a_whole_number_or_unknown(body: object, capacity: int | None) -> None:
    assert decide_submit(answer(202, body), True, NOW).capacity == capacity


# ------------------------------------------------------------------------- submit: no answer


def test_no_answer_after_the_request_left() -> None:
    expected = Line("requeue", give_back_attempt=False, unknown=True, ambiguous=True)
    outcome = decide_submit(NoAnswer(sent=True, reason="ReadTimeout"), True, NOW)
    assert outcome.line == expected
    assert (outcome.error_code, outcome.reason) == ("no_answer", "ReadTimeout")


def test_no_answer_because_the_request_never_left() -> None:
    expected = Line("requeue", give_back_attempt=True, unknown=False, ambiguous=False)
    assert line_of(NoAnswer(sent=False, reason="ConnectionRefusedError")) == expected


def test_a_request_that_can_never_be_sent() -> None:
    outcome = decide_submit(NoAnswer(False, "UnicodeEncodeError", unsendable=True), True, NOW)
    assert outcome.line == Line("fail", code="unsendable_request")
    assert outcome.error_code == "unsendable_request"


# ------------------------------------------------------------------------- submit: refusals

PACED = Line("requeue", give_back_attempt=True, stop="backoff")
ACCOUNT = Line("requeue", give_back_attempt=True, stop="account")
CONFIGURATION = Line("requeue", give_back_attempt=True, stop="account", code="wrong_address")
OUTAGE = Line("requeue", unknown=True, ambiguous=True)
OUTAGE_FINAL = Line("fail", unknown=True, ambiguous=True)
TWIN = Line("requeue", unknown=True)
TRY_AGAIN = Line("requeue")
REFUSED = Line("fail")

TABLE = [
    ("429 queue_full", answer(429, code="queue_full"), PACED),
    ("429 rate_limit_exceeded", answer(429, code="rate_limit_exceeded"), PACED),
    ("429 without a body", answer(429, b""), PACED),
    ("429 not retryable", answer(429, code="queue_full", retryable=False), PACED),
    ("429 for a model", answer(429, code="provider_submission_failed"), PACED),
    ("503", answer(503, b"busy"), PACED),
    ("503 not retryable", answer(503, code="unavailable", retryable=False), PACED),
    ("408", answer(408, b""), OUTAGE),
    ("425", answer(425, b""), OUTAGE),
    ("499", answer(499, b""), OUTAGE),
    ("500", answer(500, b"<html>"), OUTAGE),
    ("500 retryable", answer(500, code="internal", retryable=True), OUTAGE),
    ("502", answer(502, b""), OUTAGE),
    ("504", answer(504, b""), OUTAGE),
    ("520", answer(520, b""), OUTAGE),
    ("100, which is no final answer", answer(100, b""), OUTAGE),
    ("408 not retryable", answer(408, code="timeout", retryable=False), OUTAGE_FINAL),
    ("500 not retryable", answer(500, code="internal", retryable=False), OUTAGE_FINAL),
    ("500 not retryable, in words", answer(500, code="x", retryable="false"), OUTAGE_FINAL),
    ("502 not retryable", answer(502, code="bad_gateway", retryable=False), OUTAGE_FINAL),
    ("504 not retryable", answer(504, code="timeout", retryable=False), OUTAGE_FINAL),
    ("400 invalid_request", answer(400, code="invalid_request"), REFUSED),
    ("400 bad_request", answer(400, code="bad_request"), REFUSED),
    ("400 that calls itself retryable", answer(400, code="bad_request", retryable=True), REFUSED),
    ("400 without a body", answer(400, b""), REFUSED),
    ("413", answer(413, b""), REFUSED),
    ("415", answer(415, b""), REFUSED),
    ("422", answer(422, code="invalid_request"), REFUSED),
    ("provider_submission_failed 400", answer(400, code="provider_submission_failed"), REFUSED),
    ("provider_submission_failed 502", answer(502, code="provider_submission_failed"), REFUSED),
    (
        "provider_submission_failed, not retryable",
        answer(500, code="provider_submission_failed", retryable=False),
        REFUSED,
    ),
    (
        "provider_submission_failed, retryable",
        answer(502, code="provider_submission_failed", retryable=True),
        TRY_AGAIN,
    ),
    (
        "PROVIDER_SUBMISSION_FAILED, retryable",
        answer(422, code="PROVIDER_SUBMISSION_FAILED", retryable=True),
        TRY_AGAIN,
    ),
    ("401", answer(401, code="unauthorized"), ACCOUNT),
    ("401 without a body", answer(401, b""), ACCOUNT),
    ("402", answer(402, code="insufficient_credits"), ACCOUNT),
    ("402 not retryable", answer(402, code="insufficient_credits", retryable=False), ACCOUNT),
    ("403", answer(403, code="forbidden"), ACCOUNT),
    ("301", answer(301, b"", headers={"location": "https://elsewhere/"}), CONFIGURATION),
    ("302", answer(302, b""), CONFIGURATION),
    ("307", answer(307, b""), CONFIGURATION),
    ("308", answer(308, b""), CONFIGURATION),
    ("404", answer(404, code="not_found"), CONFIGURATION),
    ("404 without a body", answer(404, b""), CONFIGURATION),
    ("405", answer(405, b""), CONFIGURATION),
    ("407", answer(407, b""), CONFIGURATION),
    ("404 for a model", answer(404, code="model_not_found"), REFUSED),
    ("404 for a MODEL", answer(404, code="UNKNOWN_MODEL"), REFUSED),
    ("409 idempotency", answer(409, code="idempotency_key_reused"), REFUSED),
    ("409 without a code", answer(409, b""), REFUSED),
    ("409 in progress", answer(409, code="idempotency_request_in_progress"), TWIN),
    ("409 in flight", answer(409, code="REQUEST_IN_FLIGHT"), TWIN),
    ("409 concurrent", answer(409, code="concurrent_request"), TWIN),
    ("406", answer(406, b""), REFUSED),
    ("410", answer(410, b""), REFUSED),
    ("418", answer(418, code="teapot"), REFUSED),
    ("451", answer(451, b""), REFUSED),
]


@pytest.mark.parametrize(
    ("given", "expected"), [pytest.param(g, e, id=name) for name, g, e in TABLE]
)
@pytest.mark.parametrize("first_send", [True, False])
def test_the_submit_table(given: Answer, expected: Line, first_send: bool) -> None:
    outcome = decide_submit(given, first_send, NOW)
    assert outcome.line == expected
    assert outcome.job_id is None
    assert outcome.http_status == given.status


def test_only_polite_refusals_give_the_attempt_back() -> None:
    for status in range(100, 600):
        line = line_of(answer(status, b""))
        assert line.give_back_attempt == (
            status in (429, 503, 401, 402, 403, 404, 405, 407) or 300 <= status < 400
        ), status


def test_nothing_that_stops_the_queue_fails_a_row_or_starts_a_clock() -> None:
    for status in range(100, 600):
        for code in (None, "x", "model", "provider_submission_failed", "in_progress"):
            line = line_of(answer(status, code=code))
            if line.stop:
                assert (line.action, line.unknown, line.ambiguous) == ("requeue", False, False)


def test_a_refusal_that_names_a_job_is_still_a_refusal() -> None:
    assert decide_submit(answer(400, accepted()), True, NOW).job_id is None


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (answer(400, code="invalid_request"), "invalid_request"),
        (answer(400, b"nonsense"), "http_400"),
        (answer(404, code="not_found"), "not_found"),
        (answer(404, b""), "http_404"),
        (answer(500, {"error": "plain text"}), "http_500"),
        (answer(400, {"code": "at_the_root"}), "at_the_root"),
    ],
)
def test_the_error_code_for_the_row(given: Answer, code: str) -> None:
    assert decide_submit(given, True, NOW).error_code == code


def test_retry_after_is_read_against_the_answers_own_date() -> None:
    headers = {
        "date": "Wed, 21 Oct 2015 07:28:00 GMT",
        "retry-after": "Wed, 21 Oct 2015 07:28:40 GMT",
    }
    assert decide_submit(answer(429, b"", headers=headers), True, NOW).retry_after == 40.0
    assert decide_submit(answer(429, b""), True, NOW).retry_after is None


# ------------------------------------------------------------------------- request ids, errors


@pytest.mark.parametrize(
    ("body", "headers", "found"),
    [
        ({"error": {"request_id": "req_a"}, "request_id": "req_b"}, {}, "req_a"),
        ({"request_id": "req_b"}, {"x-sume-request-id": "req_c"}, "req_b"),
        ({}, {"x-sume-request-id": "req_c"}, "req_c"),
        (None, {"x-sume-request-id": "req_c"}, "req_c"),
        ({"request_id": {}}, {}, None),
    ],
)
def test_the_request_id_is_read_from_its_three_places(
    body: object, headers: dict[str, str], found: str | None
) -> None:
    assert decide_submit(answer(500, body, headers=headers), True, NOW).error.request_id == found


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "one"}, "message": "two"}, "one"),
        ({"error": "plain"}, "plain"),
        ({"message": "root"}, "root"),
        ({"detail": "detail"}, "detail"),
        ([], None),
        ("text", None),
    ],
)
def test_the_error_message_of_every_form(body: object, message: str | None) -> None:
    assert decide_submit(answer(400, body), True, NOW).error.message == message


# ------------------------------------------------------------------------- reads


def record(status: object = "processing", job_id: object = "job_1", **extra: Any) -> Any:
    return {"data": {"job": {"id": job_id, "status": status, **extra}}}


READS = [
    ("a record", answer(200, record()), "state", None),
    ("a status view", answer(200, {"data": {"sume_status": "queued"}}), "state", None),
    ("a record at the root", answer(200, {"status": "completed"}), "state", None),
    ("an unknown status word", answer(200, record("thinking")), "state", None),
    ("201", answer(201, record()), "state", None),
    ("another job's record", answer(200, record(job_id="job_2")), "failed", None),
    ("no status", answer(200, record(None)), "failed", None),
    ("no JSON", answer(200, b"<html>"), "failed", None),
    ("cut", answer(200, record(), complete=False), "failed", None),
    ("empty", answer(204, b""), "failed", None),
    ("403, this job's matter", answer(403, b""), "missing", None),
    ("404", answer(404, code="not_found"), "missing", None),
    ("410", answer(410, b""), "missing", None),
    ("401", answer(401, b""), "failed", "account"),
    ("402", answer(402, b""), "failed", "account"),
    ("429", answer(429, b""), "failed", "backoff"),
    ("503", answer(503, b""), "failed", "backoff"),
    ("500", answer(500, b""), "failed", None),
    ("500 with a record", answer(500, record("completed")), "failed", None),
    ("404 with a record", answer(404, record("completed")), "missing", None),
    ("302", answer(302, b""), "failed", None),
    ("300 with a record", answer(300, record("completed")), "failed", None),
    ("409", answer(409, b""), "failed", None),
    ("no answer", NoAnswer(True, "ReadTimeout"), "failed", None),
    ("never sent", NoAnswer(False, "gaierror"), "failed", None),
]


@pytest.mark.parametrize(
    ("given", "action", "stop"), [pytest.param(g, a, s, id=name) for name, g, a, s in READS]
)
def test_the_read_table(given: Answer | NoAnswer, action: str, stop: str | None) -> None:
    outcome = outcomes.decide_read(given, "job_1", NOW)
    assert (outcome.action, outcome.stop) == (action, stop)
    assert (outcome.state is not None) == (action == "state")


def test_an_answer_that_cannot_be_read_is_told_under_its_own_status() -> None:
    assert outcomes.decide_read(answer(204, b""), "job_1", NOW).http_status == 204


RESULT = {"data": {"result": {"artifacts": [{"url": "https://media/1.png"}]}}}
RESULTS = [
    ("a result", answer(200, RESULT), "result", None),
    ("under its id", answer(200, {"job_id": "job_1", **RESULT}), "result", None),
    ("500 with a result", answer(500, RESULT), "failed", None),
    ("an empty list", answer(200, {"data": {"result": {"artifacts": []}}}), "later", None),
    ("no list", answer(200, {"data": {}}), "later", None),
    ("409 job_not_completed", answer(409, code="job_not_completed"), "later", None),
    ("404", answer(404, b""), "later", None),
    ("403", answer(403, b""), "later", None),
    ("another job's result", answer(200, {"data": {"job_id": "job_2"}}), "failed", None),
    ("no JSON", answer(200, b"<html>"), "failed", None),
    ("cut", answer(200, RESULT, complete=False), "failed", None),
    ("500", answer(500, b""), "failed", None),
    ("401", answer(401, b""), "failed", "account"),
    ("429", answer(429, b""), "failed", "backoff"),
    ("no answer", NoAnswer(True, "ReadTimeout"), "failed", None),
]


@pytest.mark.parametrize(
    ("given", "action", "stop"), [pytest.param(g, a, s, id=name) for name, g, a, s in RESULTS]
)
def test_the_result_table(given: Answer | NoAnswer, action: str, stop: str | None) -> None:
    outcome = outcomes.decide_result(given, "job_1", NOW)
    assert (outcome.action, outcome.stop) == (action, stop)
    assert (outcome.result is not None) == (action == "result")


CANCELED = {"data": {"request_id": "job_1", "status": "CANCELED", "canceled": True}}
CANCELS = [
    ("canceled", answer(200, CANCELED), "state", None),
    ("accepted without a status", answer(202, {"data": {}}), "later", None),
    ("409 job_generation_already_started", answer(409, b""), "later", None),
    ("409 job_not_cancelable", answer(409, code="job_not_cancelable"), "later", None),
    ("another job", answer(200, {"data": {"job_id": "job_2"}}), "failed", None),
    ("404", answer(404, b""), "missing", None),
    ("500", answer(500, b""), "failed", None),
    ("500 with a record", answer(500, CANCELED), "failed", None),
    ("401", answer(401, b""), "failed", "account"),
    ("402", answer(402, b""), "failed", "account"),
    ("429", answer(429, b""), "failed", "backoff"),
    ("503", answer(503, b""), "failed", "backoff"),
    ("no answer", NoAnswer(True, "ReadTimeout"), "failed", None),
]


@pytest.mark.parametrize(
    ("given", "action", "stop"), [pytest.param(g, a, s, id=name) for name, g, a, s in CANCELS]
)
def test_the_cancel_table(given: Answer | NoAnswer, action: str, stop: str | None) -> None:
    outcome = outcomes.decide_cancel(given, "job_1", NOW)
    assert (outcome.action, outcome.stop) == (action, stop)


# ------------------------------------------------------------------------- too deep


def deep(levels: int = 3000) -> object:
    value: object = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "decide", [outcomes.decide_read, outcomes.decide_result, outcomes.decide_cancel]
)
def test_an_answer_that_can_be_read_but_not_written_never_raises(
    decide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.12 on the parser takes nesting that the writer does not."""
    artifacts = [{"url": "https://media/1.png"}]
    body = {
        "data": {
            "job": {"id": "job_1", "status": "failed", "error": {"x": deep()}},
            "result": {"artifacts": artifacts, "x": deep()},
        }
    }
    monkeypatch.setattr(answers, "parse_json", lambda raw: body)
    outcome = decide(Answer(200, {}, b"{}"), "job_1", NOW)
    assert outcome.action in ("failed", "later")


def test_a_result_nested_too_deeply_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts = [{"url": "https://media/1.png"}]
    body = {"data": {"result": {"artifacts": artifacts, "x": deep()}}}
    monkeypatch.setattr(answers, "parse_json", lambda raw: body)
    outcome = outcomes.decide_result(Answer(200, {}, b"{}"), "job_1", NOW)
    assert (outcome.action, outcome.result) == ("later", None)
