"""Instants of Postgres that Python's datetime cannot hold.

Any writer may put `infinity`, or a year before 1 or after 9999, into a row. They are read as the
first or the last instant that datetime knows.
"""

from __future__ import annotations

from datetime import UTC, datetime


def instant(text: str) -> datetime:
    """Read an instant as Postgres writes it in JSON."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return end_of_time(text)


def end_of_time(text: str) -> datetime:
    """Give the first or the last instant there is, for one that lies beyond it."""
    is_before = text.startswith("-") or text.endswith("BC")
    return datetime(1, 1, 1, tzinfo=UTC) if is_before else datetime(9999, 12, 31, tzinfo=UTC)
