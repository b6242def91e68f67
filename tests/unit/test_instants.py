"""Instants that datetime cannot hold become its ends."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sume_jobs.decisions.instants import instant, since_2000

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


@pytest.mark.parametrize(
    ("microseconds", "read"),
    [
        (0, datetime(2000, 1, 1, tzinfo=UTC)),
        (1_500_000, datetime(2000, 1, 1, 0, 0, 1, 500_000, UTC)),
        (-1, datetime(1999, 12, 31, 23, 59, 59, 999_999, UTC)),
        (2**63 - 1, LAST),
        (-(2**63), FIRST),
    ],
)
def test_an_instant_of_postgres_in_binary(microseconds: int, read: datetime) -> None:
    assert since_2000(microseconds) == read
