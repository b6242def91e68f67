"""The inbox, in every combination of what its statements ask (see `test_every_case.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from sume_jobs.decisions.status import TERMINAL, may_move
from sume_jobs.store import webhook_events
from sume_jobs.store.webhook_events import Event

from tests.database.sessions import Session, in_background, insert_past_triggers
from tests.support.postgres import Database

STATUSES = ("queued", "processing", "completed", "failed", "canceled")
FUTURE = "2999-01-01"


def put_jobs(database: Database, *jobs: dict[str, Any]) -> list[str]:
    names = [f"job_{number:03}" for number in range(len(jobs))]
    rows = [
        {"job_id": name, "idempotency_key": name, **columns}
        for name, columns in zip(names, jobs, strict=True)
    ]
    insert_past_triggers(database, {"gen_job": rows})
    return names


def put_events(database: Database, *events: tuple[str, str, str, str]) -> None:
    """Insert events: id, job, status and outcome, in the order in which they came."""
    rows = [
        {
            "event_id": event,
            "job_id": job,
            "job_status": status,
            "body": "{}",
            "outcome": outcome,
            "received_at": f"2026-01-01 00:00:{number:02}",
        }
        for number, (event, job, status, outcome) in enumerate(events)
    ]
    insert_past_triggers(database, {"webhook_event": rows})


def outcomes(database: Database) -> dict[str, str]:
    return {event["event_id"]: event["outcome"] for event in database.events()}


def test_every_event(database: Database, store: Any) -> None:
    cases = list(itertools.product(STATUSES, (None, *STATUSES), (None, FUTURE)))
    names = put_jobs(
        database, *({"status": was, "next_poll_at": next_look} for was, _, next_look in cases)
    )
    for name, (was, status, next_look) in zip(names, cases, strict=True):
        case = (was, status, next_look)
        wins = status is not None and may_move(was, status)  # type: ignore[arg-type]
        is_contradiction = {was, status} <= TERMINAL and was != status
        received = webhook_events.receive(store, Event(name, "{}", name, status=status))
        outcome = "applied" if wins else "noop" if status else "ignored"
        assert (received.outcome, received.contradicts) == (outcome, is_contradiction), case
        (event,) = database.query("select * from webhook_event where event_id = %s", name)
        assert (event["outcome"], event["applied_at"] is not None) == (outcome, wins), case
        job = database.job(name)
        assert job["status"] == (status if wins else was), case
        if not status:
            assert (job["next_poll_at"] is None) == (next_look is None), case
            assert next_look is None or job["next_poll_at"].year != 2999, case
        for late in (None, "canceled"):
            again = webhook_events.receive(store, Event(name, "{}", name, status=late))
            assert (again.outcome, again.contradicts) == ("duplicate", False), case
        assert database.job(name) == job, case
    assert webhook_events.receive(store, Event("a", "{}")).outcome == "ignored"
    assert webhook_events.receive(store, Event("b", "{}", status="failed")).outcome == "ignored"
    held = webhook_events.receive(store, Event("c", "{}", "job_of_nobody", status="failed"))
    assert (held.outcome, held.contradicts) == ("held", False)


@pytest.mark.parametrize("apply", ["held", "all held"])
def test_events_held_for_several_jobs(database: Database, store: Any, apply: str) -> None:
    names = put_jobs(
        database, *({"status": was} for was in ("queued", "processing", "completed", "queued"))
    )
    one, two, ended, idle = names
    put_events(
        database,
        ("1a", one, "processing", "held"),
        ("1b", one, "failed", "held"),
        ("1c", one, "completed", "held"),
        ("1d", one, "canceled", "ignored"),
        ("2a", two, "processing", "held"),
        ("2b", two, "canceled", "held"),
        ("3a", ended, "failed", "held"),
        ("4a", idle, "completed", "ignored"),
        ("5a", "job_of_nobody", "completed", "held"),
    )
    if apply == "held":
        moved = webhook_events.apply_held(store, [*names, "job_of_nobody"])
    else:
        moved = webhook_events.apply_all_held(store)
    assert sorted(moved) == [one, two]
    assert outcomes(database) == {
        "1a": "noop", "1b": "applied", "1c": "noop", "1d": "ignored", "2a": "noop", "2b": "applied",
        "3a": "noop", "4a": "ignored", "5a": "held",
    }  # fmt: skip
    assert [job["status"] for job in database.jobs()] == [
        "failed", "canceled", "completed", "queued",
    ]  # fmt: skip
    left = database.one("select applied_at is not null from webhook_event where event_id = '3a'")
    assert left


def test_only_the_jobs_that_are_asked_for(database: Database, store: Any) -> None:
    one, two = put_jobs(database, {}, {})
    put_events(database, ("1", one, "completed", "held"), ("2", two, "completed", "held"))
    assert webhook_events.apply_held(store, [two]) == [two]
    assert outcomes(database) == {"1": "held", "2": "applied"}


def test_jobs_for_which_nothing_is_held_are_not_waited_for(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    held, idle = put_jobs(database, {}, {})
    put_events(database, ("1", held, "completed", "held"), ("2", idle, "processing", "applied"))
    holder = session()
    holder.run("select from gen_job where job_id = %s for update", (idle,))
    with in_background(database) as start:
        assert start(webhook_events.apply_held, store, [held, idle]).result(10) == [held]
    put_events(database, ("3", held, "canceled", "held"))
    with in_background(database) as start:
        assert start(webhook_events.apply_all_held, store).result(10) == []
    assert outcomes(database)["3"] == "noop"


def test_held_events_are_applied_in_batches(
    database: Database, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch counts the jobs for which something is held, and no others."""
    monkeypatch.setattr(webhook_events, "HELD_BATCH", 2)
    names = put_jobs(database, *[{}] * 9)
    put_events(
        database,
        *((f"old {name}", name, "processing", "applied") for name in names[:4]),
        *((name, name, "completed", "held") for name in names[6:]),
    )
    assert len(webhook_events.apply_all_held(store)) == 2
    assert len(webhook_events.apply_all_held(store)) == 1


@pytest.mark.parametrize("held", [True, False])
def test_old_events_go_in_batches_and_past_what_somebody_holds(
    database: Database,
    store: Any,
    session: Callable[[], Session],
    monkeypatch: pytest.MonkeyPatch,
    held: bool,
) -> None:
    monkeypatch.setattr(webhook_events, "PURGE_BATCH", 2)
    put_events(
        database,
        *(
            (f"{outcome} {number}", "job", "completed", outcome)
            for outcome in ("held", "noop")
            for number in range(4)
        ),
    )
    webhook_events.receive(store, Event("young, held", "{}", "job_of_nobody", status="failed"))
    webhook_events.receive(store, Event("young", "{}"))
    purge = webhook_events.purge_held if held else webhook_events.purge_old
    word, other = ("held", "noop") if held else ("noop", "held")
    holder = session()
    holder.run("select from webhook_event where event_id = %s for update", (f"{word} 0",))
    with in_background(database) as start:
        assert [start(purge, store, 7).result(10) for _ in range(3)] == [2, 1, 0]
    left = {f"{word} 0", *(f"{other} {number}" for number in range(4)), "young", "young, held"}
    assert outcomes(database).keys() == left
