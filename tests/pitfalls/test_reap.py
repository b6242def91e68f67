"""Pitfalls of claim and reap: late workers, rows that kill, starvation, stuck rows, lapsed keys."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import threading
from collections import defaultdict

import psycopg
import pytest

from local.fake_sume import Behaviour, FakeSume
from tests.support.bundle import Bundle, event_body, key_of
from tests.support.container import ContainerDied
from tests.support.postgres import Database
from tests.support.waiting import wait_until

# ------------------------------------------------------------------------------------------- P02


def test_p02_late_success_after_the_row_went_to_another_worker(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    worker_a = bundle.another()
    slow = bundle.start("submit", container=worker_a)
    wait_until(fake.posts, "A's POST arrives")
    database.age("11 minutes")
    bundle.R()
    database.age("1 minute")
    bundle.D(container=bundle.another())
    job = fake.job_for(key_of(row)).id
    assert database.row(row)["sume_job_id"] == job
    assert bundle.W(fake.webhook_body(job, "completed")).outcome == "applied"
    before = database.row(row)
    release.set()
    slow.result()
    after = database.row(row)
    assert after["status"] == "submitted"
    assert after["attempts"] == before["attempts"]
    assert database.job(job)["status"] == "completed"
    assert len(database.follow_ups(job)) == 1
    assert not database.conflicts()


@pytest.mark.parametrize(
    "answer",
    [
        Behaviour(status=429, accept=True),
        Behaviour(status=500),
        Behaviour(status=400, accept=True),
        Behaviour(status=402, accept=True),
        Behaviour(drop="after"),
    ],
    ids=["429", "500", "400", "402", "dropped"],
)
def test_p02_late_failure_does_not_undo_the_next_worker(
    bundle: Bundle, database: Database, fake: FakeSume, answer: Behaviour
) -> None:
    """The sibling: A learns of a failure, after B stored the job (or while B holds the claim)."""
    row = database.insert()
    release, second = threading.Event(), threading.Event()
    fake.on_submit(dataclasses.replace(answer, hold=release), Behaviour(hold=second))
    slow = bundle.start("submit", container=bundle.another())
    wait_until(fake.posts, "A's POST arrives")
    database.age("11 minutes")
    bundle.R()
    database.age("1 minute")
    owner = bundle.start("submit", container=bundle.another())
    wait_until(lambda: len(fake.posts()) == 2, "B's POST arrives")
    claimed = database.row(row)
    release.set()
    slow.result()
    now = database.row(row)
    assert now["status"] == "submitting", "B's claim stands"
    assert now["claimed_at"] == claimed["claimed_at"]
    assert now["attempts"] == claimed["attempts"]
    assert now["sends"] == claimed["sends"], "what A sent, it sent"
    second.set()
    owner.result()
    assert database.row(row)["status"] == "submitted"
    assert database.row(row)["sume_job_id"] == fake.job_for(key_of(row)).id


def test_p02_store_open_while_the_reaper_looks(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    worker = bundle.start("submit", container=bundle.another())
    wait_until(fake.posts, "the POST arrives")
    database.age("11 minutes")
    database.sleep_at_commit("render_jobs", "update", 1.0, "new.status = 'submitted'")
    release.set()
    database.wait_for_sleeper()
    bundle.R()
    worker.result()
    database.stop_sleeping("render_jobs", "update")
    after = database.row(row)
    assert after["status"] == "submitted"
    assert after["sume_job_id"] == fake.job_for(key_of(row)).id


def test_p02_reap_open_while_the_worker_stores(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    worker = bundle.start("submit", container=bundle.another())
    wait_until(fake.posts, "the POST arrives")
    database.age("11 minutes")
    database.sleep_at_commit("render_jobs", "update", 1.0, "new.status = 'pending'")
    reaper = bundle.start("reap")
    database.wait_for_sleeper()
    release.set()
    reaper.result()
    worker.result()
    database.stop_sleeping("render_jobs", "update")
    after = database.row(row)
    assert after["status"] == "submitted", "a success is a fact, whoever learns it"
    assert after["sume_job_id"] == fake.job_for(key_of(row)).id
    bundle.submit_later()
    assert len(fake.posts()) == 1


def test_p02_late_success_for_a_row_that_was_given_up(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling: meanwhile the row ended `failed`; the late success still counts."""
    bundle.set(MAX_ATTEMPTS=1)
    row = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    worker = bundle.start("submit", container=bundle.another())
    wait_until(fake.posts, "the POST arrives")
    database.age("11 minutes")
    bundle.R()
    bundle.submit_later()
    assert database.row(row)["status"] == "failed"
    release.set()
    worker.result()
    after = database.row(row)
    assert after["status"] == "submitted"
    assert after["sume_job_id"] == fake.job_for(key_of(row)).id
    assert len(fake.posts()) == 1


