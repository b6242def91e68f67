"""Pitfalls of poll: unknown words, failed reads, jobs that stay, vanish, or have no result yet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local.fake_sume import Behaviour, FakeSume
from tests.support.bundle import Bundle, event_body, key_of
from tests.support.postgres import Database
from tests.support.waiting import slack


def reads(fake: FakeSume, job_id: str) -> int:
    """How often a job itself (not its result) was read."""
    return len([r for r in fake.requests if r.path == f"/v1/jobs/{job_id}" and r.method == "GET"])


def attention(database: Database, job_id: str) -> Any:
    return database.job(job_id)["attention"]


# ------------------------------------------------------------------------------------------- P20


def test_p20_status_words_nobody_knows(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    pairs = bundle.accepted(6)
    j1, j2, j3, j4, j5, j6 = (job for _, job in pairs)
    fake.on_read(Behaviour(job_status="expired"), job_id=j1)
    fake.on_read(Behaviour(job_status="throttled"), job_id=j2)
    fake.set_status(j3, "completed")
    bundle.poll_now()
    assert database.job(j1)["status"] == "failed"
    assert database.job(j1)["error_code"] == "expired"
    assert database.job(j2)["status"] == "queued"
    assert database.job(j3)["status"] == "completed"
    mentions = [line for line in bundle.logs() if "throttled" in json.dumps(line)]
    assert len(mentions) == 1, mentions
    assert bundle.W(event_body(j4, "expired")).outcome == "applied"
    assert bundle.W(event_body(j5, "COMPLETED")).outcome == "applied"
    assert bundle.W(event_body(j6, "cancelled")).outcome == "applied"
    assert database.job(j4)["status"] == "failed"
    assert database.job(j4)["error_code"] == "expired"
    assert database.job(j5)["status"] == "completed"
    assert database.job(j6)["status"] == "canceled"
    before = reads(fake, j2)
    bundle.poll_now()
    assert reads(fake, j2) == before + 1, "polled again"


WORDS = [
    ("cancelled", "canceled"),
    ("CANCELLED", "canceled"),
    ("succeeded", "completed"),
    ("success", "completed"),
    ("complete", "completed"),
    ("Completed", "completed"),
    ("error", "failed"),
    ("errored", "failed"),
    ("FAILED", "failed"),
    ("running", "processing"),
    ("in_progress", "processing"),
    ("Processing", "processing"),
    ("EXPIRED", "failed"),
    ("in_queue", "queued"),
    ("throttled", "queued"),
    ("", "queued"),
    ("неизвестно", "queued"),
    (" completed ", "completed"),
]


def test_p20_aliases_in_a_read(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    pairs = bundle.accepted(len(WORDS))
    for (word, _), (_, job) in zip(WORDS, pairs, strict=True):
        fake.on_read(Behaviour(job_status=word), job_id=job)
    bundle.poll_now()
    for (word, status), (_, job) in zip(WORDS, pairs, strict=True):
        stored = database.job(job)["status"]
        if word in ("running", "in_progress"):
            assert stored in ("queued", "processing"), "not an end, whatever it is"
        elif word == " completed ":
            assert stored in ("queued", "completed")
        else:
            assert stored == status, word


def test_p20_unknown_words_in_the_submit_answer(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    expected = {"expired": "failed", "cancelled": "canceled", "SUCCEEDED": "completed"}
    words: list[Any] = [*expected, "throttled", "", 7, None, ["completed"]]
    rows = database.insert_many(len(words))
    for row, word in zip(rows, words, strict=True):

        def answer(job: Any, word: Any = word) -> Any:
            return {"data": {"job": {"id": job.id, "status": word}, "idempotency_hit": False}}

        fake.on_submit(Behaviour(json=answer), key=key_of(row))
    bundle.D()
    for row, word in zip(rows, words, strict=True):
        after = database.row(row)
        assert after["status"] == "submitted", word
        status = expected.get(word, "queued") if isinstance(word, str) else "queued"
        assert database.job(after["sume_job_id"])["status"] == status, word


def test_p20_expired_keeps_the_body_s_own_error(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, job = bundle.job()
    fake.on_read(Behaviour(job_status="expired", job_error={"code": "too_old", "message": "gone"}))
    bundle.poll_now()
    after = database.job(job)
    assert (after["status"], after["error_code"]) == ("failed", "expired")
    assert after["error"]["code"] == "too_old"


# ------------------------------------------------------------------------------------------- P21

BAD_READS = {
    "500": Behaviour(status=500),
    "dropped": Behaviour(drop="after"),
    "html": Behaviour(status=200, body=b"<html>busy</html>"),
    "empty object": Behaviour(status=200, json={}),
    "null": Behaviour(status=200, body=b"null"),
    "list": Behaviour(status=200, json=[]),
    "nothing": Behaviour(status=200, body=b""),
    "cut": Behaviour(cut=True),
    "no status": Behaviour(json=lambda job: {"data": {"job": {"id": job.id}}}),
    "403": Behaviour(status=403),
    "502": Behaviour(status=502, body=b"<html>"),
    "204": Behaviour(status=204, body=b""),
    "error body in a 200": Behaviour(
        status=200, json={"request_id": "r", "error": {"code": "x", "message": "failed"}}
    ),
    "another job": Behaviour(json={"data": {"job": {"id": "job_other", "status": "failed"}}}),
}


def test_p21_one_failed_read_says_nothing_about_the_job(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    (_, j1), (_, j2) = bundle.accepted(2)
    fake.set_status(j2, "completed")
    fake.on_read(
        Behaviour(status=500),
        Behaviour(status=429, headers={"Retry-After": "5"}),
        Behaviour(drop="after"),
        Behaviour(status=200, body=b"<html>"),
        Behaviour(status=200, json={}),
        Behaviour(status=401),
        job_id=j1,
    )
    # J1 is the first in every sweep.
    database.execute(
        "update gen_job set next_poll_at = next_poll_at - interval '1 minute' where job_id = %s", j1
    )
    bundle.poll_now()
    assert database.job(j1)["status"] == "queued"
    assert database.job(j2)["status"] == "completed", "one bad job does not end the loop"
    for _ in range(5):
        bundle.poll_now()
        assert database.job(j1)["status"] == "queued"
    assert reads(fake, j1) == 6
    assert attention(database, j1) is None
    fake.set_status(j1, "completed")
    bundle.poll_now()
    assert database.job(j1)["status"] == "completed"
    assert len(database.follow_ups(j1)) == 1


# Not more than four at a time: five unknown answers in a row would count as an outage.
@pytest.mark.parametrize("start", range(0, len(BAD_READS), 4))
def test_p21_a_bad_read_ends_neither_the_job_nor_the_sweep(
    bundle: Bundle, database: Database, fake: FakeSume, start: int
) -> None:
    kinds = list(BAD_READS)[start : start + 4]
    pairs = bundle.accepted(len(kinds) + 4)
    bad, good = pairs[: len(kinds)], pairs[len(kinds) :]
    for kind, (_, job) in zip(kinds, bad, strict=True):
        fake.always_on_read(BAD_READS[kind], job_id=job)
        database.execute(
            "update gen_job set next_poll_at = next_poll_at - interval '1 minute'"
            " where job_id = %s",
            job,
        )
    for _, job in good:
        fake.set_status(job, "completed")
    bundle.poll_now()
    for kind, (_, job) in zip(kinds, bad, strict=True):
        assert database.job(job)["status"] == "queued", kind
        assert reads(fake, job) == 1, kind
    assert [database.job(job)["status"] for _, job in good] == ["completed"] * 4
    fake.behave()
    for kind, (_, job) in zip(kinds, bad, strict=True):
        fake.always_on_read(None, job_id=job)
        fake.set_status(job, "failed", {"code": kind})
    bundle.poll_now()
    for kind, (_, job) in zip(kinds, bad, strict=True):
        assert database.job(job)["status"] == "failed", kind


@pytest.mark.parametrize("status", [429, 503])
def test_p21_too_many_reads_stop_the_sweep_politely(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    bundle.accepted(40)
    before = len(fake.requests)
    fake.always_on_read(Behaviour(status=status, headers={"Retry-After": "60"}))
    bundle.poll_now()
    sent = len(fake.requests) - before
    assert 1 <= sent <= 16
    bundle.P()
    database.age("50 seconds")
    bundle.P()
    assert len(fake.requests) - before == sent, "the gate is closed for the time that was asked"
    # Writes go on: a full read budget is no reason to stop submitting.
    row = database.insert()
    bundle.D()
    assert database.row(row)["status"] == "submitted"
    fake.behave()
    for _, job in enumerate(database.jobs()):
        fake.set_status(job["job_id"], "completed")
    bundle.poll_now()
    assert {job["status"] for job in database.jobs()} == {"completed"}


@pytest.mark.parametrize("status", [401, 402])
def test_p21_an_account_error_on_a_read_stops_reads_and_writes(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    bundle.accepted(40)
    before = len(fake.requests)
    fake.always_on_read(Behaviour(status=status))
    bundle.poll_now()
    sent = len(fake.requests) - before
    assert 1 <= sent <= 16
    assert bundle.metric("GateClosed") >= 1
    assert bundle.logs("ERROR")
    row = database.insert()
    bundle.P()
    bundle.D()
    assert len(fake.requests) - before == sent
    after = database.row(row)
    assert (after["status"], after["attempts"]) == ("pending", 0)
    fake.behave()
    bundle.submit_later()
    bundle.poll_now()
    assert database.row(row)["status"] == "submitted"
    assert len(fake.requests) - before > sent + 30


# ------------------------------------------------------------------------------------------- P43


def test_p43_queued_is_a_normal_state_for_hours(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row, job = bundle.job()
    for _ in range(6):
        bundle.poll_now("30 minutes")
        bundle.R()
        bundle.D()
        assert database.job(job)["status"] == "queued"
        assert attention(database, job) is None
        assert database.state(row) == "working"
    fake.set_status(job, "processing")
    bundle.poll_now()
    assert database.job(job)["status"] == "processing"
    fake.set_status(job, "completed")
    bundle.poll_now()
    assert database.job(job)["status"] == "completed"
    assert database.state(row) == "done"
    assert len(fake.posts()) == 1
    assert len(database.follow_ups(job)) == 1


# ------------------------------------------------------------------------------------------- P44


@pytest.mark.parametrize("status", ["processing", "queued"])
@pytest.mark.parametrize("way", ["W", "P"])
def test_p44_a_job_past_its_deadline_is_marked_not_ended(
    bundle: Bundle, database: Database, fake: FakeSume, status: str, way: str
) -> None:
    row, job = bundle.job()
    fake.set_status(job, status)
    bundle.poll_now()
    assert attention(database, job) is None
    bundle.poll_now("25 hours")
    after = database.job(job)
    assert after["status"] == status
    assert after["attention"]
    assert database.state(row) in ("needs_attention", "working")
    seen = reads(fake, job)
    bundle.P()
    assert reads(fake, job) == seen, "polling slows"
    bundle.poll_now("7 hours")
    assert reads(fake, job) > seen, "but it does not stop"
    bundle.R()
    bundle.submit_later()
    assert len(fake.posts()) == 1, "nothing is resubmitted"
    assert bundle.metric("NeedsAttention") >= 1
    fake.set_status(job, "completed")
    if way == "W":
        assert bundle.W(event_body(job)).outcome == "applied"
    else:
        bundle.poll_now("7 hours")
    assert database.job(job)["status"] == "completed", "a late genuine end still wins"
    bundle.poll_now("7 hours")
    assert database.state(row) == "done"


@pytest.mark.parametrize("kind", ["500", "dropped", "html"])
def test_p44_swallowed_poll_errors_are_heard_of_in_the_end(
    bundle: Bundle, database: Database, fake: FakeSume, kind: str
) -> None:
    """The sibling: every read fails, so nobody would ever hear."""
    _, job = bundle.job()
    fake.always_on_read(BAD_READS[kind])
    bundle.poll_now("12 hours")
    bundle.poll_now("13 hours")
    bundle.poll_now("1 hour")
    assert attention(database, job)
    assert database.job(job)["status"] == "queued"
    fake.behave()
    fake.set_status(job, "completed")
    bundle.poll_now("7 hours")
    assert database.job(job)["status"] == "completed"


# ------------------------------------------------------------------------------------------- P45


def test_p45_jobs_that_sume_does_not_know(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    pairs = bundle.accepted(4)
    j1, j2, j3, j4 = (job for _, job in pairs)
    fake.on_read(Behaviour(status=404), job_id=j1)
    fake.always_on_read(Behaviour(status=404, code="job_not_found"), job_id=j2)
    fake.always_on_read(Behaviour(status=410), job_id=j3)
    fake.set_status(j1, "completed")
    bundle.poll_now()
    assert database.job(j1)["status"] == "queued"
    assert attention(database, j1) is None, "one 404 may be lag"
    fake.set_status(j4, "completed")
    bundle.poll_now()
    assert database.job(j1)["status"] == "completed"
    assert database.job(j4)["status"] == "completed"
    for _ in range(12):
        bundle.poll_now("2 hours")
    for job in (j2, j3):
        assert attention(database, job), job
        assert database.job(job)["status"] == "queued"
    assert reads(fake, j2) <= 14
    assert len(fake.posts()) == 4
    states = [database.state(row) for row, _ in pairs]
    assert states == ["done", "needs_attention", "needs_attention", "done"]
    # The end may still come, by either way.
    assert bundle.W(event_body(j2)).outcome == "applied"
    fake.behave()
    fake.set_status(j3, "failed", {"code": "c"})
    bundle.poll_now("1 day")
    assert database.job(j3)["status"] == "failed"


def test_p45_404s_are_bounded_by_count_not_only_by_age(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, job = bundle.job()
    fake.always_on_read(Behaviour(status=404))
    for _ in range(10):
        bundle.poll_now("1 hour")
    assert attention(database, job), "marked well before the in-flight deadline"


# ------------------------------------------------------------------------------------------- P47


def test_p47_completed_before_the_result_is_there(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row, job = bundle.job()
    fake.set_status(job, "completed")
    empty = {"data": {"request_id": job, "status": "COMPLETED", "result": {"artifacts": []}}}
    late = Behaviour(status=409, code="job_not_completed", details={"status": "completed"})
    fake.on_result(late, late, Behaviour(status=200, json=empty))
    results = 0
    for _ in range(5):
        results += bundle.poll_now()["results"]
        assert database.job(job)["status"] == "completed"
    assert results == 1
    after = database.job(job)
    assert "http" in json.dumps(after["result"])
    assert after["attention"] is None
    assert database.state(row) == "done"
    asked = len([r for r in fake.requests if r.path.endswith("/result")])
    assert asked == 4
    bundle.poll_now()
    assert len([r for r in fake.requests if r.path.endswith("/result")]) == asked, (
        "kept, not asked again"
    )


EMPTY_RESULTS = {
    "409": Behaviour(status=409, code="job_not_completed"),
    "empty list": Behaviour(status=200, json={"data": {"result": {"artifacts": []}}}),
    "no list": Behaviour(status=200, json={"data": {"result": {}}}),
    "null": Behaviour(status=200, json={"data": {"result": None}}),
    "500": Behaviour(status=500),
    "html": Behaviour(status=200, body=b"<html>"),
    "404": Behaviour(status=404),
    "list of null": Behaviour(status=200, json={"data": {"result": {"artifacts": [None]}}}),
}


@pytest.mark.parametrize("kind", EMPTY_RESULTS)
def test_p47_a_result_that_never_comes_needs_attention(
    bundle: Bundle, database: Database, fake: FakeSume, kind: str
) -> None:
    _, job = bundle.job()
    fake.set_status(job, "completed")
    fake.always_on_result(EMPTY_RESULTS[kind])
    for _ in range(40):
        bundle.poll_now("6 hours")
        if attention(database, job):
            break
    after = database.job(job)
    assert after["status"] == "completed"
    assert after["attention"] == "result_missing"
    asked = len([r for r in fake.requests if r.path.endswith("/result")])
    assert 3 <= asked <= 40


def test_p47_results_of_every_known_shape(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    url = "https://media.example/a.png"
    shapes: list[Any] = [
        {"data": {"result": {"artifacts": [{"url": url}]}}},
        {"data": {"artifacts": [{"kind": "image", "url": url}]}},
        {"data": {"result": {"video_url": url}}},
    ]
    pairs = bundle.accepted(len(shapes))
    for shape, (_, job) in zip(shapes, pairs, strict=True):
        fake.set_status(job, "completed")
        fake.always_on_result(Behaviour(status=200, json=shape), job_id=job)
    bundle.poll_now()
    bundle.poll_now()
    for shape, (_, job) in zip(shapes, pairs, strict=True):
        assert url in json.dumps(database.job(job)["result"]), shape


def test_p47_the_result_of_a_job_that_ended_by_webhook(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, job = bundle.job()
    fake.set_status(job, "completed")
    assert bundle.W(event_body(job)).outcome == "applied"
    assert database.job(job)["result"] is None
    bundle.poll_now()
    assert "http" in json.dumps(database.job(job)["result"])
    assert len(database.follow_ups(job)) == 1


# ------------------------------------------------------------------------------------------- P54


@pytest.mark.parametrize("kind", ["drip", "huge"])
def test_p54_a_read_has_one_total_deadline_and_a_size_cap(
    bundle: Bundle, database: Database, fake: FakeSume, kind: str
) -> None:
    bundle.set(SUME_TIMEOUT_SECONDS=1)
    (_, one), (_, two) = bundle.accepted(2)
    fake.set_status(two, "completed")
    spoiled = Behaviour(drip=4) if kind == "drip" else Behaviour(pad=60_000_000)
    fake.on_read(spoiled, job_id=one)
    database.age("1 hour")
    running = bundle.start("poll", remaining=30.0)
    running.result()
    assert running.seconds is not None
    assert running.seconds < 5.0 * slack()
    assert database.job(one)["status"] == "queued"
    assert database.job(two)["status"] == "completed"


# ------------------------------------------------------------------------------------------- P78


def test_p78_lost_webhooks_are_made_good_by_polling(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    pairs = bundle.accepted(20)
    ends = ["completed", "failed", "canceled"]
    for index, (_, job) in enumerate(pairs):
        status = ends[index % 3]
        fake.set_status(job, status, {"code": "c"} if status == "failed" else None)
        if index % 10 >= 3:  # 30 % never arrive
            assert bundle.W(event_body(job, status)).outcome == "applied"
    for _ in range(3):
        bundle.poll_now()
    for index, (_, job) in enumerate(pairs):
        assert database.job(job)["status"] == ends[index % 3]
        assert len(database.follow_ups(job)) == 1


def test_p78_polls_alone_bring_every_job_to_its_end(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    rows = bundle.accepted(10)
    for _, job in rows:
        fake.set_status(job, "completed")
    result = bundle.poll_now()
    assert result["polled"] >= 10
    assert result["changed"] == 10
    assert {database.state(row) for row, _ in rows} == {"done"}
    assert bundle.metric("PollApplied") == 10
    assert key_of(rows[0][0]) == database.job(rows[0][1])["idempotency_key"]
