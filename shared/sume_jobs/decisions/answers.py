"""Reading what Sume says: JSON kept to the digit, and the facts in it wherever they stand.

Sources disagree about where a fact stands in an answer (sume-api 2.7), so each reader looks in
every place that one of them shows. Readers never raise for content: what is not there is None.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sume_jobs.decisions.status import Reported, parse_status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LONGEST_TEXT: Final = 2000
_LONGEST_ID: Final = 200
_LONGEST_NUMBER: Final = 300
_ID_KEYS: Final = ("request_id", "job_id", "id")


class NotJson(ValueError):
    """The bytes are not a JSON text in UTF-8, or it is nested too deeply to be read."""


class Number(str):
    """A JSON number in its own digits; a binary float would change some of them."""

    __slots__ = ()


def parse_json(raw: bytes) -> Any:
    """Parse a JSON text, keeping numbers as `Number`. The last of two equal keys counts.

    Raises NotJson.
    """
    try:
        return json.loads(
            raw.decode("utf-8"), parse_int=Number, parse_float=Number, parse_constant=str
        )
    except (ValueError, RecursionError) as error:
        raise NotJson(type(error).__name__) from None


def clean(text: str) -> str:
    """Take out what Postgres text cannot hold: NUL and surrogates without a partner."""
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def to_json(value: Any) -> str:
    """Write a parsed value as JSON that jsonb accepts: cleaned text, numbers digit for digit.

    Raises NotJson where the value is nested too deeply.
    """
    try:
        return "".join(_write(value))
    except RecursionError as error:
        raise NotJson("RecursionError") from error


def _write(value: Any) -> Iterator[str]:
    if isinstance(value, Number):
        # jsonb refuses numbers beyond its range: those are kept as text.
        small = len(value) <= _LONGEST_NUMBER and re.fullmatch(
            r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", value, re.ASCII
        )
        yield str(value) if small else json.dumps(str(value))
    elif isinstance(value, str):
        yield json.dumps(clean(value))
    elif isinstance(value, dict):
        yield "{"
        for position, (key, item) in enumerate(value.items()):
            yield f"{', ' if position else ''}{json.dumps(clean(str(key)))}: "
            yield from _write(item)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "["
        for position, item in enumerate(value):
            if position:
                yield ", "
            yield from _write(item)
        yield "]"
    else:
        yield json.dumps(value)


class ApiError(NamedTuple):
    """The error of an HTTP answer: `retryable` is None where Sume does not say."""

    code: str | None = None
    message: str | None = None
    retryable: bool | None = None
    request_id: str | None = None


class JobState(NamedTuple):
    """One reading of a job. `reported` is None where the status is absent or unknown."""

    job_id: str | None
    word: str | None
    reported: Reported | None
    error_code: str | None
    error_json: str | None
    webhook_status: str | None


def text(value: object, longest: int = _LONGEST_TEXT) -> str | None:
    """Take a non-empty text (a number counts), cleaned and cut; None for anything else."""
    if not isinstance(value, str):
        return None
    return clean(value).strip()[:longest] or None


def identifier(value: object) -> str | None:
    """Take a usable job id: 1 to 200 printable ASCII characters without a space or slash."""
    if isinstance(value, str) and not isinstance(value, Number):
        value = value.strip()
        if re.fullmatch(rf"[!-.0-~]{{1,{_LONGEST_ID}}}", value, re.ASCII):
            return value
    return None


def _object(value: object, *path: str) -> dict[str, Any]:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def submitted_job_id(answer: object) -> str | None:
    """Find the job id in the answer to a submit: `data.job.id` first, then its other places."""
    data = _object(answer, "data")
    places = [_object(data, "job").get("id"), *(data.get(key) for key in _ID_KEYS)]
    places += [_object(answer, "job").get("id")]
    # A root request_id is the HTTP request's, never the job's.
    if isinstance(answer, dict):
        places += [answer.get("job_id"), answer.get("id")]
    return next((found for place in places if (found := identifier(place))), None)


def idempotency_hit(answer: object) -> bool:
    """Tell whether Sume says that this key had made its job before."""
    places = (_object(answer, "data"), _object(answer, "data", "job"), _object(answer))
    return any(place.get("idempotency_hit") in (True, "true") for place in places)


def queue_capacity(answer: object) -> int | None:
    """Read `generation_limits.queue_capacity_remaining`; None where it is no whole number."""
    for place in (_object(answer, "data"), _object(answer), _object(answer, "data", "job")):
        value = _object(place, "generation_limits").get("queue_capacity_remaining")
        if isinstance(value, Number) and re.fullmatch(r"-?[0-9]{1,9}", value, re.ASCII):
            return int(value)
    return None


def api_error(answer: object, headers: Mapping[str, str]) -> ApiError:
    """Read an error envelope: `error.{code,message,retryable,request_id}` and its other forms.

    Request ids are looked for in `error.request_id`, at the root, in `x-sume-request-id`.
    """
    error = _object(answer, "error")
    root = answer if isinstance(answer, dict) else {}
    plain = root.get("error")
    message = next(
        (
            found
            for place in (error.get("message"), plain, root.get("message"), root.get("detail"))
            if (found := text(place))
        ),
        None,
    )
    places = (error.get("request_id"), root.get("request_id"), headers.get("x-sume-request-id"))
    return ApiError(
        code=text(error.get("code"), _LONGEST_ID) or text(root.get("code"), _LONGEST_ID),
        message=message,
        retryable=_retryable(error),
        request_id=next((found for place in places if (found := text(place, _LONGEST_ID))), None),
    )


def _retryable(error: Mapping[str, Any]) -> bool | None:
    for key in ("retryable", "is_retryable", "retryability"):
        value = error.get(key)
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            word = value.lower()
            if word in ("retryable", "true"):
                return True
            if word in ("not_retryable", "non_retryable", "false"):
                return False
    return None


def error_is_retryable(error: object) -> bool:
    """Tell whether a job's error says that another try may help; silence means no."""
    return _retryable(_object(error)) is True


