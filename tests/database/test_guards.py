"""Guards that no other test noticed when they were taken away (`tests/reliability/mutants.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sume_jobs.decisions.pacing import Pace
from sume_jobs.store import pace, render_jobs

from tests.database.sessions import (
    Session,
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


# ------------------------------------------------------------------------- claim


@pytest.mark.parametrize(
    ("columns", "is_due"),
    [
        ({}, True),
        *[({"priority": priority}, True) for priority in range(4)],
        ({"run_after": "2999-01-01"}, False),
        ({"reaps": 1}, True),
        ({"reaps": 2}, True),
        ({"reaps": 3}, True),
        ({"reaps": 2, "run_after": "2999-01-01"}, False),
        *[
            ({"reaps": reaps, "status": status, "sume_job_id": "job"}, False)
            for reaps in (0, 2)
            for status in ("submitting", "submitted", "failed", "canceled")
        ],
    ],
)
def test_what_is_due(database: Database, store: Any, columns: dict[str, Any], is_due: bool) -> None:
    database.insert(**columns)
    result = render_jobs.claim(store, claiming(), 5, True)
    assert result.admission.is_due is is_due
    assert len(result.claims) == is_due


def can_be_locked(database: Database, row: int) -> bool:
    with database.session() as other:
        return bool(
            other.execute(
                "select from render_jobs where id = %s for update skip locked", (row,)
            ).fetchall()
        )


def test_a_claim_locks_no_more_rows_than_it_takes(
    database: Database, session: Callable[[], Session]
) -> None:
    first, second = database.insert_many(2)
    other = database.insert(priority=3)
    claimer = session()
    assert [each.row_id for each in claim(claimer, 1)] == [first]
    assert can_be_locked(database, second)
    assert can_be_locked(database, other)


def test_a_suspect_row_waits_for_its_time_and_for_a_token(database: Database, store: Any) -> None:
    database.insert(reaps=2, run_after="2999-01-01")
    assert claim(store) == []
    due = database.insert(reaps=2)
    assert pace.take(store, "writes", ONE)
    assert claim(store, settings=claiming(rate=ONE)) == []
    database.age("1 hour", "pace_budget")
    assert [each.row_id for each in claim(store, settings=claiming(rate=ONE))] == [due]


def test_a_suspect_row_in_another_hand_is_passed_over(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    row = database.insert(reaps=2)
    holder = session()
    holder.run("select from render_jobs where id = %s for update", (row,))
    with in_background(database) as start:
        assert start(claim, store).result(10) == []


def test_one_suspect_row_at_a_time_is_locked(
    database: Database, session: Callable[[], Session]
) -> None:
    first, second = (database.insert(reaps=2) for _ in range(2))
    claimer = session()
    assert [each.row_id for each in claim(claimer)] == [first]
    assert can_be_locked(database, second)


@pytest.mark.parametrize("action", ["requeue", "fail"])
def test_a_row_that_somebody_ended_meanwhile_stays_ended(
    database: Database, store: Any, action: str
) -> None:
    """By plain SQL, which leaves the token where it is."""
    row = database.insert()
    claimed = one_claim(store)
    put(database, row, status="failed", error_code="ended_by_hand")
    before = database.row(row)
    assert refuse(store, claimed, action, error_code="bad").fate == "lost"
    assert database.row(row) == before


def test_a_key_that_another_row_has_already_is_made_another(database: Database, store: Any) -> None:
    row = database.insert("its key will be taken")
    database.insert("took it", idempotency_key=f"render-job-{row}")
    keys = {each.row_id: each.key for each in claim(store)}
    assert len(set(keys.values())) == 2
    assert keys[row].startswith(f"render-job-{row}-")


def test_a_key_that_was_sent_before_makes_no_first_send(database: Database, store: Any) -> None:
    """However the count of sends came to be what it is."""
    row = database.insert()
    put(database, row, unknown_since=database.one("select now()"), sends=0)
    assert not one_claim(store).first_send


# ------------------------------------------------------------------------- record


def test_a_record_neither_waits_for_another_row_nor_locks_it(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    own, held, free = database.insert_many(3)
    claimed = claim(store, 1)[0]
    holder, writer = session(), session()
    holder.run("select from render_jobs where id = %s for update", (held,))
    with in_background(database) as start:
        assert start(accept, writer, claimed).result(10).fate == "submitted"
    assert claimed.row_id == own
    assert can_be_locked(database, free)


def second_generation(database: Database, store: Any) -> tuple[Any, int]:
    """A row whose first generation failed as job_a; its claim, which may still be answered."""
    row = database.insert()
    first = one_claim(store)
    reap(store, claim_timeout=0)
    database.age("11 seconds")
    accept(store, one_claim(store), "job_a")
    move(store, "job_a", "failed", {"code": "c", "retryable": True})
    assert render_jobs.regenerate(store, [("job_a", row)], 2) == [row]
    return first, row


def test_a_late_collision_of_an_earlier_generation_ends_nothing(
    database: Database, store: Any
) -> None:
    first, row = second_generation(database, store)
    refuse(store, one_claim(store), unknown=True)
    one_claim(store)
    before = database.row(row)
    assert before["sends"] == 2
    assert refuse(store, first, "collision", job_id="job_theirs").fate == "conflict"
    assert [each["reason"] for each in database.conflicts()] == ["idempotency_key_collision"]
    assert database.row(row) == before


def test_the_second_generations_job_under_the_first_ones_key_is_kept(
    database: Database, store: Any
) -> None:
    first, _ = second_generation(database, store)
    accept(store, one_claim(store), "job_b")
    recorded = accept(store, first, "job_b")
    assert (recorded.fate, recorded.reason) == ("conflict", "other_generation")
    assert accept(store, first, "job_a").fate == "already"


def test_the_first_generations_job_that_is_another_rows_is_kept(
    database: Database, store: Any
) -> None:
    first, row = second_generation(database, store)
    database.execute("update gen_job set render_job_id = %s where job_id = 'job_a'", row + 1)
    recorded = accept(store, first, "job_a")
    assert (recorded.fate, recorded.reason) == ("conflict", "other_generation")


def test_a_known_job_that_fits_in_part_only_is_another_rows(database: Database, store: Any) -> None:
    """Known before its row was written: it is the row's only with both its row and its key."""
    for column, value in (("render_job_id", "render_job_id + 1"), ("idempotency_key", "'other'")):
        row = database.insert()
        claimed = one_claim(store)
        database.execute(
            "insert into gen_job (job_id, idempotency_key, render_job_id) values (%s, %s, %s)",
            f"job_{row}",
            claimed.key,
            row,
        )
        database.execute(f"update gen_job set {column} = {value} where job_id = %s", f"job_{row}")
        recorded = accept(store, claimed, f"job_{row}")
        assert (recorded.fate, recorded.reason) == ("conflict", "job_of_another_row")
        assert database.row(row)["error_code"] == "job_id_conflict"


def test_jobs_that_are_known_as_these_rows_are_taken(database: Database, store: Any) -> None:
    database.insert_many(2)
    claims = claim(store)
    answers = []
    for each in claims:
        job = f"job_{each.row_id}"
        database.execute("insert into gen_job values (%s, %s, %s)", job, each.key, each.row_id)
        answers.append(render_jobs.Accepted(each.row_id, each.token, each.key, job))
    recorded = render_jobs.record(store, answers, 8, 5.0)
    assert [each.fate for each in recorded] == ["submitted", "submitted"]
    assert all(row["sume_job_id"] == f"job_{row['id']}" for row in database.rows())
