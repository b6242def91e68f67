"""Instants of Postgres that Python's datetime cannot hold.

Any writer may put `infinity`, or a year before 1 or after 9999, into a row. They are read as the
first or the last instant that datetime knows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9999, 12, 31, tzinfo=UTC)
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


def instant(text: str) -> datetime:
    """Read an instant as Postgres writes it in JSON."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return _FIRST if text.startswith("-") or text.endswith("BC") else _LAST


def since_2000(microseconds: int) -> datetime:
    """Read an instant as Postgres sends it in binary: microseconds since 2000 began in UTC."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _FIRST if microseconds < 0 else _LAST
