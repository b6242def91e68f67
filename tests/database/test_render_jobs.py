"""Claim, record, reap, cancel and regenerate: their guards, and races on two connections."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sume_jobs.decisions.pacing import pace
from sume_jobs.store import gen_jobs, render_jobs

from tests.database.sessions import (
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
    submitted,
    wait_for_lock,
)
from tests.support.postgres import Database

Make = Callable[[], Any]

# ------------------------------------------------------------------------- claim


def test_a_claim_freezes_key_and_body_and_counts(database: Database, store: Any) -> None:
    row = database.insert("a red fox", model="sume/fast", params={"quality": "high", "n": 5})
    claimed = one_claim(store)
    assert (claimed.row_id, claimed.key, claimed.attempts) == (row, f"render-job-{row}", 1)
    assert claimed.first_send
    assert not claimed.suspect
    body = {"quality": "high", "n": 5, "model": "sume/fast", "prompt": "a red fox"}
    assert json.loads(claimed.body) == {**body, "mode": "async"}
    stored = database.row(row)
    assert (stored["status"], stored["attempts"], stored["sends"]) == ("submitting", 1, 1)
    assert str(stored["claim_token"]) == claimed.token
    assert (stored["idempotency_key"], stored["request_body"]) == (claimed.key, claimed.body)


def test_a_second_claim_sends_the_same_bytes_whatever_changed(
    database: Database, store: Any
) -> None:
    database.insert()
    first = one_claim(store)
    refuse(store, first, unknown=True)
    settings = claiming(prefix="other", webhook_url="https://elsewhere/hook")
    second = one_claim(store, settings)
    assert (second.key, second.body) == (first.key, first.body)
    assert second.token != first.token
    assert (second.attempts, second.first_send) == (2, False)


def test_with_a_webhook_url_the_body_says_so(database: Database, store: Any) -> None:
    database.insert()
    claimed = one_claim(store, claiming(webhook_url="https://here/hook?a=1&b=\u00e9"))
    body = json.loads(claimed.body)
    assert body["mode"] == "webhook"
    assert body["webhook_url"] == "https://here/hook?a=1&b=\u00e9"


def test_a_key_of_the_enqueuers_own_is_kept(database: Database, store: Any) -> None:
    database.insert(idempotency_key="order 17/a")
    assert one_claim(store).key == "order 17/a"


def test_claims_come_by_priority_then_due_time_then_id(database: Database, store: Any) -> None:
    late = database.insert("late")
    low = database.insert("low", priority=3)
    early = database.insert("early")
    high = database.insert("high", priority=0)
    future = database.insert("future", priority=0)
    database.execute(
        "update render_jobs set run_after = now() - interval '1 h' where id = %s", early
    )
    database.execute(
        "update render_jobs set run_after = now() + interval '1 h' where id = %s", future
    )
    assert [each.row_id for each in claim(store)] == [high, early, late, low]
    assert claim(store) == []


@pytest.mark.parametrize("wanted", [1, 3, 7])
def test_never_more_than_asked_over_all_bands(database: Database, store: Any, wanted: int) -> None:
    for priority in range(4):
        for _ in range(3):
            database.insert(priority=priority)
    assert len(claim(store, wanted)) == wanted
    assert database.statuses()["submitting"] == wanted


def test_two_claims_at_once_never_take_one_row(
    database: Database, session: Callable[[], Session]
) -> None:
    rows = database.insert_many(10)
    one, two = session(), session()
    # Both transactions stay open; the second has to skip what the first has locked. The budget's
    # row is the only thing it may wait for, so it begins after the first has written nothing more.
    first = claim(one, 4)
    with in_background(database) as start:
        second = start(claim, two, 8)
        wait_for_lock(database)
        one.commit()
        taken = second.result(10)
    two.commit()
    ids = [each.row_id for each in first] + [each.row_id for each in taken]
    assert len(first) == 4
    assert sorted(ids) == rows[:10]
    assert database.statuses() == {"submitting": 10}


def test_a_claim_skips_rows_that_somebody_holds(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    rows = database.insert_many(5)
    holder = session()
    holder.run("select from render_jobs where id = any(%s) for update", (rows[:2],))
    assert [each.row_id for each in claim(store)] == rows[2:]


def test_twenty_claimers_at_once_take_every_row_once(database: Database, make_store: Make) -> None:
    rows = database.insert_many(300)
    taken: list[list[int]] = []

    def work(store: Any) -> None:
        while claims := claim(store, 7):
            assert len(claims) <= 7
            taken.append([each.row_id for each in claims])

    with in_background(database) as start:
        for future in [start(work, make_store()) for _ in range(20)]:
            future.result(60)
    assert sorted(row for claims in taken for row in claims) == rows
    assert {row["attempts"] for row in database.rows()} == {1}


def test_the_budget_is_exact_under_twenty_claimers(database: Database, make_store: Make) -> None:
    database.insert_many(300)
    rate = pace(2000)  # a bucket of 40 that is filled with 32 a second
    taken: list[int] = []
    barrier = threading.Barrier(20)

    def work(store: Any) -> None:
        store.run("select 1")
        barrier.wait(30)
        taken.append(len(claim(store, 10, settings=claiming(rate=rate))))

    before = database.one("select clock_timestamp()")
    with in_background(database) as start:
        for future in [start(work, make_store()) for _ in range(20)]:
            future.result(60)
    seconds = (database.one("select clock_timestamp()") - before).total_seconds()
    assert int(rate.capacity) <= sum(taken) <= rate.capacity + rate.rate * seconds
    assert database.statuses()["submitting"] == sum(taken)


def test_nothing_due_locks_and_writes_nothing(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    holder = session()
    holder.run("select from pace_budget for update")
    holder.run("select from pace_gate for update")
    result = render_jobs.claim(store, claiming(), 5, True)
    assert not result.admission.is_due
    assert result.claims == []
    assert database.one("select spent_until = '-infinity' from pace_budget where name = 'writes'")


def test_a_row_reaped_twice_is_claimed_alone_and_last(database: Database, store: Any) -> None:
    suspects = [database.insert("suspect", priority=0) for _ in range(2)]
    for row, reaps in zip(suspects, (3, 2), strict=True):
        put(database, row, reaps=reaps)
    normal = database.insert("normal", priority=3)
    assert [each.row_id for each in claim(store)] == [normal]
    assert claim(store, alone=False) == []
    (only,) = claim(store)
    assert (only.row_id, only.suspect) == (suspects[1], True), "the least suspect first"
    assert [each.row_id for each in claim(store)] == [suspects[0]]


@pytest.mark.parametrize(
    ("columns", "fate", "status"),
    [
        ({"attempts": 8}, "attempts_exhausted", "failed"),
        ({"unknown_since": "2001-01-01"}, "idempotency_window_expired", "failed"),
        ({"cancel_requested_at": "2001-01-01"}, "canceled", "canceled"),
    ],
)
def test_a_row_that_may_not_be_sent_ends_in_the_claim(
    database: Database, store: Any, columns: dict[str, Any], fate: str, status: str
) -> None:
    row = database.insert()
    put(database, row, **columns)
    result = render_jobs.claim(store, claiming(), 5, True)
    assert (result.claims, result.ended) == ([], {fate: 1})
    stored = database.row(row)
    assert stored["status"] == status
    assert stored["error_code"] == (None if status == "canceled" else fate)
    assert (stored["sends"], stored["claimed_at"]) == (0, None), "nothing was sent"
    assert stored["claim_token"] is None


def test_a_wish_to_cancel_waits_where_sume_may_have_the_job(database: Database, store: Any) -> None:
    row = database.insert()
    refuse(store, one_claim(store), unknown=True)
    assert render_jobs.request_cancel(store, row) == "requested"
    assert one_claim(store).row_id == row


def test_an_unknown_outcome_inside_the_window_is_sent_again(database: Database, store: Any) -> None:
    row = database.insert()
    refuse(store, one_claim(store), unknown=True)
    database.age("23 hours")
    assert one_claim(store).row_id == row
    reap(store, claim_timeout=0)
    database.age("2 hours")
    result = render_jobs.claim(store, claiming(), 5, True)
    assert result.ended == {"idempotency_window_expired": 1}


# ------------------------------------------------------------------------- record: success


def test_an_accepted_row(database: Database, store: Any) -> None:
    row = database.insert()
    recorded = accept(store, one_claim(store), "job_1", "req_1")
    assert (recorded.fate, recorded.job_id) == ("submitted", "job_1")
    stored, job = database.row(row), database.job("job_1")
    assert (stored["status"], stored["sume_job_id"]) == ("submitted", "job_1")
    assert (stored["claim_token"], stored["request_id"]) == (None, "req_1")
    assert (job["status"], job["render_job_id"], job["idempotency_key"]) == (
        "queued",
        row,
        f"render-job-{row}",
    )
    assert job["next_poll_at"] > database.one("select now() + interval '3 s'")


def test_recording_twice_changes_nothing(database: Database, store: Any) -> None:
    row = database.insert()
    claimed = one_claim(store)
    accept(store, claimed)
    before = database.row(row)
    assert accept(store, claimed).fate == "already"
    assert database.row(row) == before
    assert refuse(store, claimed).fate == "lost"
    assert database.row(row) == before
    assert database.conflicts() == []


@pytest.mark.parametrize("state", ["pending", "failed", "canceled", "claimed again"])
def test_a_late_success_is_recorded_whatever_became_of_the_row(
    database: Database, store: Any, state: str
) -> None:
    row = database.insert()
    claimed = one_claim(store)
    if state == "failed":
        refuse(store, claimed, "fail", error_code="x", error={"http_status": 400})
    elif state == "canceled":
        refuse(store, claimed)
        render_jobs.request_cancel(store, row)
    else:
        database.age("11 minutes")
        assert reap(store) == {"pending": 1}
        if state == "claimed again":
            database.age("11 seconds")
            one_claim(store)
    expected = {"claimed again": "submitting"}.get(state, state)
    assert database.row(row)["status"] == expected
    assert accept(store, claimed).fate == "submitted"
    stored = database.row(row)
    assert (stored["status"], stored["error_code"], stored["error"]) == ("submitted", None, None)
    job = database.job(f"job_{claimed.key}")
    assert (job["cancel_due_at"] is not None) == (state == "canceled"), "the wish is handed on"


def test_a_late_success_and_the_next_workers_the_same_job(database: Database, store: Any) -> None:
    database.insert()
    first = one_claim(store)
    reap(store, claim_timeout=0)
    database.age("11 seconds")
    second = one_claim(store)
    assert accept(store, first).fate == "submitted"
    assert accept(store, second).fate == "already"
    assert database.conflicts() == []


def test_a_second_job_for_one_row_is_kept(database: Database, store: Any) -> None:
    row = database.insert()
    first = one_claim(store)
    reap(store, claim_timeout=0)
    database.age("11 seconds")
    second = one_claim(store)
    accept(store, first, "job_a")
    for _ in range(2):  # safe to repeat
        recorded = accept(store, second, "job_b")
        assert (recorded.fate, recorded.reason) == ("conflict", "second_job_for_row")
    (conflict,) = database.conflicts()
    assert (conflict["job_id"], conflict["render_job_id"]) == ("job_b", row)
    assert conflict["idempotency_key"] == first.key
    assert database.row(row)["sume_job_id"] == "job_a"
    assert [job["job_id"] for job in database.jobs()] == ["job_a"]


@pytest.mark.parametrize("together", [True, False])
def test_one_job_for_two_rows_is_kept_and_the_second_is_not_sent_again(
    database: Database, store: Any, together: bool
) -> None:
    rows = database.insert_many(2)
    claims = claim(store)
    answers = [render_jobs.Accepted(c.row_id, c.token, c.key, "job_x") for c in claims]
    if together:
        recorded = render_jobs.record(store, answers, 8, 5.0)
    else:
        recorded = [render_jobs.record(store, [answer], 8, 5.0)[0] for answer in answers]
    assert [(each.fate, each.reason) for each in recorded] == [
        ("submitted", "known"),
        ("conflict", "job_of_another_row"),
    ]
    assert [database.row(row)["status"] for row in rows] == ["submitted", "failed"]
    assert database.row(rows[1])["error_code"] == "job_id_conflict"
    assert [each["render_job_id"] for each in database.conflicts()] == [rows[1]]


def test_one_job_for_two_rows_at_the_same_moment(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    database.insert_many(2)
    first, second = claim(store)
    one, two = session(), session()
    assert accept(one, first, "job_x").fate == "submitted"
    with in_background(database) as start:
        late = start(accept, two, second, "job_x")
        wait_for_lock(database)
        one.commit()
        assert late.result(10).reason == "job_of_another_row"
    two.commit()
    assert database.job("job_x")["render_job_id"] == first.row_id
    assert len(database.conflicts()) == 1


def test_a_success_for_a_row_that_is_gone_is_kept(database: Database, store: Any) -> None:
    row = database.insert()
    claimed = one_claim(store)
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        database.execute("delete from render_jobs where id = %s", row)
    assert accept(store, claimed).reason == "row_is_gone"
    (conflict,) = database.conflicts()
    assert (conflict["render_job_id"], conflict["job_id"]) == (row, f"job_{claimed.key}")
    assert database.jobs() == []


def test_a_late_success_of_an_earlier_generation(database: Database, store: Any) -> None:
    row = database.insert()
    first = one_claim(store)
    reap(store, claim_timeout=0)
    database.age("11 seconds")
    accept(store, one_claim(store), "job_a")
    move(store, "job_a", "failed", {"code": "c", "retryable": True})
    assert render_jobs.regenerate(store, [("job_a", row)], 2) == [row]
    assert accept(store, first, "job_a").fate == "already", "known as this row's: no conflict"
    assert database.conflicts() == []
    recorded = accept(store, first, "job_b")
    assert (recorded.fate, recorded.reason) == ("conflict", "other_generation")
    assert database.row(row)["sume_job_id"] is None
    assert [each["job_id"] for each in database.conflicts()] == ["job_b"]


def test_a_collision_ends_the_row_and_adopts_nothing(database: Database, store: Any) -> None:
    row = database.insert()
    claimed = one_claim(store)
    for fate in ("conflict", "conflict"):  # safe to repeat
        code = "idempotency_key_collision"
        recorded = refuse(store, claimed, "collision", job_id="job_theirs", error_code=code)
        assert recorded.fate == fate
    stored = database.row(row)
    assert (stored["status"], stored["error_code"]) == ("failed", "idempotency_key_collision")
    assert stored["sume_job_id"] is None
    assert database.jobs() == []
    (conflict,) = database.conflicts()
    assert (conflict["job_id"], conflict["reason"]) == ("job_theirs", "idempotency_key_collision")


def test_a_replay_that_the_next_worker_caused_is_no_collision(
    database: Database, store: Any
) -> None:
    """The first worker's request arrives after the second's: its replay is the row's own."""
    row = database.insert()
    first = one_claim(store)
    reap(store, claim_timeout=0)
    database.age("11 seconds")
    second = one_claim(store)
    code = "idempotency_key_collision"
    recorded = refuse(store, first, "collision", job_id="job_ours", error_code=code)
    assert recorded.fate == "submitted"
    assert accept(store, second, "job_ours").fate == "already"
    assert database.row(row)["sume_job_id"] == "job_ours"
    assert database.conflicts() == []


