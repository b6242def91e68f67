"""The smaller statements of jobs, in every combination of what they ask.

As in `test_every_case.py`: each case is a row of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from sume_jobs.store import gen_jobs

from tests.database.sessions import (
    WIDE,
    Session,
    in_background,
    insert_past_triggers,
    wait_for_lock,
)
from tests.support.postgres import Database

STATUSES = ("queued", "processing", "completed", "failed", "canceled")
FLAGS = (False, True)
PAST, FUTURE = "2001-01-01", "2999-01-01"
TIMES = (None, PAST, FUTURE)
ERROR = '{"code": "c"}'


def put(database: Database, jobs: list[dict[str, Any]]) -> list[str]:
    """Insert jobs with these columns; their ids, which sort as they come."""
    names = [f"job_{number:03}" for number in range(len(jobs))]
    rows = [
        {"job_id": name, "idempotency_key": name, **columns}
        for name, columns in zip(names, jobs, strict=True)
    ]
    insert_past_triggers(database, {"gen_job": rows})
    return names


def times(database: Database, column: str) -> dict[str, str | None]:
    """For each job: None, past, now or future."""
    return {
        row["job_id"]: row["time"]
        for row in database.query(
            f"""select job_id, case when {column} < now() - interval '1 year' then 'past'
                                    when {column} > now() + interval '1 year' then 'future'
                                    when {column} <= now() then 'now'
                                    when {column} > now() then 'soon' end as time from gen_job"""
        )
    }


def test_failed_jobs_to_judge(database: Database, store: Any) -> None:
    cases = list(itertools.product(FLAGS, (None, ERROR), (None, FUTURE)))
    names = put(
        database,
        [
            {"status": "failed", "regeneration_open": is_open, "error": error, "next_poll_at": due}
            for is_open, error, due in cases
        ],
    )
    wanted = [
        name
        for name, (is_open, error, due) in zip(names, cases, strict=True)
        if is_open and (error or due is None)
    ]
    assert [each[0] for each in gen_jobs.open_regenerations(store, 10)] == wanted
    assert [each[0] for each in gen_jobs.open_regenerations(store, 2)] == wanted[:2]


def test_jobs_to_cancel(database: Database, store: Any) -> None:
    cases = list(itertools.product(STATUSES, TIMES))
    names = put(database, [{"status": status, "cancel_due_at": due} for status, due in cases])
    asked = set(gen_jobs.claim_cancels(store, 100, 30.0))
    after = times(database, "cancel_due_at")
    for name, (status, due) in zip(names, cases, strict=True):
        is_wanted = due == PAST and status in ("queued", "processing")
        assert (name in asked) == is_wanted, (status, due)
        unchanged = "future" if due == FUTURE else None
        assert after[name] == ("soon" if is_wanted else unchanged), (status, due)


def test_a_sweep_takes_as_many_as_it_wants_and_none_that_somebody_holds(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    names = put(database, [{"cancel_due_at": PAST, "next_poll_at": PAST}] * 4)
    holder = session()
    holder.run("select from gen_job where job_id = %s for update", (names[0],))
    assert len(gen_jobs.claim_cancels(store, 2, 30.0)) == 2
    assert len(gen_jobs.claim_cancels(store, 9, 30.0)) == 1
    assert len(gen_jobs.claim_due(store, WIDE, 2, 50.0, 25.0)[1]) == 2
    assert len(gen_jobs.claim_due(store, WIDE, 9, 50.0, 25.0)[1]) == 1


def test_a_cancel_that_was_asked(database: Database, store: Any) -> None:
    cases = list(itertools.product((None, 30.0), (None, PAST), TIMES))
    names = put(
        database,
        [{"cancel_due_at": due, "next_poll_at": next_look} for _, due, next_look in cases],
    )
    for name, (again, _, _) in zip(names, cases, strict=True):
        gen_jobs.cancel_asked(store, name, again)
    dues, looks = times(database, "cancel_due_at"), times(database, "next_poll_at")
    for name, (again, due, next_look) in zip(names, cases, strict=True):
        assert dues[name] == ("soon" if again and due else None), (again, due)
        assert looks[name] == {None: None, PAST: "past", FUTURE: "now"}[next_look]


def test_a_look_that_is_wanted_soon(database: Database, store: Any) -> None:
    names = put(database, [{"next_poll_at": time} for time in TIMES])
    assert [gen_jobs.look_soon(store, name) for name in names] == [False, True, True]
    assert list(times(database, "next_poll_at").values()) == [None, "past", "now"]


def test_what_is_archived(database: Database, store: Any) -> None:
    """The result that is known stands, and takes the places where its artifacts lie now."""
    known = '{"n": 1, "artifacts": [{"url": "a"}, {"url": "b"}]}'
    late = '{"artifacts": [{"url": "c"}]}'
    cases = list(itertools.product(STATUSES, (None, known), (None, "overdue", "result_missing")))
    names = put(
        database,
        [
            {"status": status, "result": result, "attention": mark, "updated_at": PAST}
            for status, result, mark in cases
        ],
    )
    before = {job["job_id"]: job for job in database.jobs()}
    for name, (status, result, mark) in zip(names, cases, strict=True):
        found = gen_jobs.for_archive(store, name)
        assert found is not None
        assert (found.status, found.is_archived) == (status, False)
        assert (found.artifacts is None) == (result is None)
        is_taken = gen_jobs.archived(store, name, ["s3://1"], "s3://m", late)
        assert is_taken == (status == "completed")
        job = database.job(name)
        if not is_taken:
            assert job == before[name]
            continue
        assert job["attention"] == ("overdue" if mark == "overdue" else None)
        first = {"url": "a" if result else "c", "location": "s3://1"}
        rest = [{"url": "b"}] if result else []
        assert job["result"]["artifacts"] == [first, *rest]
        assert job["result"]["archive"] == {"manifest": "s3://m"}
        assert ("n" in job["result"]) == bool(result)
        assert job["updated_at"].year != 2001
        again = gen_jobs.for_archive(store, name)
        assert again is not None
        assert again.is_archived


def test_a_result_without_artifacts_is_archived(database: Database, store: Any) -> None:
    (name,) = put(database, [{"status": "completed", "result": '{"artifacts": []}'}])
    assert gen_jobs.archived(store, name, [], "s3://m", None)
    assert database.job(name)["result"]["artifacts"] == []


def test_a_result_that_is_being_written_is_the_one_that_is_archived(
    database: Database, session: Callable[[], Session]
) -> None:
    (name,) = put(database, [{"status": "completed"}])
    sweep: Any = session()
    archiver: Any = session()
    sweep.run("""update gen_job set result = '{"artifacts": [{"url": "theirs"}]}'""")
    late = '{"artifacts": [{"url": "mine"}]}'
    with in_background(database) as start:
        waiting = start(gen_jobs.archived, archiver, name, ["s3://1"], "s3://m", late)
        wait_for_lock(database)
        sweep.commit()
        assert waiting.result(10)
    archiver.commit()
    assert database.job(name)["result"]["artifacts"] == [{"url": "theirs", "location": "s3://1"}]


def test_nothing_due_or_a_closed_gate_locks_nothing(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    later, due = put(database, [{"next_poll_at": FUTURE}, {"next_poll_at": None}])
    holder = session()
    holder.run("select from pace_budget for update")
    admission, jobs = gen_jobs.claim_due(store, WIDE, 9, 50.0, 25.0)
    assert (admission.is_due, jobs) == (False, [])
    holder.rollback()
    database.execute("update gen_job set next_poll_at = %s where job_id = %s", PAST, due)
    database.execute("update pace_gate set closed_until = %s where name = 'reads'", FUTURE)
    sweep = session()
    admission, jobs = gen_jobs.claim_due(sweep, WIDE, 9, 50.0, 25.0)
    assert (admission.is_due, jobs) == (True, [])
    with database.session() as other:
        free = other.execute("select job_id from gen_job for update skip locked").fetchall()
    assert {job for (job,) in free} == {later, due}
