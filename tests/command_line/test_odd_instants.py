"""Instants that Python cannot hold, in rows that any writer may make: nothing fails for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.bundle import Bundle
from tests.support.postgres import Database

LOOKS = (
    ("status",),
    ("list",),
    ("list", "--json"),
    ("show", "1"),
    ("show", "2", "--json"),
    ("why", "1"),
    ("export",),
)
ODD = ("infinity", "-infinity", "20000-01-01", "0044-03-15 BC")


@pytest.mark.parametrize("instant", ODD)
def test_a_row_of_an_odd_instant_breaks_nothing(
    instant: str, bundle: Bundle, database: Database, run: Callable[..., Any]
) -> None:
    database.execute("insert into render_jobs (prompt, run_after) values ('a', %s)", instant)
    database.execute("insert into render_jobs (prompt, created_at) values ('b', %s)", instant)

    def look() -> None:
        for arguments in LOOKS:
            ran = run(*arguments)
            assert (ran.status, "refuses" in ran.said) == (0, False), (arguments, ran.said)

    look()
    bundle.R()
    assert math.isfinite(bundle.metric("OldestPendingSeconds"))
    bundle.D()
    is_due = instant.startswith("-") or instant.endswith("BC")
    assert database.statuses() == ({"submitted": 2} if is_due else {"pending": 1, "submitted": 1})
    look()
    assert run("cancel", "1").status == 0