def test_many_answers_in_one_statement(database: Database, store: Any) -> None:
    database.insert_many(4)
    one, two, three, four = claim(store)
    answers = [
        render_jobs.Refused(four.row_id, four.token, four.key, "fail", error_code="bad"),
        render_jobs.Accepted(two.row_id, two.token, two.key, "job_2"),
        render_jobs.Refused(one.row_id, one.token, one.key, "requeue", delay=60.0),
        render_jobs.Accepted(three.row_id, three.token, three.key, "job_3"),
    ]
    fates = {each.row_id: each.fate for each in render_jobs.record(store, answers, 8, 5.0)}
    assert fates == {
        one.row_id: "requeued",
        two.row_id: "submitted",
        three.row_id: "submitted",
        four.row_id: "failed",
    }
    jobs = [database.row(each.row_id)["sume_job_id"] for each in (one, two, three, four)]
    assert jobs == [None, "job_2", "job_3", None]
    codes = [database.row(each.row_id)["error_code"] for each in (one, two, three, four)]
    assert codes == [None, None, None, "bad"]


# ------------------------------------------------------------------------- record: refusals


@pytest.mark.parametrize(
    ("facts", "attempts", "sends", "clock"),
    [
        ({}, 1, 1, False),
        ({"give_back_attempt": True}, 0, 1, False),
        ({"give_back_attempt": True, "give_back_send": True}, 0, 0, False),
        ({"unknown": True}, 1, 1, True),
    ],
)
def test_a_requeue(
    database: Database, store: Any, facts: dict[str, Any], attempts: int, sends: int, clock: bool
) -> None:
    row = database.insert()
    claimed = one_claim(store)
    error = {"http_status": 500, "message": "\u2603"}
    assert refuse(store, claimed, delay=100.0, error=error, **facts).fate == "requeued"
    stored = database.row(row)
    assert (stored["status"], stored["error_code"]) == ("pending", None)
    assert (stored["attempts"], stored["sends"]) == (attempts, sends)
    assert (stored["unknown_since"] is not None) == clock
    if clock:
        assert stored["unknown_since"] == stored["claimed_at"], "from when it may have left"
    assert stored["error"] == error
    wait = database.one("select extract(epoch from run_after - now()) from render_jobs")
    assert 95 < wait <= 100


