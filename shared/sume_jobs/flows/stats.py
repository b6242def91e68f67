"""How the whole stands: for the API, the board and the command line, in one shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from sume_jobs.decisions.advice import advise, advise_gate
from sume_jobs.store import job_views, pace

if TYPE_CHECKING:
    from sume_jobs.connection import Database, Row
    from sume_jobs.store.job_views import Figure

_SHOWN: Final = 8


def collect(database: Database, daily_limit: int = 0) -> dict[str, Any]:
    """Tell how many rows are where, how old, how fast, and what stands in the way; as JSON has it.

    Counts say whether they are exact; ages are in seconds, None where nothing waits. `daily_limit`
    is that of the settings, 0 for none.
    """
    figures = job_views.figures(database)
    pulse = job_views.pulse(database)
    return {
        "states": {name: _shown(each) for name, each in figures.states.items()},
        "stages": {name: _shown(each) for name, each in figures.stages.items()},
        "oldest_waiting_seconds": _rounded(pulse.oldest_waiting),
        "oldest_at_sume_seconds": _rounded(pulse.oldest_at_sume),
        "came_a_minute": round(pulse.came_a_minute),
        "ended_a_minute": round(pulse.ended_a_minute),
        "day": _day(pace.day(database), daily_limit),
        "gates": [gate(row) for row in pace.state(database)],
        "working": [_line(row) for row in job_views.newest_moving(database, _SHOWN)],
        "done": [_line(row) for row in job_views.newest_done(database, _SHOWN)],
        "needs_attention": [
            {
                "id": row["id"],
                "reference": row["reference"],
                "since": row["since"].isoformat(),
                "reason": (advice := advise(row)).reason,
                "action": advice.action,
            }
            for row in job_views.newest_in_need(database, _SHOWN)
        ],
    }


def _shown(figure: Figure) -> dict[str, Any]:
    return {"count": figure.count, "is_exact": figure.is_exact}


def _rounded(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(seconds))


def _day(row: Row, limit: int) -> dict[str, Any]:
    """Tell how many jobs this UTC day has begun, of how many it may (None: of any number)."""
    return {
        "sent": row["sent"],
        "limit": limit or None,
        "is_full": 0 < limit <= row["sent"],
        "ends_in_seconds": max(0, round(row["ends_in"])),
    }


def _line(row: Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "reference": row["reference"],
        "status": row["status"],
        "since": row["since"].isoformat(),
    }


def gate(row: Row) -> dict[str, Any]:
    """Describe a gate as `store.pace.state` gives it; without a time where it stays closed."""
    closed_for = row["closed_for"]
    state = "half_open"
    if not row["is_closed"]:
        state = "open"
    elif closed_for > 0:
        state = "closed"
    opens = state == "closed" and math.isfinite(closed_for)
    return {
        "name": row["name"],
        "state": state,
        "reason": row["reason"] if row["is_closed"] else None,
        "detail": row["detail"],
        "advice": advise_gate(row["reason"]) if row["is_closed"] else None,
        "opens_in_seconds": round(closed_for) if opens else None,
    }
