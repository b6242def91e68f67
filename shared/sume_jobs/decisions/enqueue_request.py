"""The body of `POST /jobs`: what is accepted, and the words for what is not.

docs/openapi.json states the same rules as a JSON schema; a test holds the two together.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sume_jobs.decisions.answers import Number, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_JOBS: Final = 500
LONGEST_PROMPT: Final = 32_000
LARGEST_ID: Final = 2**63 - 1
_MOST_FAULTS: Final = 20
_SET_BY_THE_BUNDLE: Final = ("mode", "model", "prompt", "webhook_url")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_INSTANT: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_LONGEST_NUMBER: Final = 300


class NotJson(ValueError):
    """The body is not a JSON text in UTF-8, or it is nested too deeply to be read."""


class Fault(NamedTuple):
    """One thing that is wrong: where (a JSON pointer into the body) and what to do."""

    pointer: str
    detail: str


class Invalid(ValueError):
    """The body is JSON, but not what is asked for; `faults` say where and why."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(f"{len(faults)} faults")
        self.faults = faults


class NewJob(NamedTuple):
    """A job to enqueue. None stands for the table's default; `params` is JSON text."""

    prompt: str
    model: str | None = None
    params: str | None = None
    priority: int | None = None
    run_after: str | None = None
    reference: str | None = None


def read(raw: bytes) -> tuple[list[NewJob], bool]:
    """Read the body: one object or a list of 1 to 500; tells whether it was a list.

    Raises NotJson, Invalid.
    """
    try:
        parsed = json.loads(
            raw.decode("utf-8"), parse_int=Number, parse_float=Number, parse_constant=_refuse
        )
    except (ValueError, RecursionError):
        raise NotJson from None
    is_list = isinstance(parsed, list)
    items = parsed if is_list else [parsed]
    if not 1 <= len(items) <= MOST_JOBS:
        raise Invalid([Fault("", f"give 1 to {MOST_JOBS} jobs, not {len(items)}")])
    faults: list[Fault] = []
    jobs = []
    for position, item in enumerate(items):
        found = list(_faults(item, f"/{position}" if is_list else ""))
        faults += found
        if len(faults) >= _MOST_FAULTS:
            break
        if not found:
            jobs.append(_job(item))
    if faults:
        raise Invalid(faults[:_MOST_FAULTS])
    return jobs, is_list


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _job(item: dict[str, Any]) -> NewJob:
    given = {name: value for name, value in item.items() if value is not None}
    if "params" in given:
        given["params"] = to_json(given["params"])
    if "run_after" in given:
        # In UTC: Postgres takes only offsets of less than 16 hours.
        given["run_after"] = _instant(given["run_after"]).isoformat()
    if "priority" in given:
        given["priority"] = int(float(given["priority"]))
    return NewJob(**given)


def _faults(item: Any, at: str) -> Iterator[Fault]:
    if not isinstance(item, dict):
        yield Fault(at, "a job is a JSON object with at least a prompt")
        return
    if item.get("prompt") is None:
        yield Fault(f"{at}/prompt", "a prompt is needed")
    for name, value in item.items():
        check = _CHECKS.get(name)
        if check is None:
            known = ", ".join(_CHECKS)
            yield Fault(_pointer(at, name), f"there is no such field; there are {known}")
        elif value is not None and (detail := check(value)):
            yield Fault(f"{at}/{name}", detail)


def _pointer(at: str, name: str) -> str:
    shown = _SURROGATE.sub("?", name[:50])
    return f"{at}/{shown.replace('~', '~0').replace('/', '~1')}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Number)


def _is_storable(text: str) -> bool:
    return "\x00" not in text and not _SURROGATE.search(text)


_UNSTORABLE: Final = "remove the NUL characters and the halves of surrogate pairs"


def _prompt(value: Any) -> str | None:
    if not _is_text(value):
        return "the prompt must be a string"
    if not value.strip():
        return "the prompt is empty"
    if len(value) > LONGEST_PROMPT:
        return f"the prompt has {len(value)} characters, at most {LONGEST_PROMPT} are accepted"
    return None if _is_storable(value) else _UNSTORABLE


def _model(value: Any) -> str | None:
    if _is_text(value) and re.fullmatch(r"[!-~]{1,200}", value):
        return None
    return "name a model as Sume does, for example sume/auto: 1 to 200 printable ASCII characters"


def _params(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "params must be a JSON object"
    if taken := sorted(set(value).intersection(_SET_BY_THE_BUNDLE)):
        return f"params may not hold {', '.join(taken)}: model and prompt are fields of their own"
    todo: list[Any] = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            todo += each.values()
            todo += each
        elif isinstance(each, list):
            todo += each
        elif isinstance(each, Number):
            if len(each) > _LONGEST_NUMBER or not _NUMBER.fullmatch(each):
                return "a number in params is longer or larger than can be kept"
        elif isinstance(each, str) and not _is_storable(each):
            return _UNSTORABLE
    return None


def _priority(value: Any) -> str | None:
    is_whole = isinstance(value, Number) and len(value) < 20 and float(value) in (0, 1, 2, 3)
    return None if is_whole else "priority is 0 (first), 1 (normal), 2 or 3 (last)"


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text.upper()).astimezone(UTC)


def _run_after(value: Any) -> str | None:
    if _is_text(value) and _INSTANT.fullmatch(value):
        try:
            _instant(value)
        except (ValueError, OverflowError):
            pass
        else:
            return None
    return "run_after must be an instant such as 2030-01-31T08:00:00Z (RFC 3339)"


def reference_fault(value: Any) -> str | None:
    """Tell what is wrong with a reference; None where it is good."""
    if not _is_text(value) or not value:
        return "reference must be a string that is not empty"
    # 500 bytes at most, told in characters so that a schema can say it.
    if len(value) > 125 and not (value.isascii() and len(value) <= 500):
        return "reference may have 125 characters, or 500 of ASCII"
    return None if _is_storable(value) else _UNSTORABLE


_CHECKS: Final = {
    "prompt": _prompt,
    "model": _model,
    "params": _params,
    "priority": _priority,
    "run_after": _run_after,
    "reference": reference_fault,
}