def test_the_clock_of_the_first_unknown_send_is_kept(database: Database, store: Any) -> None:
    row = database.insert()
    refuse(store, one_claim(store), unknown=True)
    database.age("1 hour")
    first = database.row(row)["unknown_since"]
    refuse(store, one_claim(store), unknown=True)
    refuse(store, one_claim(store))
    assert database.row(row)["unknown_since"] == first


def test_a_send_that_was_given_back_leaves_the_next_one_the_first(
    database: Database, store: Any
) -> None:
    database.insert()
    refuse(store, one_claim(store), give_back_attempt=True, give_back_send=True)
    assert one_claim(store).first_send


def test_a_refused_send_makes_the_next_one_no_first(database: Database, store: Any) -> None:
    database.insert()
    refuse(store, one_claim(store), give_back_attempt=True)
    assert not one_claim(store).first_send


def test_the_last_attempt_ends_the_row(database: Database, store: Any) -> None:
    row = database.insert()
    for attempt in (1, 2, 3):
        claimed = one_claim(store)
        fate = refuse(store, claimed, max_attempts=3, error={"http_status": 500}).fate
        assert fate == ("failed" if attempt == 3 else "requeued")
    stored = database.row(row)
    assert (stored["error_code"], stored["error"]) == ("attempts_exhausted", {"http_status": 500})
    assert claim(store) == []


