"""The limit of the day, and the gate that closes on anomalies and waits for a person."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sume_jobs.flows import gates
from sume_jobs.store import gen_jobs, levels, render_jobs
from sume_jobs.store import pace as gate

from tests.database.sessions import (
    MAX_ATTEMPTS,
    WIDE,
    Session,
    a_job,
    accept,
    claim,
    claiming,
    in_background,
    move,
    one_claim,
    put,
    reap,
    refuse,
    wait_for_lock,
)
from tests.support.postgres import Database

Make = Callable[[], Any]
YESTERDAY = "24 hours"


def limited(limit: int, **changes: Any) -> render_jobs.ClaimSettings:
    return claiming(daily_limit=limit, **changes)


def take(store: Any, limit: int, wanted: int = 100) -> list[render_jobs.Claim]:
    return claim(store, wanted, settings=limited(limit))


def sent_today(store: Any) -> int:
    return int(gate.day(store)["sent"])


def due(database: Database) -> None:
    database.execute("update render_jobs set run_after = now() where status = 'pending'")


def midnight(database: Database) -> None:
    """Let the day that is counted end."""
    database.age(YESTERDAY, "render_jobs", "pace_budget")


# ------------------------------------------------------------------------- the limit of the day


def test_no_more_than_the_limit_is_claimed(database: Database, store: Any) -> None:
    database.insert_many(8)
    assert len(take(store, 5, 3)) == 3
    assert len(take(store, 5)) == 2
    result = render_jobs.claim(store, limited(5), 100, True)
    assert result.claims == []
    admission = result.admission
    assert (admission.is_due, admission.is_open, admission.day_is_full) == (True, True, True)
    assert 0 < admission.day_left <= 86400
    assert database.statuses() == {"submitting": 5, "pending": 3}
    assert (sent_today(store), levels.read(store).sent_today) == (5, 5)


def test_without_a_limit_all_are_claimed_and_counted(database: Database, store: Any) -> None:
    database.insert_many(4)
    result = render_jobs.claim(store, claiming(), 100, True)
    assert len(result.claims) == 4
    assert (result.admission.places, result.admission.day_is_full) == (None, False)
    database.insert_many(2)
    assert len(take(store, 5)) == 1, "a limit that comes later finds the day counted"


def test_the_day_ends_at_midnight_utc(database: Database, store: Any) -> None:
    database.insert_many(3)
    take(store, 1)
    assert database.one(
        "select day_ends = (date_trunc('day', now() at time zone 'UTC') + interval '1 day')"
        " at time zone 'UTC' from pace_budget where name = 'writes'"
    )
    midnight(database)
    assert sent_today(store) == 0
    assert len(take(store, 1)) == 1
    assert sent_today(store) == 1


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/Los_Angeles"])
def test_the_day_is_that_of_utc_in_any_session(database: Database, store: Any, zone: str) -> None:
    store.run(f"set timezone = '{zone}'")
    database.insert_many(1)
    take(store, 1)
    assert database.one(
        "select extract(epoch from day_ends)::bigint %% 86400 = 0 from pace_budget where name = %s",
        "writes",
    )


def test_a_change_of_the_limit_works_at_once(database: Database, store: Any) -> None:
    database.insert_many(9)
    assert len(take(store, 3)) == 3
    assert len(take(store, 5)) == 2
    assert take(store, 2) == []
    assert len(take(store, 6)) == 1
    assert len(take(store, 0)) == 3


REFUSALS: dict[str, dict[str, Any]] = {
    "asked to wait": {"give_back_attempt": True},
    "never left": {"give_back_attempt": True, "give_back_send": True},
    "refused for good": {"action": "fail", "error_code": "bad"},
    "somebody else's key": {"action": "collision", "job_id": "job_theirs"},
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refused_send_gives_its_place_back(database: Database, store: Any, kind: str) -> None:
    database.insert_many(3)
    (first,) = take(store, 1)
    refuse(store, first, **{"delay": 3600.0, **REFUSALS[kind]})
    assert sent_today(store) == 0
    assert database.row(first.row_id)["counted_at"] is None
    (second,) = take(store, 1)
    assert second.row_id != first.row_id
    assert take(store, 1) == []


def test_a_canceled_row_gives_its_place_back(database: Database, store: Any) -> None:
    row = database.insert()
    (claimed,) = take(store, 1)
    render_jobs.request_cancel(store, row)
    assert refuse(store, claimed).fate == "canceled"
    assert sent_today(store) == 0


def test_an_unknown_outcome_keeps_its_place_and_is_sent_again_on_a_full_day(
    database: Database, store: Any
) -> None:
    database.insert_many(3)
    (first,) = take(store, 1)
    refuse(store, first, unknown=True)
    due(database)
    assert sent_today(store) == 1
    (again,) = take(store, 1)
    assert (again.row_id, again.key, again.first_send) == (first.row_id, first.key, False)
    refuse(store, again, give_back_attempt=True)
    assert sent_today(store) == 1, "Sume may have it since the first send"
    due(database)
    (last,) = take(store, 1)
    accept(store, last)
    assert sent_today(store) == 1
    assert take(store, 1) == []


def test_what_was_begun_yesterday_takes_no_place_of_today(database: Database, store: Any) -> None:
    database.insert_many(3)
    (first,) = take(store, 1)
    refuse(store, first, unknown=True)
    midnight(database)
    due(database)
    put(database, first.row_id, unknown_since=database.one("select now() - interval '1 hour'"))
    claims = take(store, 1)
    assert len(claims) == 2, "the one of yesterday, and one of today"
    assert sent_today(store) == 1
    old = next(each for each in claims if each.row_id == first.row_id)
    refuse(store, old, "fail", error_code="bad")
    assert sent_today(store) == 1


def test_a_place_of_yesterday_is_not_given_back_today(database: Database, store: Any) -> None:
    database.insert_many(2)
    (first,) = take(store, 1)
    midnight(database)
    take(store, 1)
    refuse(store, first, give_back_attempt=True)
    assert sent_today(store) == 1
    assert database.row(first.row_id)["counted_at"] is None


def test_a_reaped_claim_keeps_its_place_and_a_late_job_finds_it(
    database: Database, store: Any
) -> None:
    database.insert_many(2)
    (first,) = take(store, 1)
    database.age("11 minutes", "render_jobs")
    assert reap(store) == {"pending": 1}
    due(database)
    assert [each.row_id for each in take(store, 1)] == [first.row_id]
    accept(store, first)
    assert (sent_today(store), take(store, 1)) == (1, [])


def test_rows_that_were_reaped_twice_need_no_second_place(database: Database, store: Any) -> None:
    suspect, fresh = database.insert(), database.insert()
    (first,) = take(store, 1)
    assert first.row_id == suspect
    put(database, suspect, reaps=2, status="pending", claim_token=None)
    due(database)
    assert [each.row_id for each in take(store, 1)] == [suspect]
    put(database, fresh, reaps=2)
    assert take(store, 1) == []
    assert [each.row_id for each in take(store, 2)] == [fresh]


def test_a_new_generation_counts_anew(database: Database, store: Any) -> None:
    database.insert()
    (first,) = take(store, 2)
    accept(store, first, "job_1")
    move(store, "job_1", "failed")
    database.execute("update render_jobs set generation = generation + 1")
    assert database.row(first.row_id)["counted_at"] is None
    assert take(store, 1) == []
    assert len(take(store, 2)) == 1
    assert sent_today(store) == 2


def test_rows_that_end_in_the_claim_take_no_place(database: Database, store: Any) -> None:
    worn, fresh = database.insert(), database.insert()
    put(database, worn, attempts=8)
    assert render_jobs.claim(store, limited(1), 1, True).ended == {"attempts_exhausted": 1}
    assert [each.row_id for each in take(store, 1)] == [fresh]


def test_resends_and_new_rows_together_keep_within_the_tokens(
    database: Database, store: Any
) -> None:
    database.insert_many(6)
    for claimed in take(store, 3):
        refuse(store, claimed, unknown=True)
    due(database)
    assert len(claim(store, 4, settings=limited(6))) == 4
    assert len(claim(store, 4, settings=limited(6))) == 2
    assert sent_today(store) == 6


def test_a_day_far_ahead_is_damage(database: Database, store: Any) -> None:
    """A clock that once ran years ahead must not hold the count for years."""
    database.execute(
        "update pace_budget set day_sent = 5, day_ends = now() + interval '3 years'"
        " where name = 'writes'"
    )
    database.insert_many(2)
    assert len(take(store, 1)) == 1
    assert sent_today(store) == 1


def test_a_claim_that_waited_over_midnight_counts_into_the_new_day(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    """Its own clock still says yesterday; the day that the other one began must not be lost."""
    database.insert_many(6)
    take(store, 5, 1)
    one, two = session(), session()
    # The next day has begun in a transaction that is not over yet.
    one.run(
        "update pace_budget set day_ends = day_ends + interval '24 hours', day_sent = 3"
        " where name = 'writes'"
    )
    with in_background(database) as start:
        late = start(take, two, 5)
        wait_for_lock(database)
        one.commit()
        claims = late.result(10)
    two.commit()
    assert len(claims) == 2
    assert sent_today(store) == 5
    refuse(store, claims[0], give_back_attempt=True)
    assert sent_today(store) == 4, "its place is one of the new day"


def test_two_at_once_for_the_last_place(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    database.insert_many(5)
    one, two = session(), session()
    first = take(one, 1)
    with in_background(database) as start:
        second = start(take, two, 1)
        wait_for_lock(database)
        one.commit()
        assert (len(first), second.result(10)) == (1, [])
    two.commit()


def test_a_rolled_back_claim_takes_no_place(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    database.insert_many(2)
    one = session()
    assert len(take(one, 1)) == 1
    one.rollback()
    assert len(take(store, 1)) == 1


def test_many_workers_race_for_the_last_places(database: Database, make_store: Make) -> None:
    """Claims, refusals, lost answers and acceptances overlap: N are accepted, never more."""
    limit, workers = 23, 8
    database.insert_many(60)
    barrier = threading.Barrier(workers)

    def run(store: Any, number: int) -> None:
        store.run("select 1")
        barrier.wait(20)
        idle = 0
        for turn in range(400):
            claims = take(store, limit, 3)
            for index, claimed in enumerate(claims):
                kind = (number + turn + index) % 4
                if kind == 0:
                    refuse(store, claimed, max_attempts=99, give_back_attempt=True)
                elif kind == 1 and claimed.attempts < 3:
                    refuse(store, claimed, max_attempts=99, unknown=True)
                elif kind == 2 and claimed.first_send and claimed.attempts < 2:
                    refuse(store, claimed, max_attempts=99)
                else:
                    accept(store, claimed)
            idle = 0 if claims else idle + 1
            if idle > 3:
                return

    with in_background(database) as start:
        for each in [start(run, make_store(), n) for n in range(workers)]:
            each.result(60)
    store = make_store()
    for _ in range(100):
        due(database)
        if not (claims := take(store, limit)):
            break
        for claimed in claims:
            accept(store, claimed)
    assert database.statuses() == {"submitted": limit, "pending": 60 - limit}
    assert sent_today(store) == limit
    held = database.one("select count(*) from render_jobs where counted_at is not null")
    assert held == limit


def test_claims_and_refusals_do_not_lock_each_other_out(
    database: Database, session: Callable[[], Session], store: Any
) -> None:
    """A claim holds the budget and takes rows that are free; a refusal waits for the budget."""
    database.insert_many(4)
    (first,) = take(store, 2, 1)
    claimer, recorder = session(), session()
    take(claimer, 2, 1)
    with in_background(database) as start:
        waiting = start(refuse, recorder, first, give_back_attempt=True)
        wait_for_lock(database)
        assert take(claimer, 2) == [], "with the row of the refusal locked"
        claimer.commit()
        assert waiting.result(10).fate == "requeued"
    recorder.commit()
    assert sent_today(store) == 1


# ------------------------------------------------------------------------- the guard


def guard(store: Any, limit: int = 3) -> Any:
    return gate.guard(store, gates.PROOFS, gates.SIGNS, limit, gates.ANOMALY_WINDOW)


def conflict(database: Database, reason: str, count: int = 1) -> None:
    for _ in range(count):
        database.execute(
            "insert into job_conflict (render_job_id, job_id, reason)"
            " select 7, 'job_' || count(*), %s from job_conflict",
            reason,
        )


def waits_for_person(store: Any) -> bool:
    return levels.read(store).waits_for_person


@pytest.mark.parametrize("reason", gates.PROOFS)
def test_a_proof_closes_at_once(database: Database, store: Any, reason: str) -> None:
    assert guard(store) is None
    conflict(database, reason)
    assert guard(store) == {"reason": reason, "row_id": 7, "job_id": "job_0"}
    assert guard(store) is None, "told once"
    writes = gate.state(store)[1]
    assert (writes["reason"], writes["detail"]) == (reason, "row 7, job job_0")
    assert writes["closed_for"] == float("inf")
    assert waits_for_person(store)
    database.insert()
    admission = render_jobs.claim(store, claiming(), 5, True).admission
    assert (admission.is_due, admission.is_open, admission.closed_for) == (
        True,
        False,
        float("inf"),
    )


@pytest.mark.parametrize("reason", gates.SIGNS)
def test_signs_close_when_they_add_up(database: Database, store: Any, reason: str) -> None:
    conflict(database, reason, 2)
    assert guard(store) is None
    assert not waits_for_person(store)
    conflict(database, reason)
    assert guard(store)["reason"] == reason
    assert guard(store, 1) is None


def test_signs_of_another_hour_and_other_reasons_do_not_count(
    database: Database, store: Any
) -> None:
    conflict(database, "idempotency_key_collision", 2)
    database.age("61 minutes", "job_conflict")
    conflict(database, "idempotency_key_collision", 2)
    conflict(database, "row_is_gone", 5)
    conflict(database, "other_generation", 5)
    assert guard(store) is None


def test_nothing_opens_it_by_itself(database: Database, store: Any) -> None:
    conflict(database, "second_job_for_row")
    guard(store)
    gate.close(store, ["writes", "reads"], 300.0, "account", doubling=True)
    gate.close(store, ["writes"], 30.0, "http_429")
    database.age("10 days")
    assert not gate.reopen(store, "writes")
    database.insert()
    assert claim(store) == []
    assert gate.state(store)[1]["reason"] == "second_job_for_row"


def test_it_closes_over_a_shorter_pause_and_a_probe_that_is_out(
    database: Database, store: Any
) -> None:
    gate.close(store, ["writes"], 30.0, "http_429")
    database.age("31 seconds", "pace_gate")
    database.insert_many(2)
    assert len(claim(store)) == 1
    conflict(database, "second_job_for_row")
    assert guard(store)
    assert not gate.reopen(store, "writes"), "the probe's answer"
    assert claim(store) == []


def test_reads_and_cancels_go_on(database: Database, store: Any) -> None:
    _, job = a_job(database, store)
    conflict(database, "second_job_for_row")
    guard(store)
    assert gate.take(store, "writes", WIDE), "a cancel"
    database.execute("update gen_job set next_poll_at = now()")
    assert [each.job_id for each in gen_jobs.claim_due(store, WIDE, 5, 50.0, 25.0)[1]] == [job]
    assert move(store, job, "completed")


@pytest.mark.parametrize("how", ["now()", "null"])
def test_a_person_opens_it_by_one_update(database: Database, store: Any, how: str) -> None:
    conflict(database, "second_job_for_row")
    guard(store)
    with database.session(autocommit=True) as person:
        person.execute(f"update pace_gate set closed_until = {how} where name = 'writes'")
    assert guard(store) is None, "what led to it is settled"
    assert not waits_for_person(store)
    database.insert_many(2)
    assert len(claim(store)) == (1 if how == "now()" else 2)
    gate.reopen(store, "writes")
    writes = gate.state(store)[1]
    assert (writes["is_closed"], writes["reason"], writes["detail"]) == (False, None, None)
    conflict(database, "second_job_for_row")
    assert guard(store), "the next one counts"


def test_the_command_opens_it_half_way(database: Database, store: Any) -> None:
    conflict(database, "job_without_send")
    guard(store)
    assert gate.open_now(store, ["writes"]) == ["writes"]
    database.insert_many(2)
    assert len(claim(store)) == 1


def test_twenty_at_once_close_and_tell_once(database: Database, make_store: Make) -> None:
    conflict(database, "second_job_for_row")
    barrier = threading.Barrier(20)

    def run(store: Any) -> bool:
        store.run("select 1")
        barrier.wait(20)
        return guard(store) is not None

    with in_background(database) as start:
        told = [each.result(20) for each in [start(run, make_store()) for _ in range(20)]]
    assert told.count(True) == 1


def test_a_job_for_a_row_that_was_not_sent(database: Database, store: Any) -> None:
    row = database.insert()
    claimed = one_claim(store)
    put(database, row, sends=0)
    answer = render_jobs.Accepted(row, claimed.token, claimed.key, "job_1")
    (recorded,) = render_jobs.record(store, [answer], MAX_ATTEMPTS, 5.0)
    assert (recorded.fate, recorded.reason) == ("submitted", "job_without_send")
    assert database.row(row)["sume_job_id"] == "job_1", "a success is a fact all the same"
    (kept,) = database.conflicts()
    assert (kept["render_job_id"], kept["job_id"], kept["reason"]) == (
        row,
        "job_1",
        "job_without_send",
    )
    (again,) = render_jobs.record(store, [answer], MAX_ATTEMPTS, 5.0)
    assert (again.fate, again.reason) == ("already", "already")
    assert guard(store)["job_id"] == "job_1"