def job_state(answer: object) -> JobState:
    """Read a job record or a status view (both nestings, with or without the envelope)."""
    data = _object(answer, "data")
    jobs = [_object(data, "job"), _object(answer, "job")]
    places = [*jobs, data, _object(answer)]
    ids = [place.get(key) for place in jobs for key in ("id", "job_id")]
    ids += [data.get(key) for key in ("job_id", "request_id", "id")]
    if isinstance(answer, dict):
        ids += [answer.get("job_id"), answer.get("id")]
    words = [data.get("sume_status"), *(place.get("status") for place in places)]
    return _state(places, ids, words)


def event_state(event: object) -> JobState:
    """Read the job that a webhook event is about (search order of sume-api 5)."""
    data = _object(event, "data")
    inner = _object(data, "object")
    root = _object(event)
    places = [inner, _object(data, "job"), _object(root, "job"), data, root]
    ids = [
        inner.get("id"),
        _object(data, "job").get("id"),
        data.get("request_id"),
        data.get("job_id"),
        _object(root, "job").get("id"),
        root.get("job_id"),
        root.get("request_id"),
    ]
    words = [place.get(key) for place in places for key in ("sume_status", "status")]
    return _state(places, ids, words)


def _state(places: list[dict[str, Any]], ids: list[object], words: list[object]) -> JobState:
    word = next((found for each in words if (found := text(each, 100))), None)
    reported = parse_status(word)
    error = next((place["error"] for place in places if place.get("error")), None)
    code = None
    if isinstance(error, dict):
        code = text(error.get("code"), _LONGEST_ID) or text(error.get("public_reason"), _LONGEST_ID)
    elif error is not None:
        code = text(error, _LONGEST_ID)
    delivery = next(
        (found for place in places if (found := text(place.get("webhook_status"), 100))), None
    )
    return JobState(
        job_id=next((found for each in ids if (found := identifier(each))), None),
        word=word,
        reported=reported,
        error_code=(reported.error_code if reported else None) or code,
        error_json=to_json(error) if error is not None else None,
        webhook_status=delivery,
    )


def result_json(answer: object) -> str | None:
    """Write a completed job's result with its artifacts under `artifacts`; None if it has none.

    Artifacts are taken from `data.result.artifacts` or `data.artifacts`, else from the
    `*_url` fields of the result; each has a `url`.
    """
    data = _object(answer, "data") or _object(answer)
    result = _object(data, "result") or {
        key: value
        for key, value in data.items()
        if key in ("artifacts", "image_url", "video_url", "thumbnail_url")
    }
    listed = result.get("artifacts") or data.get("artifacts")
    artifacts = [
        item
        for item in (listed if isinstance(listed, list) else [])
        if isinstance(item, dict) and text(item.get("url"), 8000)
    ]
    if not artifacts:
        artifacts = [
            {"url": value, "type": key.removesuffix("_url")}
            for key, value in result.items()
            if key.endswith("_url") and text(value, 8000)
        ]
    return to_json({**result, "artifacts": artifacts}) if artifacts else None