def test_a_wish_to_cancel_ends_a_row_that_was_refused(database: Database, store: Any) -> None:
    row = database.insert()
    claimed = one_claim(store)
    assert render_jobs.request_cancel(store, row) == "requested"
    assert refuse(store, claimed).fate == "canceled"
    assert database.row(row)["status"] == "canceled"


@pytest.mark.parametrize("action", ["requeue", "fail"])
def test_a_refusal_needs_the_token_of_its_claim(
    database: Database, store: Any, action: str
) -> None:
    row = database.insert()
    first = one_claim(store)
    reap(store, claim_timeout=0)
    database.age("11 seconds")
    one_claim(store)
    before = database.row(row)
    assert refuse(store, first, action, error_code="late").fate == "lost"
    assert database.row(row) == before


@pytest.mark.parametrize(
    "text", ["\u0000", "\ud800", "'; drop table render_jobs; --", "\\u0000", "😀", "\u2028"]
)
def test_any_text_that_was_cleaned_can_be_recorded(
    database: Database, store: Any, text: str
) -> None:
    from sume_jobs.decisions.answers import clean

    row = database.insert()
    error = {"message": clean(text)}
    refuse(store, one_claim(store), "fail", error_code=clean(text) or "x", error=error)
    assert database.row(row)["error"] == error


