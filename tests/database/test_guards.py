"""Guards that no other test noticed when they were taken away (`tests/reliability/mutants.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sume_jobs.decisions.pacing import Pace
from sume_jobs.store import pace, render_jobs

from tests.database.sessions import (
    Session,
    claim,
    claiming,
    in_background,
    wait_for_lock,
)
from tests.support.postgres import Database

# ------------------------------------------------------------------------- pace

# One token, and the next one after a hundred seconds.
ONE = Pace(rate=0.01, capacity=1.0)


def test_while_a_probe_is_out_nothing_is_locked(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    database.insert_many(2)
    pace.close(store, ["writes"], 30.0, "why")
    database.age("31 seconds", "pace_gate")
    assert len(claim(store)) == 1
    holder = session()
    holder.run("select from pace_budget for update")
    holder.run("select from render_jobs for update")
    result = render_jobs.claim(store, claiming(), 5, True)
    assert (result.claims, result.admission.debt) == ([], None)


def test_the_last_token_is_taken_by_one_of_two(
    database: Database, session: Callable[[], Session]
) -> None:
    one, two = session(), session()
    assert pace.take(one, "writes", ONE)
    with in_background(database) as start:
        second = start(pace.take, two, "writes", ONE)
        wait_for_lock(database)
        one.commit()
        assert second.result(10) is False
    two.commit()


def test_the_last_token_of_a_claim_is_taken_by_one_of_two(
    database: Database, session: Callable[[], Session]
) -> None:
    database.insert_many(2)
    one, two = session(), session()
    settings = claiming(rate=ONE)
    assert len(claim(one, 2, settings=settings)) == 1
    with in_background(database) as start:
        second = start(claim, two, 2, settings=settings)
        wait_for_lock(database)
        one.commit()
        assert second.result(10) == []
    two.commit()


def test_a_token_of_writes_is_none_of_reads(database: Database, store: Any) -> None:
    """Neither does a closed gate of the one hold the other up, nor an empty bucket."""
    assert pace.take(store, "writes", ONE)
    assert not pace.take(store, "writes", ONE)
    assert pace.take(store, "reads", ONE)
    database.age("1 hour", "pace_budget")
    pace.close(store, ["writes"], 30.0, "why")
    assert pace.take(store, "reads", ONE)
    assert not pace.take(store, "writes", ONE)


def test_a_refusal_after_a_stop_waits_as_long_as_it_says(database: Database, store: Any) -> None:
    """Only stops double, and only a stop that stands is no longer than another one."""
    pace.close(store, ["writes"], 300.0, "account", doubling=True)
    database.age("6 minutes", "pace_gate")
    assert pace.close(store, ["writes"], 30.0, "http_429")
    wait = "select extract(epoch from closed_until - now()) from pace_gate where name = 'writes'"
    assert 25 < database.one(wait) <= 30
    # The count of stops is one still: a longer Retry-After of the same wave is kept all the same.
    assert pace.close(store, ["writes"], 600.0, "http_429")
    assert 595 < database.one(wait) <= 600
