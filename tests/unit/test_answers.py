"""Parsing Sume's answers: every place and form, nothing raised, nothing lost to a float."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sume_jobs.decisions import answers
from sume_jobs.decisions.answers import NotJson, Number, clean, parse_json, to_json

from tests.support.examples import examples

everything = st.characters(exclude_categories=())
texts = st.text(everything, max_size=20)
numbers = st.from_regex(r"\A-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?\Z").map(
    Number
)
words = st.sampled_from(
    ["queued", "processing", "completed", "failed", "canceled", "expired", "SUCCEEDED", "thinking"]
)
leaves = st.none() | st.booleans() | numbers | texts | words
keys = texts | st.sampled_from(
    [
        "data", "job", "object", "id", "job_id", "request_id", "status", "sume_status", "error",
        "code", "message", "retryable", "public_reason", "webhook_status", "result", "artifacts",
        "url", "image_url", "generation_limits", "queue_capacity_remaining", "idempotency_hit",
    ]
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=25,
)
READERS = [
    answers.submitted_job_id,
    answers.idempotency_hit,
    answers.queue_capacity,
    lambda value: answers.api_error(value, {}),
    answers.job_state,
    answers.event_state,
    answers.result_json,
    answers.error_is_retryable,
]


@settings(max_examples=examples(150))
@given(values)
def test_readers_never_raise_for_content(value: object) -> None:
    for read in READERS:
        read(value)


@settings(max_examples=examples(100))
@given(st.binary(max_size=200) | texts.map(lambda text: text.encode("utf-8", "replace")))
def test_bytes_are_json_or_not_json(raw: bytes) -> None:
    try:
        value = parse_json(raw)
    except NotJson:
        return
    for read in READERS:
        read(value)


@settings(max_examples=examples(100))
@given(values)
def test_what_is_written_is_json_that_postgres_takes(value: object) -> None:
    written = to_json(value)
    written.encode("utf-8")
    assert "\\u0000" not in written
    json.loads(written)
    assert to_json(parse_json(written.encode())) == written, "read again it stays the same"


@given(numbers)
def test_the_digits_of_a_number_are_kept(number: Number) -> None:
    value = parse_json(f'{{"n": {number}}}'.encode())["n"]
    assert isinstance(value, Number)
    assert value == number
    written = json.loads(to_json(value), parse_int=Decimal, parse_float=Decimal)
    if isinstance(written, str):
        assert written == number  # beyond what jsonb holds: kept as text
    else:
        assert written == Decimal(number)


@pytest.mark.parametrize(
    ("digits", "written"),
    [
        ("0.1000000000000000055511151231257827", None),
        ("12345678901234567890123456789", None),
        ("1e999", None),
        ("1E+5", None),
        ("-0", None),
        ("1e1000", '"1e1000"'),
        ("-1e-99999", '"-1e-99999"'),
        ("9" * 300, None),
        ("9" * 301, '"' + "9" * 301 + '"'),
    ],
)
def test_numbers_beyond_jsonb_become_text(digits: str, written: str | None) -> None:
    assert to_json(parse_json(digits.encode())) == (written or digits)


def test_the_words_that_are_no_numbers_become_text() -> None:
    assert to_json(parse_json(b"[NaN, Infinity, -Infinity]")) == '["NaN", "Infinity", "-Infinity"]'


@given(st.text(everything))
def test_cleaned_text_is_what_postgres_can_hold(text: str) -> None:
    cleaned = clean(text)
    assert "\x00" not in cleaned
    cleaned.encode("utf-8")
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(
    ("dirty", "tidy"),
    [
        ("a\x00b", "ab"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d", "\ufffd"),
        ("x\ude00y", "x\ufffdy"),
        ("\ufeffx", "\ufeffx"),
        ("plain ✓", "plain ✓"),
    ],
)
def test_cleaning(dirty: str, tidy: str) -> None:
    assert clean(dirty) == tidy


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"nul", b"\xef\xbb\xbf{}", b"\xff", "é".encode("latin-1"), b"'x'", b"{,}"]
)
def test_not_json(raw: bytes) -> None:
    with pytest.raises(NotJson):
        parse_json(raw)


def test_nesting_without_end_is_not_json() -> None:
    with pytest.raises(NotJson):
        parse_json(b"[" * 200_000)
    value: object = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(NotJson):
        to_json(value)


def test_the_last_of_two_equal_keys_counts() -> None:
    assert parse_json(b'{"status": "queued", "status": "failed"}') == {"status": "failed"}


# ------------------------------------------------------------------------- states


@pytest.mark.parametrize(
    ("body", "job_id", "status"),
    [
        ({"data": {"job": {"id": "j", "status": "queued"}}}, "j", "queued"),
        ({"data": {"job_id": "j", "status": "FAILED", "sume_status": "queued"}}, "j", "queued"),
        ({"data": {"request_id": "j", "status": "CANCELED"}}, "j", "canceled"),
        ({"data": {"id": "j", "status": "running"}}, "j", "processing"),
        ({"job": {"id": "j", "status": "succeeded"}}, "j", "completed"),
        ({"job_id": "j", "status": "errored"}, "j", "failed"),
        ({"id": "j", "status": "expired"}, "j", "failed"),
        ({"status": "queued"}, None, "queued"),
        ({"request_id": "req_1", "status": "queued"}, None, "queued"),
    ],
)  # fmt: skip
def test_a_record_in_every_nesting(body: object, job_id: str | None, status: str) -> None:
    state = answers.job_state(body)
    assert state.job_id == job_id
    assert state.reported is not None
    assert state.reported.status == status


@pytest.mark.parametrize(
    "event",
    [
        {"data": {"object": {"id": "j", "status": "completed"}}},
        {"data": {"job": {"id": "j", "status": "completed"}}},
        {"data": {"request_id": "j", "status": "completed"}},
        {"data": {"job_id": "j", "status": "COMPLETED"}},
        {"job": {"id": "j", "status": "completed"}},
        {"job_id": "j", "status": "completed"},
        {"request_id": "j", "status": "completed"},
        {"id": "evt_1", "data": {"object": {"id": "j", "sume_status": "completed"}}},
    ],
)
def test_an_event_in_every_nesting(event: object) -> None:
    state = answers.event_state(event)
    assert state.job_id == "j"
    assert state.reported is not None
    assert state.reported.status == "completed"


def test_the_id_of_an_event_is_not_the_id_of_a_job() -> None:
    assert answers.event_state({"id": "evt_1", "status": "completed"}).job_id is None


def test_an_unknown_word_reports_nothing() -> None:
    state = answers.job_state({"data": {"job": {"id": "j", "status": "thinking"}}})
    assert (state.word, state.reported) == ("thinking", None)


@pytest.mark.parametrize(
    ("error", "code", "kept"),
    [
        ({"code": "c", "message": "m"}, "c", '{"code": "c", "message": "m"}'),
        ({"public_reason": "policy"}, "policy", '{"public_reason": "policy"}'),
        ({"code": 17}, None, '{"code": 17}'),
        ("plain", "plain", '"plain"'),
        (["a"], None, '["a"]'),
        ({}, None, None),
        (None, None, None),
        ("", None, None),
    ],
)
def test_an_error_of_every_form_is_kept(error: Any, code: str | None, kept: str | None) -> None:
    body = json.dumps({"data": {"job": {"id": "j", "status": "failed", "error": error}}})
    state = answers.job_state(parse_json(body.encode()))
    if code is None and error == {"code": 17}:
        code = "17"  # a number counts as its digits
    assert (state.error_code, state.error_json) == (code, kept)


def test_expired_keeps_the_bodys_own_error() -> None:
    body = {"data": {"job": {"id": "j", "status": "expired", "error": {"code": "slow"}}}}
    state = answers.job_state(body)
    assert (state.error_code, state.error_json) == ("expired", '{"code": "slow"}')


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        ({"retryable": True}, True),
        ({"is_retryable": True}, True),
        ({"retryability": "retryable"}, True),
        ({"retryability": "RETRYABLE"}, True),
        ({"retryable": "true"}, True),
        ({"retryable": False}, False),
        ({"retryable": False, "is_retryable": True}, False),
        ({"retryability": "not_retryable"}, False),
        ({"retryability": "perhaps"}, False),
        ({"retryable": 1}, False),
        ({}, False),
        (None, False),
        ("retryable", False),
        ([True], False),
    ],
)
def test_only_a_clear_word_means_retryable(error: object, retryable: bool) -> None:
    assert answers.error_is_retryable(error) is retryable


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("job_1", "job_1"),
        (" job_1 ", "job_1"),
        ("x" * 200, "x" * 200),
        ("x" * 201, None),
        ("a/b", None),
        ("a b", None),
        ("é", None),
        ("", None),
        ("a\n", "a"),
        ("a\nb", None),
        (Number("17"), None),
        (17, None),
        (None, None),
        (["job_1"], None),
    ],
)
def test_an_identifier_can_stand_in_a_path(value: object, found: str | None) -> None:
    assert answers.identifier(value) == found


def test_texts_are_cut_and_cleaned() -> None:
    assert answers.text("x" * 5000) == "x" * 2000
    assert answers.text(" \x00 ") is None
    assert answers.text(Number("17")) == "17"
    assert answers.text(True) is None


# ------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("body", "artifacts"),
    [
        ({"data": {"result": {"artifacts": [{"url": "u", "type": "image"}]}}},
         [{"url": "u", "type": "image"}]),
        ({"data": {"artifacts": [{"url": "u", "kind": "image"}]}}, [{"url": "u", "kind": "image"}]),
        ({"data": {"result": {"video_url": "v", "thumbnail_url": "t"}}},
         [{"url": "v", "type": "video"}, {"url": "t", "type": "thumbnail"}]),
        ({"data": {"image_url": "i"}}, [{"url": "i", "type": "image"}]),
        ({"result": {"artifacts": [{"url": "u"}]}}, [{"url": "u"}]),
        ({"data": {"result": {"artifacts": [None, {"url": ""}, {"url": 5}, {"url": "u"}]}}},
         [{"url": "5"}, {"url": "u"}]),
    ],
)  # fmt: skip
def test_a_result_of_every_shape(body: object, artifacts: list[Any]) -> None:
    written = answers.result_json(parse_json(json.dumps(body).encode()))
    assert written is not None
    found = json.loads(written)["artifacts"]
    assert [{**item, "url": str(item["url"])} for item in found] == artifacts


@pytest.mark.parametrize(
    "body",
    [None, [], {}, {"data": {}}, {"data": {"result": {}}}, {"data": {"result": {"artifacts": []}}},
     {"data": {"result": {"artifacts": {}}}}, {"data": {"result": {"artifacts": [{}]}}}],
)  # fmt: skip
def test_no_result(body: object) -> None:
    assert answers.result_json(body) is None