# ------------------------------------------------------------------------- reap


def test_only_stale_claims_are_reaped(database: Database, store: Any) -> None:
    stale, young, waiting = (database.insert(text) for text in ("stale", "young", "waiting"))
    claims = {each.row_id: each for each in claim(store)}
    refuse(store, claims[waiting], delay=0)
    database.age("9 minutes")
    assert reap(store) == {}
    put(database, stale, claimed_at=database.one("select now() - interval '601 s'"))
    assert reap(store) == {"pending": 1}
    row = database.row(stale)
    assert (row["status"], row["reaps"], row["claim_token"]) == ("pending", 1, None)
    assert row["unknown_since"] == row["claimed_at"], "it may have been sent"
    wait = database.one(
        "select extract(epoch from run_after - updated_at) from render_jobs where id = %s", stale
    )
    assert 5 <= wait <= 10
    assert database.row(young)["status"] == "submitting"


@pytest.mark.parametrize("claimed_at", [None, "infinity", "2999-01-01"])
def test_a_damaged_claim_is_reaped(database: Database, store: Any, claimed_at: str | None) -> None:
    row = database.insert()
    one_claim(store)
    put(database, row, claimed_at=claimed_at)
    assert reap(store) == {"pending": 1}
    assert database.one("select unknown_since <= now() from render_jobs where id = %s", row)


