"""Guards of the record, and of new generations, that no other test noticed when they were taken
away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sume_jobs.store import render_jobs
from sume_jobs.store.render_jobs import Claim, Refused

from tests.database.sessions import (
    MAX_ATTEMPTS,
    Session,
    accept,
    claim,
    in_background,
    move,
    one_claim,
    reap,
    wait_for_lock,
)
from tests.support.postgres import Database


def replayed(database: Database, store: Any, count: int = 1) -> list[Claim]:
    """The first claims of rows that have been claimed and sent again meanwhile."""
    database.insert_many(count)
    first = claim(store)
    reap(store, claim_timeout=0)
    database.age("11 seconds")
    assert len(claim(store)) == count
    return first


def record_replays(store: Any, jobs: list[tuple[Claim, str]]) -> list[tuple[str, str | None]]:
    """Record replays that the rows' next claims have caused: fate and reason of each."""
    answers = [
        Refused(each.row_id, each.token, each.key, "collision", job_id=job) for each, job in jobs
    ]
    recorded = render_jobs.record(store, answers, MAX_ATTEMPTS, 5.0)
    by_row = {each.row_id: (each.fate, each.reason) for each in recorded}
    return [by_row[each.row_id] for each, _ in jobs]


def test_a_wish_that_is_being_written_is_waited_for(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    row = database.insert()
    claimed = one_claim(store)
    wisher, writer = session(), session()
    assert render_jobs.request_cancel(wisher, row) == "requested"
    with in_background(database) as start:
        late = start(accept, writer, claimed, "job_1")
        wait_for_lock(database)
        wisher.commit()
        assert late.result(10).fate == "submitted"
    writer.commit()
    assert database.job("job_1")["cancel_due_at"] is not None


def test_an_earlier_generations_job_is_no_new_one_where_its_own_is_gone(
    database: Database, store: Any
) -> None:
    row = database.insert()
    first = one_claim(store)
    accept(store, first, "job_a")
    move(store, "job_a", "failed", {"code": "c", "retryable": True})
    assert render_jobs.regenerate(store, [("job_a", row)], 2) == [row]
    database.execute("delete from gen_job")
    recorded = accept(store, first, "job_b")
    assert (recorded.fate, recorded.reason) == ("conflict", "other_generation")
    assert (database.jobs(), database.row(row)["sume_job_id"]) == ([], None)


def test_a_second_job_is_no_new_one_where_the_first_is_gone(database: Database, store: Any) -> None:
    row = database.insert()
    claimed = one_claim(store)
    accept(store, claimed, "job_a")
    database.execute("delete from gen_job")
    recorded = accept(store, claimed, "job_b")
    assert (recorded.fate, recorded.reason) == ("conflict", "second_job_for_row")
    assert (database.jobs(), database.row(row)["sume_job_id"]) == ([], "job_a")


def test_a_job_whose_key_is_another_jobs_is_kept(database: Database, store: Any) -> None:
    row = database.insert()
    claimed = one_claim(store)
    database.execute("insert into gen_job values ('job_x', %s, %s)", claimed.key, row)
    recorded = accept(store, claimed, "job_y")
    assert (recorded.fate, recorded.reason) == ("conflict", "job_of_another_row")
    assert database.row(row)["error_code"] == "job_id_conflict"


@pytest.mark.parametrize("is_unwanted", [True, False])
def test_a_replays_wish_is_handed_on(database: Database, store: Any, is_unwanted: bool) -> None:
    (first,) = replayed(database, store)
    if is_unwanted:
        render_jobs.request_cancel(store, first.row_id)
    assert record_replays(store, [(first, "job_1")]) == [("submitted", "known")]
    job = database.job("job_1")
    assert (job["cancel_due_at"] is not None) is is_unwanted
    assert (job["cancel_requested_at"] is not None) is is_unwanted


def test_replays_of_several_rows(database: Database, store: Any) -> None:
    one, two, three = replayed(database, store, 3)
    database.execute("insert into gen_job values ('job_x', %s, %s)", three.key, three.row_id)
    assert record_replays(store, [(one, "job_1"), (two, "job_2"), (three, "job_3")]) == [
        ("submitted", "known"),
        ("submitted", "known"),
        ("conflict", "job_of_another_row"),
    ]
    assert [row["sume_job_id"] for row in database.rows()] == ["job_1", "job_2", None]


def test_replays_of_two_rows_with_one_job(database: Database, store: Any) -> None:
    one, two = replayed(database, store, 2)
    assert record_replays(store, [(one, "job_1"), (two, "job_1")]) == [
        ("submitted", "known"),
        ("conflict", "job_of_another_row"),
    ]


def two_failed_jobs(database: Database, store: Any) -> int:
    """A row whose second generation failed as well, with neither job judged."""
    row = database.insert()
    accept(store, one_claim(store), "job_old")
    move(store, "job_old", "failed", {"code": "c", "retryable": True})
    render_jobs.start_generation(store, row, 1)
    accept(store, one_claim(store), "job_new")
    move(store, "job_new", "failed", {"code": "c", "retryable": True})
    return row


def test_an_earlier_generations_job_is_not_made_again(database: Database, store: Any) -> None:
    row = two_failed_jobs(database, store)
    assert render_jobs.regenerate(store, [("job_old", row)], 5) == []
    assert (database.row(row)["generation"], database.row(row)["sume_job_id"]) == (2, "job_new")
    is_open = {job["job_id"]: job["regeneration_open"] for job in database.jobs()}
    assert is_open == {"job_old": False, "job_new": True}, "only the one that was asked about"
    assert render_jobs.regenerate(store, [("job_new", row)], 5) == [row]


def test_a_job_is_not_judged_for_another_row(database: Database, store: Any) -> None:
    row = two_failed_jobs(database, store)
    assert render_jobs.regenerate(store, [("job_new", row + 1)], 5) == []
    assert database.job("job_new")["regeneration_open"]
    assert database.row(row)["generation"] == 2
