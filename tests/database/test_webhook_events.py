"""The inbox: one statement that stores once and applies, and events that come too early."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sume_jobs.decisions import answers
from sume_jobs.decisions.answers import Number
from sume_jobs.store import gen_jobs, webhook_events
from sume_jobs.store.webhook_events import Event

from tests.database.conftest import store_of
from tests.database.sessions import (
    Session,
    a_job,
    accept,
    claim,
    in_background,
    move,
    one_claim,
    wait_for_lock,
)
from tests.support.examples import examples
from tests.support.postgres import Database

Make = Callable[[], Any]
_ids = itertools.count(1)


def event(job_id: str | None, status: str | None = "completed", **facts: Any) -> Event:
    facts.setdefault("event_id", f"evt_{next(_ids)}")
    return Event(body="{}", job_id=job_id, status=status, **facts)


def receive(store: Any, given: Event) -> str:
    return webhook_events.receive(store, given).outcome


def kinds(database: Database, job_id: str) -> list[str]:
    return [row["kind"] for row in database.follow_ups(job_id)]


@pytest.mark.parametrize("status", ["completed", "failed", "canceled", "processing"])
def test_applied(database: Database, store: Any, status: str) -> None:
    _, job = a_job(database, store)
    given = event(job, status, error_code="c", error='{"code": "c"}', header_event_id="h")
    assert receive(store, given) == "applied"
    (stored,) = database.events()
    assert (stored["outcome"], stored["job_status"]) == ("applied", status)
    assert stored["applied_at"] is not None
    assert stored["header_event_id"] == "h"
    assert database.job(job)["status"] == status
    assert kinds(database, job) == ([] if status == "processing" else [f"job.{status}"])


@pytest.mark.parametrize(
    ("current", "status", "contradicts"),
    [
        ("completed", "completed", False),
        ("completed", "failed", True),
        ("canceled", "completed", True),
        ("processing", "queued", False),
        ("processing", "processing", False),
        ("queued", "queued", False),
    ],
)
def test_noop(database: Database, store: Any, current: str, status: str, contradicts: bool) -> None:
    _, job = a_job(database, store)
    if current != "queued":
        move(store, job, current)
    received = webhook_events.receive(store, event(job, status))
    assert (received.outcome, received.contradicts) == ("noop", contradicts)
    assert database.job(job)["status"] == current


@pytest.mark.parametrize("job_id", [None, "known", "unknown"])
def test_ignored_and_the_job_is_read_again(
    database: Database, store: Any, job_id: str | None
) -> None:
    _, job = a_job(database, store)
    given = event(job if job_id == "known" else job_id, None)
    assert receive(store, given) == "ignored"
    assert len(database.events()) == 1
    due = database.one("select next_poll_at <= now() from gen_job")
    assert due is (job_id == "known")


def test_an_ignored_event_wakes_no_job_that_is_over(database: Database, store: Any) -> None:
    _, job = a_job(database, store)
    move(store, job, "canceled")
    assert receive(store, event(job, None)) == "ignored"
    assert database.job(job)["next_poll_at"] is None


def test_a_duplicate_has_no_effect(database: Database, store: Any) -> None:
    _, job = a_job(database, store)
    first = event(job, "processing")
    assert receive(store, first) == "applied"
    again = event(job, "failed", event_id=first.event_id)
    received = webhook_events.receive(store, again)
    assert (received.outcome, received.contradicts) == ("duplicate", False)
    assert database.job(job)["status"] == "processing"
    assert len(database.events()) == 1


@pytest.mark.parametrize("known", [True, False])
def test_one_event_many_times_at_once(database: Database, make_store: Make, known: bool) -> None:
    job = a_job(database, make_store())[1] if known else "job_early"
    given = event(job)
    barrier = threading.Barrier(10)

    def deliver(store: Any) -> str:
        store.run("select 1")
        barrier.wait(10)
        return receive(store, given)

    with in_background(database) as start:
        outcomes = [each.result(20) for each in [start(deliver, make_store()) for _ in range(10)]]
    assert outcomes.count("duplicate") == 9
    assert outcomes.count("applied" if known else "held") == 1
    assert kinds(database, job) == (["job.completed"] if known else [])


def test_the_same_event_while_the_first_is_open(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    _, job = a_job(database, store)
    given = event(job)
    one, two = session(), session()
    assert receive(one, given) == "applied"
    with in_background(database) as start:
        second = start(receive, two, given)
        wait_for_lock(database)
        one.rollback()  # the first died before its commit
        assert second.result(10) == "applied"
    two.commit()
    assert kinds(database, job) == ["job.completed"]


# ------------------------------------------------------------------------- held


def test_held_and_applied_when_the_job_is_recorded(database: Database, store: Any) -> None:
    database.insert()
    claimed = one_claim(store)
    assert receive(store, event("job_1")) == "held"
    assert webhook_events.apply_held(store, ["job_1"]) == [], "not known yet"
    accept(store, claimed, "job_1")
    assert webhook_events.apply_held(store, ["job_1"]) == ["job_1"]
    assert webhook_events.apply_held(store, ["job_1"]) == []
    assert database.job("job_1")["status"] == "completed"
    assert kinds(database, "job_1") == ["job.completed"]
    assert [each["outcome"] for each in database.events()] == ["applied"]


@pytest.mark.parametrize(
    ("words", "end", "applied"),
    [
        (("processing", "completed"), "completed", 1),
        (("completed", "processing"), "completed", 0),
        (("processing", "failed", "completed"), "failed", 1),
        (("queued", "processing"), "processing", None),
        (("queued",), "queued", None),
        (("canceled", "completed", "failed"), "canceled", 0),
    ],
)
def test_of_several_held_events_the_first_end_counts(
    database: Database, store: Any, words: tuple[str, ...], end: str, applied: int | None
) -> None:
    database.insert()
    claimed = one_claim(store)
    for position, word in enumerate(words):
        receive(store, event("job_1", word, event_id=f"held_{position}"))
        database.age("1 second", "webhook_event")
    accept(store, claimed, "job_1")
    webhook_events.apply_held(store, ["job_1"])
    webhook_events.apply_held(store, ["job_1"])
    assert database.job("job_1")["status"] == end
    outcomes = {each["event_id"]: each["outcome"] for each in database.events()}
    assert "held" not in outcomes.values()
    if applied is not None:
        assert [name for name, word in outcomes.items() if word == "applied"] == [f"held_{applied}"]


def test_poll_applies_what_is_held_for_known_jobs_only(database: Database, store: Any) -> None:
    database.insert_many(2)
    first, second = claim(store)
    for job in ("job_1", "job_2", "job_never"):
        assert receive(store, event(job)) == "held"
    accept(store, first, "job_1")
    accept(store, second, "job_2")
    assert sorted(webhook_events.apply_all_held(store)) == ["job_1", "job_2"]
    assert webhook_events.apply_all_held(store) == []
    assert [e["job_id"] for e in database.events() if e["outcome"] == "held"] == ["job_never"]


def test_neither_side_sees_the_other(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    """Both transactions are open at once: each looks again after its own commit."""
    database.insert()
    claimed = one_claim(store)
    recorder, receiver = session(), session()
    accept(recorder, claimed, "job_1")
    assert receive(receiver, event("job_1")) == "held"
    recorder.commit()
    assert webhook_events.apply_held(recorder, ["job_1"]) == [], "the event is not committed yet"
    recorder.commit()
    assert database.job("job_1")["status"] == "queued"
    receiver.commit()
    assert webhook_events.apply_held(receiver, ["job_1"]) == ["job_1"]
    receiver.commit()
    assert kinds(database, "job_1") == ["job.completed"]


def test_neither_side_sees_the_other_the_event_commits_first(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    database.insert()
    claimed = one_claim(store)
    recorder, receiver = session(), session()
    assert receive(receiver, event("job_1")) == "held"
    accept(recorder, claimed, "job_1")
    receiver.commit()
    assert webhook_events.apply_held(receiver, ["job_1"]) == []
    receiver.commit()
    recorder.commit()
    assert webhook_events.apply_held(recorder, ["job_1"]) == ["job_1"]
    recorder.commit()
    assert kinds(database, "job_1") == ["job.completed"]


def test_both_second_looks_at_once_apply_once(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    database.insert()
    claimed = one_claim(store)
    receive(store, event("job_1"))
    accept(store, claimed, "job_1")
    one, two = session(), session()
    assert webhook_events.apply_held(one, ["job_1"]) == ["job_1"]
    with in_background(database) as start:
        second = start(webhook_events.apply_held, two, ["job_1"])
        wait_for_lock(database)
        one.commit()
        assert second.result(10) == []
    two.commit()
    assert kinds(database, "job_1") == ["job.completed"]


def test_a_held_event_against_a_poll_at_the_same_moment(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    database.insert()
    claimed = one_claim(store)
    receive(store, event("job_1", "failed"))
    accept(store, claimed, "job_1")
    poll, late = session(), session()
    gen_jobs.apply(poll, [gen_jobs.Wish("job_1", "completed")])
    with in_background(database) as start:
        second = start(webhook_events.apply_held, late, ["job_1"])
        wait_for_lock(database)
        poll.commit()
        assert second.result(10) == []
    late.commit()
    assert database.job("job_1")["status"] == "completed"
    assert [each["outcome"] for each in database.events()] == ["noop"]


# ------------------------------------------------------------------------- purge


def test_held_events_go_after_seven_days(database: Database, store: Any) -> None:
    receive(store, event("job_old"))
    database.age("8 days", "webhook_event")
    receive(store, event("job_new"))
    assert webhook_events.purge_held(store, 7) == 1
    assert [each["job_id"] for each in database.events()] == ["job_new"]
    assert webhook_events.purge_held(store, 7) == 0


def test_other_events_go_with_the_retention(database: Database, store: Any) -> None:
    _, job = a_job(database, store)
    receive(store, event(job))
    receive(store, event("job_held"))
    database.age("31 days", "webhook_event")
    receive(store, event(job))
    assert webhook_events.purge_old(store, 30) == 1
    assert len(database.events()) == 2


# ------------------------------------------------------------------------- any content

everything = st.characters(exclude_categories=())
numbers = st.from_regex(r"\A-?(0|[1-9][0-9]{0,300})(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,5})?\Z").map(
    Number
)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(everything, max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(everything, max_size=9), inner)
    ),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def module_store(shared_database: Database) -> Iterator[Any]:
    store = store_of(shared_database)
    yield store
    store.close()


@settings(max_examples=examples(40))
@given(st.lists(values, min_size=1, max_size=5))
def test_jsonb_takes_whatever_was_written(module_store: Any, batch: list[object]) -> None:
    written = [answers.to_json(value) for value in batch]
    rows = module_store.run(
        "select t::jsonb::text as text from unnest(%(texts)s::text[]) t", {"texts": written}
    )
    assert len(rows) == len(batch)


@pytest.mark.parametrize(
    "digits",
    ["1e999", "-1e-999", "9" * 300, "0." + "1" * 298, "1E400", "123456789.000000000100", "-0.0"],
)
def test_numbers_come_back_digit_for_digit(store: Any, digits: str) -> None:
    text = answers.to_json(Number(digits))
    (row,) = store.run("select (%(t)s::jsonb #>> '{}')::numeric as n", {"t": text})
    assert row["n"] == Decimal(digits)