@pytest.mark.parametrize(
    ("columns", "fate", "code"),
    [
        ({"attempts": 8}, "exhausted", "attempts_exhausted"),
        ({"unknown_since": "2001-01-01"}, "expired", "idempotency_window_expired"),
        ({"claimed_at": "2001-01-01"}, "expired", "idempotency_window_expired"),
    ],
)
def test_what_ends_when_it_is_reaped(
    database: Database, store: Any, columns: dict[str, Any], fate: str, code: str
) -> None:
    row = database.insert()
    one_claim(store)
    put(database, row, **columns)
    assert reap(store, claim_timeout=-10) == {fate: 1}
    stored = database.row(row)
    assert (stored["status"], stored["error_code"]) == ("failed", code)
    assert stored["unknown_since"] is not None
    (support,) = database.query("select * from job_support where id = %s", row)
    assert support["sume_may_have_the_job"]


def test_a_claim_that_has_its_job_already_is_made_good(database: Database, store: Any) -> None:
    row = database.insert()
    one_claim(store)
    put(database, row, sume_job_id="job_1")
    assert reap(store, claim_timeout=0) == {"submitted": 1}
    assert database.row(row)["status"] == "submitted"
    assert database.job("job_1")["render_job_id"] == row


def test_a_batch_of_reaped_rows_is_bounded(database: Database, store: Any) -> None:
    database.insert_many(render_jobs.REAP_BATCH + 3)
    claim(store, render_jobs.REAP_BATCH + 3)
    assert reap(store, claim_timeout=0) == {"pending": render_jobs.REAP_BATCH}
    assert reap(store, claim_timeout=0) == {"pending": 3}
    assert reap(store, claim_timeout=0) == {}


