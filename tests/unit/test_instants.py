"""Instants that datetime cannot hold become its ends."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sume_jobs.decisions.instants import instant

FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2026-11-30T12:00:00.5+00:00", datetime(2026, 11, 30, 12, 0, 0, 500000, UTC)),
        ("2026-11-30T12:00:00+02:00", datetime(2026, 11, 30, 10, tzinfo=UTC)),
        ("infinity", LAST),
        ("20000-01-01T00:00:00+00:00", LAST),
        ("9999-12-31T23:00:00-02:00", LAST),
        ("-infinity", FIRST),
        ("0044-03-15T00:00:00+00:00 BC", FIRST),
    ],
)
def test_an_instant_of_postgres(text: str, read: datetime) -> None:
    assert instant(text) == read
