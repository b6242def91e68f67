"""What an operator does by hand: make again, send again, cancel, open a gate."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from sume_jobs.flows import gates
from sume_jobs.store import pace, render_jobs

from tests.database.sessions import (
    Session,
    a_job,
    claim,
    in_background,
    insert_past_triggers,
    move,
    put,
    wait_for_lock,
)
from tests.support.postgres import Database

FLAGS = (False, True)
COLLISION = "idempotency_key_collision"


def ended(database: Database, count: int) -> list[int]:
    """Rows that were canceled before they were sent."""
    rows = database.insert_many(count)
    database.execute("update render_jobs set cancel_requested_at = now()")
    return rows


def test_a_generation_is_started_of_the_row_alone(database: Database, store: Any) -> None:
    first, second, third = ended(database, 3)
    before = {row["id"]: row for row in database.rows()}
    assert render_jobs.start_generation(store, second, 1)
    assert database.row(second)["generation"] == 2
    assert [database.row(row) for row in (first, third)] == [before[first], before[third]]


def test_no_generation_is_started_but_the_one_that_was_seen(database: Database, store: Any) -> None:
    """What was asked for after generation 1 is there already; after 0 and 3 nothing may follow."""
    _, row = ended(database, 2)
    assert render_jobs.start_generation(store, row, 1)
    database.execute("update render_jobs set cancel_requested_at = now()")
    before = database.row(row)
    answers = {seen: render_jobs.start_generation(store, row, seen) for seen in (0, 1, 3)}
    assert answers == {0: False, 1: True, 3: False}
    assert database.row(row) == before


def test_every_row_that_may_be_sent_again(database: Database, store: Any) -> None:
    statuses = ("pending", "submitting", "submitted", "failed", "canceled")
    codes = (None, "attempts_exhausted", COLLISION)
    cases = [
        case
        for case in itertools.product(statuses, FLAGS, FLAGS, codes)
        # The table itself refuses these.
        if case[:2] not in (("pending", True), ("submitted", False))
    ]
    insert_past_triggers(
        database,
        {
            "render_jobs": [
                {
                    "id": number,
                    "prompt": "x",
                    "status": status,
                    "sume_job_id": f"job_{number}" if has_job else None,
                    "unknown_since": "2001-01-01" if is_unknown else None,
                    "error_code": code,
                    "idempotency_key": f"key-{number}",
                    "attempts": 8,
                    "run_after": "2999-01-01",
                }
                for number, (status, has_job, is_unknown, code) in enumerate(cases)
            ]
        },
    )
    before = {row["id"]: row for row in database.rows()}
    for number, (status, has_job, is_unknown, code) in enumerate(cases):
        may = status == "failed" and not has_job and is_unknown and code != COLLISION
        assert render_jobs.send_again(store, number) is may, cases[number]
        row = database.row(number)
        if not may:
            assert row == before[number], cases[number]
            continue
        assert (row["status"], row["attempts"]) == ("pending", 0)
        assert row["idempotency_key"] == f"key-{number}", "billed once, under its own key"
        assert row["unknown_since"] == before[number]["unknown_since"]
        assert row["run_after"] <= database.one("select now()")
    changed = [row["id"] for row in database.rows() if row != before[row["id"]]]
    assert len(changed) == 2


def test_a_row_that_was_sent_again_meanwhile_is_left_to_its_claim(
    database: Database, session: Callable[[], Session]
) -> None:
    """Queued once more beside a claim that holds it, it would be sent by two at once."""
    (row,) = database.insert_many(1)
    put(database, row, status="failed", unknown_since=database.one("select now()"), attempts=8)
    one: Any = session()
    two: Any = session()
    assert render_jobs.send_again(one, row)
    assert [each.row_id for each in claim(one)] == [row]
    with in_background(database) as start:
        late = start(render_jobs.send_again, two, row)
        wait_for_lock(database)
        one.commit()
        assert late.result(10) is False
    two.commit()
    assert database.row(row)["status"] == "submitting"


def test_sending_again_twice_is_told_as_done_and_done_once(database: Database, store: Any) -> None:
    (row,) = database.insert_many(1)
    put(database, row, status="failed", unknown_since=database.one("select now()"), attempts=8)
    assert render_jobs.send_again(store, row)
    before = database.row(row)
    assert render_jobs.send_again(store, row)
    assert database.row(row) == before


def test_a_second_wish_leaves_the_time_of_the_first(database: Database, store: Any) -> None:
    row, other = database.insert_many(2)
    put(database, row, status="submitting", cancel_requested_at="2001-01-01")
    before = database.row(row)
    assert render_jobs.request_cancel(store, row) == "requested"
    assert database.row(row)["cancel_requested_at"] == before["cancel_requested_at"]
    assert database.row(other)["cancel_requested_at"] is None


def test_debts_are_what_was_taken_and_never_negative(database: Database, store: Any) -> None:
    assert pace.debts(store) == {"reads": 0.0, "writes": 0.0}
    database.execute(
        "update pace_budget set spent_until = now() + interval '1 hour' where name = 'writes'"
    )
    debts = pace.debts(store)
    assert debts["reads"] == 0.0
    assert 3500 < debts["writes"] <= 3600


def test_only_the_named_gates_are_opened_and_only_where_they_are_closed(
    database: Database, store: Any
) -> None:
    pace.close(store, ["reads", "writes"], 300.0, "why")
    assert pace.open_now(store, ["reads"]) == ["reads"]
    left = {row["name"]: row["closed_for"] for row in pace.state(store)}
    assert left["reads"] <= 0 < left["writes"]
    database.execute("update pace_gate set closed_until = null, changed_at = '2001-01-01'")
    assert pace.open_now(store, ["reads", "writes"]) == []
    assert database.one("select count(*) from pace_gate where changed_at = '2001-01-01'") == 2


def moves(store: Any, row: int) -> list[tuple[str, str]]:
    """By whom, and to which status, the row was moved."""
    found = store.run(
        "select by, to_status from job_history"
        " where render_job_id = %s and machine = 'submission' order by id",
        (row,),
    )
    return [(each["by"], each["to_status"]) for each in found]


def test_the_history_tells_who_started_a_generation(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    """Told once, by the statement that knows or by the trigger, also within one transaction."""
    (other,) = ended(database, 1)
    failed, job = a_job(database, store)
    move(store, job, "failed", {"code": "c", "retryable": True})
    first, second = moves(store, failed), moves(store, other)
    one: Any = session()
    assert render_jobs.regenerate(one, [(job, failed)], 5) == [failed]
    assert render_jobs.start_generation(one, other, 1)
    assert {each.row_id for each in claim(one)} == {failed, other}
    made = [("reap", "pending"), ("submit", "submitting")]
    assert moves(one, failed) == [*first, *made]
    assert moves(one, other) == [*second, ("operator", "pending"), ("submit", "submitting")]
    one.commit()
    database.execute("update render_jobs set status = 'failed', claim_token = null")
    before = moves(store, failed)
    assert render_jobs.start_generation(store, failed, 2)
    assert moves(store, failed) == [*before, ("operator", "pending")], "after one by reap"
    assert render_jobs.request_cancel(one, failed) == "canceled"
    assert render_jobs.start_generation(one, failed, 3)
    assert moves(one, failed)[-2:] == [("cancel", "canceled"), ("operator", "pending")]


# ------------------------------------------------------------------------- the guard


def conflicts(database: Database, reasons: list[str]) -> None:
    """Insert them, the first the oldest, a minute apart; each job is named after its place."""
    for number, reason in enumerate(reasons):
        database.execute(
            "insert into job_conflict (render_job_id, job_id, reason, seen_at)"
            " values (%s, %s, %s, now() - make_interval(mins => %s))",
            number,
            f"job_{number}",
            reason,
            len(reasons) - number,
        )


PROOF, SIGN = gates.PROOFS[0], gates.SIGNS[0]


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        ([PROOF, SIGN], 0),
        ([SIGN, PROOF, PROOF], 2),
        ([SIGN, SIGN, SIGN], 2),
        ([SIGN, PROOF, SIGN, SIGN], 1),
        # No more is read than closes it: an hour may have seen a great many.
        ([PROOF, SIGN, SIGN, SIGN, SIGN], 4),
    ],
)
def test_the_guard_tells_the_worst_and_newest_of_what_closes_it(
    database: Database, store: Any, reasons: list[str], told: int
) -> None:
    conflicts(database, reasons)
    found = pace.guard(store, gates.PROOFS, gates.SIGNS, 3, gates.ANOMALY_WINDOW)
    assert found == {"reason": reasons[told], "row_id": told, "job_id": f"job_{told}"}


def test_a_guard_that_waited_for_another_one_tells_nothing(
    database: Database, session: Callable[[], Session]
) -> None:
    conflicts(database, [PROOF])
    one: Any = session()
    two: Any = session()

    def guard(store: Any) -> Any:
        return pace.guard(store, gates.PROOFS, gates.SIGNS, 3, gates.ANOMALY_WINDOW)

    assert guard(one)
    with in_background(database) as start:
        late = start(guard, two)
        wait_for_lock(database)
        one.commit()
        assert late.result(10) is None
    two.commit()


@pytest.mark.parametrize(
    ("how", "is_told"), [("now()", True), ("now() + interval '1 hour'", True), ("null", False)]
)
def test_a_gate_that_is_not_open_yet_still_tells_why(
    database: Database, store: Any, how: str, is_told: bool
) -> None:
    conflicts(database, [PROOF])
    assert pace.guard(store, gates.PROOFS, gates.SIGNS, 3, gates.ANOMALY_WINDOW)
    database.execute("update pace_gate set closures = 2 where name = 'writes'")
    database.execute(f"update pace_gate set closed_until = {how} where name = 'writes'")
    writes = pace.state(store)[1]
    assert (writes["reason"], writes["closures"]) == ((PROOF, 2) if is_told else (None, 0))
    assert writes["detail"] is None, "what led to it is settled"


def test_writing_a_closed_gate_back_settles_nothing(database: Database, store: Any) -> None:
    conflicts(database, [PROOF])
    assert pace.guard(store, gates.PROOFS, gates.SIGNS, 3, gates.ANOMALY_WINDOW)
    gate = "select to_jsonb(g) as gate from pace_gate g where name = 'writes'"
    before = database.one(gate)
    assert before["detail"]
    database.execute("update pace_gate set closed_until = closed_until, reason = reason")
    assert database.one(gate) == before


def test_a_pause_that_ends_by_itself_settles_no_signs(database: Database, store: Any) -> None:
    conflicts(database, [SIGN, SIGN])
    pace.close(store, ["writes"], 30.0, "http_429")
    database.execute("update pace_gate set closed_until = now() where name = 'writes'")
    assert pace.reopen(store, "writes")
    assert pace.guard(store, gates.PROOFS, gates.SIGNS, 3, gates.ANOMALY_WINDOW) is None
    database.execute("insert into job_conflict (job_id, reason) values ('job_late', %s)", SIGN)
    assert pace.guard(store, gates.PROOFS, gates.SIGNS, 3, gates.ANOMALY_WINDOW)
