"""The shared gates and budgets: who may go, who probes, and who changes what."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sume_jobs.decisions.pacing import pace
from sume_jobs.store import gen_jobs, render_jobs
from sume_jobs.store import pace as gate

from tests.database.sessions import WIDE, Session, claim, claiming, in_background, wait_for_lock
from tests.support.postgres import Database

Make = Callable[[], Any]


def closed_for(database: Database, name: str = "writes") -> float | None:
    value = database.one(
        "select (extract(epoch from closed_until) - extract(epoch from now()))::float8"
        " from pace_gate where name = %s",
        name,
    )
    return None if value is None else float(value)


def gate_row(database: Database, name: str = "writes") -> dict[str, Any]:
    (row,) = database.query("select * from pace_gate where name = %s", name)
    return row


def close(store: Any, seconds: float = 30.0, reason: str = "why", **options: Any) -> bool:
    return gate.close(store, ["writes"], seconds, reason, **options)


def stop(store: Any) -> bool:
    return gate.close(store, ["writes", "reads"], 300.0, "account", doubling=True)


# ------------------------------------------------------------------------- close


def test_close_and_who_is_told(database: Database, store: Any) -> None:
    assert close(store, 30.0, "http_429")
    assert closed_for(database) == pytest.approx(30, abs=5)
    assert closed_for(database, "reads") is None
    row = gate_row(database)
    assert (row["reason"], row["closures"]) == ("http_429", 0)
    database.insert()
    result = render_jobs.claim(store, claiming(), 5, True)
    assert result.claims == []
    admission = result.admission
    assert (admission.is_due, admission.is_open, admission.reason) == (True, False, "http_429")
    assert admission.closed_for == pytest.approx(30, abs=5)
    assert admission.debt is None


def test_a_shorter_wait_of_the_same_wave_changes_nothing(database: Database, store: Any) -> None:
    close(store, 60.0, "first")
    before = gate_row(database)
    assert not close(store, 30.0, "second")
    assert gate_row(database) == before


def test_a_longer_retry_after_is_kept(database: Database, store: Any) -> None:
    close(store, 30.0)
    assert close(store, 600.0, "longer")
    assert closed_for(database) == pytest.approx(600, abs=5)
    assert close(store, 30.0) is False
    assert closed_for(database) == pytest.approx(600, abs=5)


def test_stops_double_from_wave_to_wave_not_inside_one(database: Database, store: Any) -> None:
    for expected in (300, 600, 900, 900):
        assert stop(store)
        assert not stop(store), "the other answers of the same wave"
        assert closed_for(database) == pytest.approx(expected, abs=5)
        assert closed_for(database, "reads") == pytest.approx(expected, abs=5)
        database.age("16 minutes", "pace_gate")
    assert gate_row(database)["closures"] == 4


def test_a_short_refusal_does_not_end_a_stop(database: Database, store: Any) -> None:
    stop(store)
    assert not close(store, 30.0)
    row = gate_row(database)
    assert (row["reason"], row["closures"]) == ("account", 1)


def test_a_stop_after_a_short_refusal_counts_as_the_first(database: Database, store: Any) -> None:
    close(store, 30.0)
    assert stop(store)
    assert closed_for(database) == pytest.approx(300, abs=5)
    assert gate_row(database)["closures"] == 1


def test_an_outage_while_half_open_keeps_the_count_of_stops(database: Database, store: Any) -> None:
    stop(store)
    database.age("6 minutes", "pace_gate")
    assert close(store, 30.0)
    database.age("1 minute", "pace_gate")
    assert stop(store)
    assert closed_for(database) == pytest.approx(600, abs=5)


def test_twenty_stops_at_once_close_once(database: Database, make_store: Make) -> None:
    barrier = threading.Barrier(20)

    def run(store: Any) -> bool:
        store.run("select 1")
        barrier.wait(20)
        return stop(store)

    with in_background(database) as start:
        told = [each.result(20) for each in [start(run, make_store()) for _ in range(20)]]
    assert told.count(True) == 1
    assert gate_row(database)["closures"] == 1


# ------------------------------------------------------------------------- half open


def half_open(database: Database, store: Any) -> None:
    close(store, 30.0)
    database.age("31 seconds", "pace_gate")


def test_half_open_one_row_probes(database: Database, store: Any) -> None:
    half_open(database, store)
    database.insert_many(5)
    result = render_jobs.claim(store, claiming(), 5, True)
    assert len(result.claims) == 1
    assert result.admission.probing
    again = render_jobs.claim(store, claiming(), 5, True)
    assert again.claims == []
    assert not again.admission.is_open


def test_the_probe_is_taken_once_by_two_at_once(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    half_open(database, store)
    database.insert_many(5)
    one, two = session(), session()
    first = claim(one)
    with in_background(database) as start:
        second = start(claim, two)
        wait_for_lock(database)
        one.commit()
        assert (len(first), second.result(10)) == (1, [])
    two.commit()
    assert database.statuses() == {"submitting": 1, "pending": 4}


def test_the_probe_is_taken_once_by_twenty(database: Database, make_store: Make) -> None:
    half_open(database, make_store())
    database.insert_many(30)
    barrier = threading.Barrier(20)

    def run(store: Any) -> int:
        store.run("select 1")
        barrier.wait(20)
        return len(claim(store, 5))

    with in_background(database) as start:
        assert sum(each.result(20) for each in [start(run, make_store()) for _ in range(20)]) == 1


def test_a_dead_probe_frees_its_slot(database: Database, store: Any) -> None:
    half_open(database, store)
    database.insert_many(3)
    assert len(claim(store)) == 1
    assert claim(store) == []
    database.age("26 seconds", "pace_gate")
    assert len(claim(store)) == 1


def test_without_work_no_probe_is_taken(database: Database, store: Any) -> None:
    half_open(database, store)
    assert claim(store) == []
    assert gate_row(database)["probe_until"] is None


def test_poll_probes_at_its_own_gate(database: Database, store: Any) -> None:
    gate.close(store, ["reads"], 30.0, "why")
    database.execute("insert into gen_job (job_id, idempotency_key) values ('a', 'a'), ('b', 'b')")
    database.age("31 seconds", "pace_gate", "gen_job")
    admission, jobs = gen_jobs.claim_due(store, WIDE, 5, 50.0, 25.0)
    assert (admission.probing, len(jobs)) == (True, 1)
    assert gen_jobs.claim_due(store, WIDE, 5, 50.0, 25.0)[1] == []


def test_reopen_only_when_half_open(database: Database, store: Any) -> None:
    assert not gate.reopen(store, "writes"), "open"
    stop(store)
    assert not gate.reopen(store, "writes"), "closed again meanwhile"
    database.age("6 minutes", "pace_gate")
    assert gate.reopen(store, "writes")
    row = gate_row(database)
    assert (row["closed_until"], row["closures"], row["reason"], row["probe_until"]) == (
        None,
        0,
        None,
        None,
    )
    assert closed_for(database, "reads") is not None
    database.insert_many(3)
    assert len(claim(store)) == 3


def test_a_late_probe_does_not_open_what_closed_meanwhile(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    half_open(database, store)
    one, two = session(), session()
    assert close(one, 60.0)
    with in_background(database) as start:
        opened = start(gate.reopen, two, "writes")
        wait_for_lock(database)
        one.commit()
        assert opened.result(10) is False
    two.commit()
    assert closed_for(database) == pytest.approx(60, abs=5)


# ------------------------------------------------------------------------- outage


def test_five_ambiguous_answers_from_different_rows(database: Database, store: Any) -> None:
    assert not gate.note_ambiguous(store, "writes", False, ["1", "2", "3"])
    assert not gate.note_ambiguous(store, "writes", False, ["3", "3", "2", "4"]), "the same rows"
    assert gate.note_ambiguous(store, "writes", False, ["5"])


def test_a_clear_answer_ends_the_row_of_ambiguous_ones(database: Database, store: Any) -> None:
    gate.note_ambiguous(store, "writes", False, ["1", "2", "3", "4"])
    assert not gate.note_ambiguous(store, "writes", True, ["5", "6"])
    assert sorted(gate_row(database)["ambiguous"]) == ["5", "6"]
    assert not gate.note_ambiguous(store, "writes", True, [])
    assert gate_row(database)["ambiguous"] == []


def test_a_stop_of_months_closes_the_gate_as_one_of_days(database: Database, store: Any) -> None:
    for closures in (1023, 1024, 10**6):
        database.execute(
            "update pace_gate set closures = %s, closed_until = now() - interval '1 second'",
            closures,
        )
        assert close(store, 300.0, doubling=True)
        assert closed_for(database) == pytest.approx(900.0, abs=30.0)


def test_ambiguous_answers_add_up_over_all_workers(database: Database, make_store: Make) -> None:
    barrier = threading.Barrier(8)

    def run(store: Any, number: int) -> bool:
        store.run("select 1")
        barrier.wait(20)
        return gate.note_ambiguous(store, "writes", False, [str(number)])

    with in_background(database) as start:
        told = [each.result(20) for each in [start(run, make_store(), n) for n in range(8)]]
    assert told.count(True) == 4, "the fifth and all after it"
    assert len(gate_row(database)["ambiguous"]) == 8


def test_a_closed_gate_notes_nothing_and_closing_forgets(database: Database, store: Any) -> None:
    gate.note_ambiguous(store, "writes", False, ["1", "2", "3", "4"])
    close(store, 30.0)
    assert gate_row(database)["ambiguous"] == []
    assert not gate.note_ambiguous(store, "writes", False, list("56789"))


# ------------------------------------------------------------------------- budget


def spent(database: Database, name: str = "writes") -> float:
    return float(
        database.one(
            "select greatest(0, extract(epoch from spent_until)"
            " - extract(epoch from now()))::float8 from pace_budget where name = %s",
            name,
        )
    )


def test_a_claim_takes_the_tokens_of_what_it_claimed(database: Database, store: Any) -> None:
    database.insert_many(3)
    rate = pace(60)  # a token a second, about; a bucket of one
    result = render_jobs.claim(store, claiming(rate=rate), 5, True)
    assert len(result.claims) == 1
    assert result.admission.tokens == 1
    assert spent(database) == pytest.approx(1.0, abs=0.3)
    again = render_jobs.claim(store, claiming(rate=rate), 5, True)
    assert again.claims == []
    assert again.admission.tokens == 0
    assert again.admission.debt is not None
    assert 0 < again.admission.debt <= 1.1
    assert spent(database, "reads") == 0.0


def test_rows_that_end_in_the_claim_cost_no_token(database: Database, store: Any) -> None:
    database.insert()
    database.execute("update render_jobs set attempts = 8")
    assert render_jobs.claim(store, claiming(rate=pace(60)), 5, True).ended
    assert spent(database) == 0.0


def test_take_one_token(database: Database, store: Any) -> None:
    rate = pace(120)
    assert [gate.take(store, "writes", rate) for _ in range(3)] == [True, True, False]
    database.age("2 seconds", "pace_budget")
    assert gate.take(store, "writes", rate)
    database.age("1 hour", "pace_budget")
    close(store, 30.0)
    assert not gate.take(store, "writes", rate), "the gate is closed"
    database.age("31 seconds", "pace_gate")
    assert not gate.take(store, "writes", rate), "half open is for a probe"


def test_tokens_are_taken_exactly_by_twenty_at_once(database: Database, make_store: Make) -> None:
    rate = pace(500)  # a bucket of ten, eight a second
    barrier = threading.Barrier(20)

    def run(store: Any) -> bool:
        store.run("select 1")
        barrier.wait(20)
        return gate.take(store, "writes", rate)

    before = database.one("select clock_timestamp()")
    with in_background(database) as start:
        taken = [each.result(20) for each in [start(run, make_store()) for _ in range(20)]]
    seconds = (database.one("select clock_timestamp()") - before).total_seconds()
    assert int(rate.capacity) <= taken.count(True) <= rate.capacity + rate.rate * seconds + 1


def test_a_bucket_that_rested_is_full_and_not_fuller(database: Database, store: Any) -> None:
    database.insert_many(50)
    rate = pace(600)  # a bucket of six
    database.age("10 days", "pace_budget")
    assert len(claim(store, 50, settings=claiming(rate=rate))) == 6


def test_the_state_of_both_gates(database: Database, store: Any) -> None:
    stop(store)
    rows = gate.state(store)
    assert [row["name"] for row in rows] == ["reads", "writes"]
    assert all(row["is_closed"] and row["reason"] == "account" for row in rows)
    assert all(290 < row["closed_for"] <= 300 for row in rows)


def test_no_infinite_instant_is_subtracted_from() -> None:
    """PostgreSQL 16, which the template deploys, refuses it; only 17 and later take it."""
    package = Path(gate.__file__).parents[1]
    for file in package.rglob("*.py"):
        found = re.findall(r"(?:spent_until|closed_until)\s*-", file.read_text(encoding="utf-8"))
        assert not found, f"{file.name}: subtract extract(epoch from …) instead"