@pytest.mark.parametrize("how", ["status = 'canceled'", "cancel_requested_at = now()"])
def test_p02_late_success_for_a_row_that_was_canceled(
    bundle: Bundle, database: Database, fake: FakeSume, how: str
) -> None:
    """The sibling: between the reap and the late success the row was canceled."""
    row = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    worker = bundle.start("submit", container=bundle.another())
    wait_until(fake.posts, "the POST arrives")
    database.age("11 minutes")
    bundle.R()
    with database.session(autocommit=True) as app:
        app.execute(f"update render_jobs set {how} where id = %s", (row,))
    release.set()
    worker.result()
    after = database.row(row)
    job = fake.job_for(key_of(row)).id
    assert (after["status"], after["sume_job_id"]) == ("submitted", job)
    assert database.job(job)["status"] in ("queued", "canceled")
    for _ in range(3):
        bundle.submit_later()
        bundle.poll_now()
    assert database.job(job)["status"] == fake.jobs[job].status, "only what Sume reports"
    if "cancel_requested_at" in how:
        assert database.job(job)["status"] == "canceled", "the wish was handed on"
    assert fake.billed == 1


def test_p02_frozen_with_the_request_under_way(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling: the worker is frozen, and wakes up when its successor is long done."""
    row = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    frozen = bundle.another()
    slow = bundle.start("submit", container=frozen)
    wait_until(fake.posts, "the POST arrives")
    frozen.signal(signal.SIGSTOP)
    database.age("11 minutes")
    bundle.R()
    database.age("1 minute")
    bundle.D()
    job = fake.job_for(key_of(row)).id
    assert bundle.W(event_body(job)).outcome == "applied"
    release.set()
    frozen.signal(signal.SIGCONT)
    slow.result()
    assert database.row(row)["sume_job_id"] == job
    assert database.job(job)["status"] == "completed"
    assert not [s for s in database.sessions() if "transaction" in (s["state"] or "")]


# ------------------------------------------------------------------------------------------- P04


@pytest.mark.parametrize("accepted", [True, False])
def test_p04_a_row_that_kills_its_worker_is_given_up(
    bundle: Bundle, database: Database, fake: FakeSume, accepted: bool
) -> None:
    bundle.set(MAX_ATTEMPTS=3)
    poison, healthy = database.insert("poison"), database.insert("healthy")
    fake.always_on_submit(
        Behaviour(
            status=202 if accepted else 503,
            accept=accepted,
            call=lambda _: bundle.warm("submit").kill(),
        ),
        key=key_of(poison),
    )
    for attempt in range(1, 6):
        try:
            bundle.D()
        except ContainerDied:
            assert database.row(poison)["attempts"] == attempt, "counted in the claim"
        database.age("11 minutes")
        bundle.R()
        database.age("1 minute")
    bundle.D()
    after = database.row(poison)
    assert after["status"] == "failed"
    assert after["error_code"] == "attempts_exhausted"
    posts = fake.posts(key_of(poison))
    assert len(posts) == 3
    assert len({post.body for post in posts}) == 1
    assert database.row(healthy)["status"] == "submitted"
    assert database.row(healthy)["sume_job_id"] == fake.job_for(key_of(healthy)).id


def test_p04_a_row_reaped_twice_takes_no_innocents_with_it(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    poison = database.insert("poison")
    innocents = database.insert_many(10)
    fake.always_on_submit(
        Behaviour(status=503, accept=False, call=lambda _: bundle.warm("submit").kill()),
        key=key_of(poison),
    )
    for _ in range(2):
        with pytest.raises(ContainerDied):
            bundle.D()
        database.age("11 minutes")
        bundle.R()
        database.age("1 minute")
    before = {row: database.row(row)["attempts"] for row in innocents}
    late = database.insert_many(5, "new")
    with contextlib.suppress(ContainerDied):
        # The normal rows go first; the killer is claimed alone, after them.
        for _ in range(3):
            bundle.D()
    for row in [*innocents, *late]:
        after = database.row(row)
        if before.get(row, 0) < 2:
            assert after["status"] == "submitted", (row, after)
    assert database.row(poison)["status"] == "submitting"


def test_p04_a_killed_worker_has_used_one_attempt_even_at_the_last(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling: the kill comes on the only attempt there is."""
    bundle.set(MAX_ATTEMPTS=1)
    row = database.insert()
    fake.on_submit(Behaviour(call=lambda _: bundle.warm("submit").kill()))
    with pytest.raises(ContainerDied):
        bundle.D()
    database.age("11 minutes")
    bundle.R()
    bundle.submit_later()
    after = database.row(row)
    assert (after["status"], after["error_code"]) == ("failed", "attempts_exhausted")
    assert len(fake.posts()) == 1
    assert database.state(row) == "needs_attention"


# ------------------------------------------------------------------------------------------- P07

HEAD_FAILS = {
    "500": Behaviour(status=500),
    "400": Behaviour(status=400),
    "drop": Behaviour(drop="before"),
    "409": Behaviour(status=409, code="idempotency_in_progress"),
}


@pytest.mark.parametrize("kind", HEAD_FAILS)
def test_p07_failing_rows_at_the_head_starve_nobody(
    bundle: Bundle, database: Database, fake: FakeSume, kind: str
) -> None:
    rows = database.insert_many(40)
    for row in rows[:4]:
        fake.always_on_submit(HEAD_FAILS[kind], key=key_of(row))
    for _ in range(6):
        bundle.D()
    for row in rows[4:]:
        assert database.row(row)["status"] == "submitted"
    for row in rows[:4]:
        posts = fake.posts(key_of(row))
        gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(posts)]
        assert all(gap >= 4.9 for gap in gaps), "tried before its back-off was over"
        assert database.row(row)["status"] == ("failed" if kind == "400" else "pending")
    fake.behave()
    for row in rows[:4]:
        fake.always_on_submit(None, key=key_of(row))
    bundle.submit_later()
    expected = {"failed": 4, "submitted": 36} if kind == "400" else {"submitted": 40}
    assert database.statuses() == expected