def test_reap_while_the_late_writer_has_the_row(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    row = database.insert()
    claimed = one_claim(store)
    database.age("11 minutes")
    writer = session()
    accept(writer, claimed)
    assert reap(store) == {}, "the row is locked: it is somebody's"
    writer.commit()
    assert reap(store) == {}
    assert database.row(row)["status"] == "submitted"


@pytest.mark.parametrize("success", [True, False])
def test_a_late_writer_while_reap_has_the_row(
    database: Database, store: Any, session: Callable[[], Session], success: bool
) -> None:
    row = database.insert()
    claimed = one_claim(store)
    database.age("11 minutes")
    reaper, writer = session(), session()
    assert reap(reaper) == {"pending": 1}
    with in_background(database) as start:
        late = start(accept if success else refuse, writer, claimed)
        wait_for_lock(database)
        reaper.commit()
        assert late.result(10).fate == ("submitted" if success else "lost")
    writer.commit()
    stored = database.row(row)
    assert (stored["status"], stored["reaps"]) == ("submitted" if success else "pending", 1)


def test_two_reapers_at_once_take_a_row_once(
    database: Database, session: Callable[[], Session]
) -> None:
    database.insert_many(4)
    one, two = session(), session()
    claim(one)
    one.commit()
    assert reap(one, claim_timeout=0) == {"pending": 4}
    assert reap(two, claim_timeout=0) == {}
    one.commit()
    two.commit()
    assert {row["reaps"] for row in database.rows()} == {1}


def test_batches_in_opposite_orders_do_not_deadlock(database: Database, make_store: Make) -> None:
    store = make_store()
    database.insert_many(40)
    claims = claim(store, 40)
    first, second = make_store(), make_store()
    barrier = threading.Barrier(2)

    def write(own: Any, order: list[Any]) -> list[str]:
        answers = [render_jobs.Accepted(c.row_id, c.token, c.key, f"job_{c.key}") for c in order]
        own.run("select 1")
        barrier.wait(10)
        return [each.fate for each in render_jobs.record(own, answers, 8, 5.0)]

    with in_background(database) as start:
        one, two = start(write, first, claims), start(write, second, claims[::-1])
        fates = sorted([set(one.result(20)).pop(), set(two.result(20)).pop()])
    assert fates == ["already", "submitted"]


# ------------------------------------------------------------------------- cancel


def test_cancel_of_a_row_that_is_not_there(store: Any) -> None:
    assert render_jobs.request_cancel(store, 999_999_999) is None


def test_cancel_of_a_pending_row_is_final(database: Database, store: Any) -> None:
    row = database.insert()
    assert render_jobs.request_cancel(store, row) == "canceled"
    assert render_jobs.request_cancel(store, row) == "canceled"
    assert claim(store) == []
    assert database.row(row)["status"] == "canceled"


def test_cancel_of_a_row_in_flight_is_handed_on_by_the_record(
    database: Database, store: Any
) -> None:
    row = database.insert()
    claimed = one_claim(store)
    assert render_jobs.request_cancel(store, row) == "requested"
    accept(store, claimed, "job_1")
    job = database.job("job_1")
    assert (job["status"], job["cancel_requested_at"] is not None) == ("queued", True)
    assert gen_jobs.claim_cancels(store, 5, 30.0) == ["job_1"]


@pytest.mark.parametrize("status", ["queued", "processing"])
def test_cancel_of_a_job_that_is_on_its_way(database: Database, store: Any, status: str) -> None:
    row, job = a_job(database, store)
    if status == "processing":
        move(store, job, status)
    assert render_jobs.request_cancel(store, row) == "requested"
    assert database.job(job)["status"] == status, "only what Sume reports is written"
    assert gen_jobs.claim_cancels(store, 5, 30.0) == [job]
    assert gen_jobs.claim_cancels(store, 5, 30.0) == [], "leased"


@pytest.mark.parametrize("status", ["completed", "failed", "canceled"])
def test_cancel_of_a_job_that_ended(database: Database, store: Any, status: str) -> None:
    row, job = a_job(database, store)
    move(store, job, status)
    assert render_jobs.request_cancel(store, row) == "too_late"
    assert database.row(row)["cancel_requested_at"] is None
    assert database.job(job)["cancel_requested_at"] is None
    assert gen_jobs.claim_cancels(store, 5, 30.0) == []


def test_cancel_of_a_failed_row(database: Database, store: Any) -> None:
    row = database.insert()
    refuse(store, one_claim(store), "fail", error_code="bad")
    assert render_jobs.request_cancel(store, row) == "too_late"


def test_a_wish_while_the_record_is_being_written(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    row = database.insert()
    claimed = one_claim(store)
    writer, wisher = session(), session()
    accept(writer, claimed, "job_1")
    with in_background(database) as start:
        wish = start(render_jobs.request_cancel, wisher, row)
        wait_for_lock(database)
        writer.commit()
        assert wish.result(10) in ("requested", "too_late")
    wisher.commit()
    # Whoever was too late to see the job may wish again.
    assert render_jobs.request_cancel(store, row) == "requested"
    assert gen_jobs.claim_cancels(store, 5, 30.0) == ["job_1"]


# ------------------------------------------------------------------------- regenerate

RETRYABLE = {"code": "c", "retryable": True}


def test_a_new_generation_is_a_new_request(database: Database, store: Any) -> None:
    row, job = a_job(database, store)
    move(store, job, "failed", RETRYABLE)
    assert gen_jobs.open_regenerations(store, 10) == [(job, row, RETRYABLE)]
    assert render_jobs.regenerate(store, [(job, row)], 2) == [row]
    assert render_jobs.regenerate(store, [(job, row)], 3) == [], "judged once"
    again = one_claim(store)
    assert again.key == f"render-job-{row}-2"
    assert again.first_send
    accept(store, again, "job_2")
    move(store, "job_2", "failed", RETRYABLE)
    assert render_jobs.regenerate(store, [("job_2", row)], 2) == [], "the limit"
    assert database.row(row)["sume_job_id"] == "job_2"
    assert {each["job_id"] for each in database.jobs()} == {job, "job_2"}


@pytest.mark.parametrize("status", ["queued", "processing", "completed", "canceled"])
def test_only_a_failed_job_is_made_again(database: Database, store: Any, status: str) -> None:
    row, job = a_job(database, store)
    if status != "queued":
        move(store, job, status)
    assert render_jobs.regenerate(store, [(job, row)], 5) == []
    assert gen_jobs.open_regenerations(store, 10) == []


def test_what_people_want_canceled_is_not_made_again(database: Database, store: Any) -> None:
    row, job = a_job(database, store)
    render_jobs.request_cancel(store, row)
    move(store, job, "failed", RETRYABLE)
    assert render_jobs.regenerate(store, [(job, row)], 5) == []


def test_a_closed_judgement_stays_closed(database: Database, store: Any) -> None:
    row, job = a_job(database, store)
    move(store, job, "failed", RETRYABLE)
    gen_jobs.close_regenerations(store, [job])
    assert gen_jobs.open_regenerations(store, 10) == []
    assert render_jobs.regenerate(store, [(job, row)], 5) == []


def test_two_judges_at_once_make_one_generation(
    database: Database, store: Any, session: Callable[[], Session]
) -> None:
    row, job = a_job(database, store)
    move(store, job, "failed", RETRYABLE)
    one, two = session(), session()
    assert render_jobs.regenerate(one, [(job, row)], 5) == [row]
    with in_background(database) as start:
        second = start(render_jobs.regenerate, two, [(job, row)], 5)
        wait_for_lock(database)
        one.commit()
        assert second.result(10) == []
    two.commit()
    assert database.row(row)["generation"] == 2


def test_rows_of_a_batch_are_all_recorded(database: Database, store: Any) -> None:
    pairs = submitted(database, store, 50)
    assert len({job for _, job in pairs}) == 50
    assert database.statuses() == {"submitted": 50}


def test_send_again_may_be_repeated(database: Database, store: Any) -> None:
    row_id = database.insert()
    assert refuse(store, one_claim(store), "fail", unknown=True).fate == "failed"
    assert [render_jobs.send_again(store, row_id) for _ in range(2)] == [True, True]
    assert database.row(row_id)["status"] == "pending"
    accept(store, one_claim(store))
    assert not render_jobs.send_again(store, row_id), "it has its job"


def test_send_again_takes_nothing_else(database: Database, store: Any) -> None:
    waiting, refused, theirs = (database.insert() for _ in range(3))
    put(database, waiting, run_after="infinity")
    claims = {each.row_id: each for each in claim(store)}
    refuse(store, claims[refused], "fail", error_code="invalid_request")
    refuse(store, claims[theirs], "collision", unknown=True, job_id="job_theirs",
           error_code="idempotency_key_collision")  # fmt: skip
    assert {each["status"] for each in database.query("select status from render_jobs")} == {
        "pending",
        "failed",
    }
    for row_id in (waiting, refused, theirs, 12345678):
        assert not render_jobs.send_again(store, row_id)
