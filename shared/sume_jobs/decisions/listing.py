"""Reading what Sume tells about a whole workspace: a page of its jobs, its balance.

The shape of the list is not documented (sume-api 2 and 6): `data.jobs`, `data.items` and a bare
list are taken; what a job does not tell is None. No public source shows the idempotency key or
the time of creation in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sume_jobs.decisions import answers

if TYPE_CHECKING:
    from sume_jobs.decisions.outcomes import Answer
    from sume_jobs.decisions.status import JobStatus

LARGEST_PAGE: Final = 100
_LONGEST_KEY: Final = 255
_LONGEST_CURSOR: Final = 2000


@dataclass(frozen=True, slots=True)
class Listed:
    """A job as Sume lists it; times are seconds since the epoch.

    `status` is None where it is absent or unknown; `key` where the list does not tell it.
    """

    job_id: str
    status: JobStatus | None
    word: str | None = None
    key: str | None = None
    created_at: float | None = None
    updated_at: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the list; `unread` counts its entries without a usable job id."""

    jobs: list[Listed]
    next_cursor: str | None
    unread: int = 0


def page(answer: Answer) -> Page | None:
    """Read a page; None where the answer is none."""
    body = _body(answer)
    data: Any = body.get("data", body) if isinstance(body, dict) else body
    if isinstance(data, dict):
        entries = next((data[key] for key in ("jobs", "items") if key in data), None)
        cursor = data.get("next_cursor") or (body.get("next_cursor") if body is not data else None)
    else:
        entries = data
        cursor = body.get("next_cursor") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        return None
    read = [job for entry in entries if (job := _listed(entry))]
    return Page(read, answers.text(cursor, _LONGEST_CURSOR), len(entries) - len(read))


def single(answer: Answer) -> Listed | None:
    """Read the record of one job in the same way."""
    body = _body(answer)
    data = body.get("data", body) if isinstance(body, dict) else None
    return _listed(data)


def balance(answer: Answer) -> int | None:
    """Read `data.available_balance_usd_micros`, in millionths of a dollar; None if not told."""
    body = _body(answer)
    data = body.get("data") if isinstance(body, dict) else None
    value = data.get("available_balance_usd_micros") if isinstance(data, dict) else None
    try:
        return int(value) if isinstance(value, answers.Number) else None
    except ValueError:
        return None


def _body(answer: Answer) -> Any:
    if not (200 <= answer.status < 300 and answer.complete):
        return None
    try:
        return answers.parse_json(answer.body)
    except answers.NotJson:
        return None


def _listed(entry: object) -> Listed | None:
    try:
        state = answers.job_state({"data": entry})
    except answers.NotJson:
        return None
    if not isinstance(entry, dict) or state.job_id is None:
        return None
    inner = entry.get("job")
    fields = {**(inner if isinstance(inner, dict) else {}), **entry}
    return Listed(
        state.job_id,
        state.reported.status if state.reported else None,
        state.word,
        answers.text(fields.get("idempotency_key"), _LONGEST_KEY),
        _instant(fields.get("created_at")),
        _instant(fields.get("updated_at")),
    )


def _instant(value: object) -> float | None:
    """Read ISO 8601 (in UTC unless it says otherwise) or seconds since the epoch."""
    if not isinstance(value, str):
        return None
    try:
        if isinstance(value, answers.Number):
            return float(value)
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