def test_p07_a_head_that_gets_503_closes_the_gate_but_starves_nobody(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    rows = database.insert_many(40)
    for row in rows[:4]:
        fake.always_on_submit(Behaviour(status=503), key=key_of(row))
    for _ in range(8):
        bundle.D()
        # Time passes for the gate alone: the refused rows wait, the others not for them.
        database.age_pace("20 minutes")
    for row in rows[4:]:
        assert database.row(row)["status"] == "submitted"
    for row in rows[:4]:
        after = database.row(row)
        assert (after["status"], after["attempts"]) == ("pending", 0)


def test_p07_rows_that_cannot_run_do_not_fill_the_claim(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling: the head of the queue is not due, spent, or canceled."""
    database.execute(
        "insert into render_jobs (prompt, run_after)"
        " select 'later ' || n, now() + interval '1 hour' from generate_series(1, 200) n"
    )
    good = database.insert_many(20)
    assert bundle.D()["submitted"] == 20
    assert {database.row(row)["status"] for row in good} == {"submitted"}
    assert database.statuses() == {"pending": 200, "submitted": 20}


def test_p07_priority_first(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    bundle.set(SUBMIT_CONCURRENCY=1)
    low, normal = database.insert("low", priority=3), database.insert("normal")
    urgent = database.insert("urgent", priority=0)
    bundle.D()
    assert [post.key for post in fake.posts()] == [key_of(row) for row in (urgent, normal, low)]


# ------------------------------------------------------------------------------------------- P09


@pytest.mark.slow
def test_p09_a_batch_that_does_not_fit_goes_back(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(SUBMIT_CONCURRENCY=1, SUME_TIMEOUT_SECONDS=1)
    database.insert_many(30)
    fake.always_on_submit(Behaviour(delay=0.5))
    running = bundle.start("submit", remaining=8.0)
    running.result()
    assert running.seconds is not None
    assert running.seconds < 8.0
    statuses = database.statuses()
    assert "submitting" not in statuses
    assert statuses["submitted"] >= 1
    assert statuses["pending"] + statuses["submitted"] == 30
    for row in database.rows():
        if row["status"] == "pending":
            assert (row["attempts"], row["sends"], row["unknown_since"]) == (0, 0, None)
    assert fake.posts()[-1].at - fake.posts()[0].at < 7.0, "one HTTP timeout was left for the last"


@pytest.mark.parametrize("remaining", [0.0, -5.0, 0.001, 0.5])
@pytest.mark.parametrize("name", ["submit", "reap", "poll"])
def test_p09_no_time_left_means_counts_not_an_error(
    bundle: Bundle, database: Database, fake: FakeSume, name: str, remaining: float
) -> None:
    bundle.job()
    row = database.insert()
    database.age("11 minutes")
    before = len(fake.requests)
    result = bundle.start(name, remaining=remaining).result()
    assert isinstance(result, dict)
    after = database.row(row)
    assert (after["status"], after["attempts"]) == ("pending", 0)
    assert after["claimed_at"] is None
    assert len(fake.requests) == before


def test_p09_less_than_a_timeout_left_claims_nothing(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(SUME_TIMEOUT_SECONDS=20)
    row = database.insert()
    result = bundle.D(remaining=15.0)
    assert result["claimed"] == 0
    assert not fake.posts()
    assert database.row(row)["claimed_at"] is None
    assert database.row(row)["attempts"] == 0


def test_p09_poll_with_less_than_a_timeout_left_reads_nothing(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(SUME_TIMEOUT_SECONDS=20)
    bundle.job()
    database.age("1 hour")
    before = len(fake.requests)
    bundle.P(remaining=15.0)
    assert len(fake.requests) == before
    bundle.P()
    assert len(fake.requests) > before, "no lease was left behind"


# ------------------------------------------------------------------------------------------- P17

STUCK = {
    "no claimed_at": "insert into render_jobs (prompt, status) values ('x', 'submitting')",
    "claimed in the future": (
        "insert into render_jobs (prompt, status, claimed_at)"
        " values ('x', 'submitting', now() + interval '1 hour')"
    ),
    "submitting with a job": (
        "insert into render_jobs (prompt, status, claimed_at, sume_job_id)"
        " values ('x', 'submitting', now() - interval '20 minutes', 'job_stuck')"
    ),
    "submitted without a job": "insert into render_jobs (prompt, status) values ('x', 'submitted')",
    # Siblings: a job id where none belongs.
    "pending with a job": (
        "insert into render_jobs (prompt, status, sume_job_id) values ('x', 'pending', 'job_stuck')"
    ),
    "failed with a job": (
        "insert into render_jobs (prompt, status, sume_job_id) values ('x', 'failed', 'job_stuck')"
    ),
}


@pytest.mark.parametrize("kind", STUCK)
def test_p17_no_stuck_row_is_invisible(
    bundle: Bundle, database: Database, fake: FakeSume, kind: str
) -> None:
    try:
        database.execute(STUCK[kind])
    except psycopg.errors.CheckViolation:
        return  # impossible by the schema, which is as good
    (row,) = database.rows()
    bundle.R()
    after = database.row(row["id"])
    if kind == "submitting with a job":
        assert after["status"] == "submitted"
    elif kind == "submitted without a job":
        assert after["status"] == "pending" or database.state(row["id"]) == "needs_attention"
    elif not kind.endswith("with a job"):
        assert after["status"] in ("pending", "failed")
    bundle.submit_later()
    assert all(post.key == key_of(row["id"]) for post in fake.posts())
    if kind.endswith("with a job"):
        assert not fake.posts(), "it has its job: nothing is to be sent"
        assert database.row(row["id"])["sume_job_id"] == "job_stuck"


def stuck_by_update(kind: str) -> str:
    return {
        "no claimed_at": "claimed_at = null",
        "claimed in the future": "claimed_at = now() + interval '1 hour'",
        "submitting with a job": (
            "sume_job_id = 'job_stuck', claimed_at = now() - interval '20 minutes'"
        ),
        "submitted without a job": "status = 'submitted'",
        "pending with a job": "status = 'pending', sume_job_id = 'job_stuck', claim_token = null",
        "failed with a job": "status = 'failed', sume_job_id = 'job_stuck', claim_token = null",
    }[kind]


@pytest.mark.parametrize("kind", STUCK)
def test_p17_no_claimed_row_can_become_invisible(
    bundle: Bundle, database: Database, fake: FakeSume, kind: str
) -> None:
    """The same four, reached from a row that really was claimed (its other columns are right)."""
    row = database.insert()
    fake.on_submit(Behaviour(call=lambda _: bundle.warm("submit").kill(), accept=False, status=503))
    with pytest.raises(ContainerDied):
        bundle.D()
    try:
        with database.connection.transaction():
            database.execute("set local session_replication_role = replica")
            database.execute(f"update render_jobs set {stuck_by_update(kind)} where id = %s", row)
    except psycopg.errors.CheckViolation:
        return
    bundle.R()
    after = database.row(row)
    if kind == "submitting with a job":
        assert after["status"] == "submitted"
        assert after["sume_job_id"] == "job_stuck"
    elif kind == "submitted without a job":
        assert after["status"] == "pending" or database.state(row) == "needs_attention"
    elif not kind.endswith("with a job"):
        assert after["status"] == "pending"
    posts = len(fake.posts())
    bundle.submit_later()
    assert {post.key for post in fake.posts()} == {key_of(row)}
    if kind.endswith("with a job"):
        assert len(fake.posts()) == posts
        assert database.row(row)["sume_job_id"] == "job_stuck"


def test_p17_a_live_claim_is_left_alone(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """The mirror: what is not stale is not reaped."""
    row = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    worker = bundle.start("submit")
    wait_until(fake.posts, "the POST arrives")
    database.age("9 minutes")
    assert bundle.R()["reaped"] == 0
    assert database.row(row)["status"] == "submitting"
    release.set()
    worker.result()
    assert database.row(row)["status"] == "submitted"


# ------------------------------------------------------------------------------------------- P42


@pytest.mark.parametrize(
    "settings",
    [
        {"CLAIM_TIMEOUT_SECONDS": 10, "SUME_TIMEOUT_SECONDS": 20},
        {"CLAIM_TIMEOUT_SECONDS": 20, "SUME_TIMEOUT_SECONDS": 20},
        {"CLAIM_TIMEOUT_SECONDS": 0},
        {"CLAIM_TIMEOUT_SECONDS": "ten minutes"},
    ],
)
@pytest.mark.parametrize("name", ["submit", "reap"])
def test_p42_a_reap_limit_below_the_http_timeout_is_refused(
    bundle: Bundle, database: Database, fake: FakeSume, name: str, settings: dict[str, str]
) -> None:
    row = database.insert()
    bundle.set(**settings)
    reply = bundle.start(name).wait()
    assert "error" in reply, "the function must not start with these settings"
    assert "CLAIM_TIMEOUT_SECONDS" in reply["error"] + bundle.output()
    assert not fake.posts()
    assert database.row(row)["attempts"] == 0
    bundle.set(CLAIM_TIMEOUT_SECONDS=None, SUME_TIMEOUT_SECONDS=None)


def test_p42_all_faulty_settings_are_named_at_once(bundle: Bundle, database: Database) -> None:
    bundle.set(SUBMIT_CONCURRENCY="many", MAX_ATTEMPTS=0, SUME_WRITES_PER_MINUTE=-1)
    reply = bundle.start("submit").wait()
    shown = reply["error"] + bundle.output()
    for name in ("SUBMIT_CONCURRENCY", "MAX_ATTEMPTS", "SUME_WRITES_PER_MINUTE"):
        assert name in shown
    bundle.set(SUBMIT_CONCURRENCY=None, MAX_ATTEMPTS=None, SUME_WRITES_PER_MINUTE=None)


@pytest.mark.parametrize("prefix", ["a\nb", " x", "ключ", "k" * 250, ""])
def test_p42_a_key_prefix_that_cannot_be_sent_is_refused(
    bundle: Bundle, database: Database, fake: FakeSume, prefix: str
) -> None:
    """The sibling: settings that could only fail row by row (P48)."""
    row = database.insert()
    bundle.set(IDEMPOTENCY_PREFIX=prefix)
    reply = bundle.start("submit").wait()
    if "error" in reply:
        assert "IDEMPOTENCY_PREFIX" in reply["error"] + bundle.output()
        assert not fake.posts()
        assert database.row(row)["attempts"] == 0
    else:  # blank means the default, and a space may be stripped
        assert database.row(row)["status"] == "submitted"
        assert not prefix.strip() or fake.posts()[0].key == key_of(row, prefix.strip())
    bundle.set(IDEMPOTENCY_PREFIX=None)


# ------------------------------------------------------------------------------------------- P49


def killed_after_acceptance(bundle: Bundle, database: Database, fake: FakeSume) -> int:
    row = database.insert()
    fake.on_submit(Behaviour(call=lambda _: bundle.warm("submit").kill()))
    with pytest.raises(ContainerDied):
        bundle.D()
    assert fake.billed == 1
    return row


@pytest.mark.parametrize("reap_first", [True, False])
def test_p49_no_resend_past_the_key_s_life(
    bundle: Bundle, database: Database, fake: FakeSume, reap_first: bool
) -> None:
    row = killed_after_acceptance(bundle, database, fake)
    if reap_first:
        database.age("11 minutes")
        bundle.R()
    fake.forget_key(key_of(row))
    database.age("25 hours")
    for _ in range(3):
        bundle.R()
        bundle.submit_later()
    assert len(fake.posts()) == 1
    assert fake.billed == 1
    after = database.row(row)
    assert after["status"] == "failed"
    assert after["error_code"] == "idempotency_window_expired"
    assert database.state(row) == "needs_attention"


def test_p49_inside_the_window_the_replay_brings_the_job(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = killed_after_acceptance(bundle, database, fake)
    database.age("23 hours")
    bundle.R()
    database.age("1 minute")
    bundle.D()
    assert len(fake.posts()) == 2
    assert fake.billed == 1
    assert database.row(row)["sume_job_id"] == fake.job_for(key_of(row)).id
    assert bundle.metric("IdempotencyHit") == 1


@pytest.mark.parametrize(
    "answer", [Behaviour(status=500), Behaviour(drop="after"), Behaviour(status=202, json={})]
)
def test_p49_an_unknown_outcome_starts_the_clock(
    bundle: Bundle, database: Database, fake: FakeSume, answer: Behaviour
) -> None:
    """The sibling: nobody was killed; the answer said nothing."""
    row = database.insert()
    fake.on_submit(answer)
    bundle.D()
    # Refusals in between do not set the clock back.
    fake.on_submit(Behaviour(status=429))
    bundle.submit_later("20 hours")
    assert len(fake.posts()) == 2
    fake.forget_key(key_of(row))
    bundle.submit_later("5 hours")
    bundle.submit_later("5 hours")
    assert len(fake.posts()) == 2
    after = database.row(row)
    assert (after["status"], after["error_code"]) == ("failed", "idempotency_window_expired")


@pytest.mark.parametrize("status", [402, 429, 503, 401, 403])
def test_p49_a_definite_refusal_starts_no_clock(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    row = database.insert()
    fake.on_submit(Behaviour(status=status))
    bundle.D()
    assert database.row(row)["unknown_since"] is None
    bundle.submit_later("3 days")
    assert database.row(row)["status"] == "submitted"
    assert fake.billed == 1


def test_p49_the_window_is_a_setting(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    bundle.set(IDEMPOTENCY_RETENTION_SECONDS=3600)
    row = killed_after_acceptance(bundle, database, fake)
    database.age("61 minutes")
    bundle.R()
    bundle.submit_later("1 minute")
    assert len(fake.posts()) == 1
    assert database.row(row)["error_code"] == "idempotency_window_expired"


# ------------------------------------------------------------------------------------------- P51


def test_p51_two_stages_with_their_own_prefix(
    bundle: Bundle, database: Database, fake: FakeSume, make_database, make_bundle
) -> None:
    bundle.set(IDEMPOTENCY_PREFIX="dev")
    other = make_database()
    production = make_bundle(other, fake)
    production.set(IDEMPOTENCY_PREFIX="prod")
    one, two = database.insert("dev prompt"), other.insert("prod prompt")
    bundle.D()
    production.D()
    assert fake.billed == 2
    assert database.row(one)["sume_job_id"] == fake.job_for(key_of(one, "dev")).id
    assert other.row(two)["sume_job_id"] == fake.job_for(key_of(two, "prod")).id


@pytest.mark.parametrize("status", [200, 202])
def test_p51_a_replay_on_the_first_send_is_a_collision(
    bundle: Bundle, database: Database, fake: FakeSume, make_database, make_bundle, status: int
) -> None:
    """A cloned database, or a prefix that two stages share, with the very same prompt."""
    bundle.D()
    other = make_database()
    clone = make_bundle(other, fake)
    database.insert("same prompt")
    other.insert("same prompt")
    bundle.D()
    original = fake.job_for(key_of(1)).id
    fake.on_submit(Behaviour(replay_status=status))
    clone.D()
    assert fake.billed == 1
    after = other.row(1)
    assert (after["status"], after["error_code"]) == ("failed", "idempotency_key_collision")
    assert after["sume_job_id"] is None, "not adopted"
    (conflict,) = other.conflicts()
    assert (conflict["render_job_id"], conflict["job_id"]) == (1, original)
    assert conflict["idempotency_key"] == key_of(1)
    assert not other.jobs()
    assert other.state(1) == "needs_attention"
    assert clone.logs("ERROR")
    assert "IDEMPOTENCY_PREFIX" in clone.output() or "prefix" in clone.output()
    assert clone.metric("DuplicateJob") >= 1
    clone.submit_later("2 hours")
    assert len(fake.posts()) == 2


def test_p51_a_restored_database_with_another_prompt(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.job()
    # A dump is restored: the sequence starts again, and row 1 is another wish.
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        for table in ("follow_up", "gen_job", "render_jobs"):
            database.execute(f"delete from {table}")
        database.execute("alter sequence render_jobs_id_seq restart")
    row = database.insert("another wish")
    assert row == 1
    bundle.reused_keys = {key_of(row)}
    bundle.D()
    after = database.row(row)
    assert after["status"] == "failed"
    assert after["error_code"] == "idempotency_conflict"
    assert after["sume_job_id"] is None
    assert fake.billed == 1


def test_p51_one_job_id_for_two_rows_is_kept_as_a_conflict(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    (first, job) = bundle.job()
    second = database.insert("another")
    fake.on_submit(Behaviour(status=202, json={"data": {"job": {"id": job, "status": "queued"}}}))
    bundle.D()
    assert database.row(first)["sume_job_id"] == job
    assert database.row(second)["sume_job_id"] is None
    assert database.row(second)["status"] != "submitting"
    conflicts = database.conflicts()
    assert [(c["render_job_id"], c["job_id"]) for c in conflicts] == [(second, job)]
    assert bundle.metric("DuplicateJob") == 1
    assert bundle.logs("ERROR")
    assert len(database.jobs()) == 1


def test_p51_a_second_job_for_one_row_is_kept_as_a_conflict(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    release = threading.Event()
    other = {"data": {"job": {"id": "job_second", "status": "queued"}, "idempotency_hit": False}}
    fake.on_submit(Behaviour(hold=release, status=202, json=other))
    slow = bundle.start("submit", container=bundle.another())
    wait_until(fake.posts, "A's POST arrives")
    database.age("11 minutes")
    bundle.R()
    database.age("1 minute")
    bundle.D(container=bundle.another())
    job = database.row(row)["sume_job_id"]
    assert job == fake.job_for(key_of(row)).id
    release.set()
    slow.result()
    assert database.row(row)["sume_job_id"] == job
    assert [(c["render_job_id"], c["job_id"]) for c in database.conflicts()] == [
        (row, "job_second")
    ]
    assert bundle.metric("DuplicateJob") == 1


def test_p51_success_for_a_row_that_is_gone(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    worker = bundle.start("submit")
    wait_until(fake.posts, "the POST arrives")
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        database.execute("delete from render_jobs where id = %s", row)
    release.set()
    worker.result()
    (conflict,) = database.conflicts()
    assert conflict["render_job_id"] == row
    assert conflict["job_id"] == fake.job_for(key_of(row)).id
    assert bundle.metric("DuplicateJob") == 1


@pytest.mark.parametrize(
    ("generations", "retryable", "bills"), [(1, True, 1), (2, True, 2), (2, False, 1)]
)
def test_p51_regeneration_is_deliberate_and_has_its_own_key(
    bundle: Bundle,
    database: Database,
    fake: FakeSume,
    generations: int,
    retryable: bool,
    bills: int,
) -> None:
    bundle.set(MAX_GENERATIONS=generations)
    row, job = bundle.job()
    error = {"code": "generation_failed", "message": "…", "retryable": retryable}
    for _ in range(4):
        for known in list(fake.jobs.values()):
            if known.status == "queued":
                fake.set_status(known.id, "failed", error)
        bundle.poll_now()
        bundle.R()
        bundle.submit_later("1 hour")
    assert fake.billed == bills
    keys = sorted({post.key for post in fake.posts()})
    assert keys == [key_of(row), key_of(row) + "-2"][:bills]
    assert database.job(job)["status"] == "failed"
    by_key: dict[str, int] = defaultdict(int)
    for known in database.jobs():
        by_key[known["idempotency_key"]] += 1
    assert all(count == 1 for count in by_key.values())


def test_p51_an_operator_s_next_generation_has_a_new_key(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """Case (c): a deliberate act, here in SQL, for a row whose job has failed."""
    row, job = bundle.job()
    bundle.environment["MAX_GENERATIONS"] = "2"  # for the invariants: another generation is meant
    with database.session(autocommit=True) as app, pytest.raises(psycopg.Error):
        # Not while the first is under way: that would bill twice for one wish.
        app.execute("update render_jobs set generation = generation + 1 where id = %s", (row,))
    fake.set_status(job, "failed", {"code": "content_policy_rejected", "retryable": False})
    bundle.poll_now()
    bundle.submit_later()
    assert fake.billed == 1, "not by itself"
    with database.session(autocommit=True) as app:
        app.execute("update render_jobs set generation = generation + 1 where id = %s", (row,))
    bundle.submit_later()
    assert [post.key for post in fake.posts()] == [key_of(row), key_of(row) + "-2"]
    second = fake.job_for(key_of(row) + "-2").id
    assert database.row(row)["sume_job_id"] == second
    assert database.job(job)["status"] == "failed"
    fake.set_status(second, "completed")
    bundle.poll_now()
    assert database.state(row) == "done"


def test_p51_a_key_of_the_app_s_own(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """The sibling: a key given at the insert is the row's, and belongs to one row only."""
    row = database.insert("mine", idempotency_key="order-77")
    with pytest.raises(psycopg.errors.IntegrityError):
        database.insert("another wish", idempotency_key="order-77")
    bundle.D()
    assert [post.key for post in fake.posts()] == ["order-77"]
    assert database.row(row)["sume_job_id"] == fake.job_for("order-77").id


def test_p51_a_made_key_that_an_app_took_before(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling: an app's own key looks like the one that another row would be given."""
    first = database.insert("mine", idempotency_key=key_of(2))
    second = database.insert("another wish")
    third = database.insert("a third")
    assert second == 2
    for _ in range(2):
        bundle.submit_later()
    assert database.row(first)["sume_job_id"] == fake.job_for(key_of(2)).id
    assert database.row(third)["status"] == "submitted", "the others do not wait for the clash"
    after = database.row(second)
    assert after["sume_job_id"] != database.row(first)["sume_job_id"]
    assert after["status"] in ("submitted", "failed")
