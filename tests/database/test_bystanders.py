"""Each statement changes what it was asked about and leaves everybody else alone.

A crowd of rows, jobs, events and follow-ups in every state stands around while each statement is
run, in a transaction that is taken back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sume_jobs.store import follow_ups, gen_jobs, pace, render_jobs, retention, webhook_events
from sume_jobs.store.gen_jobs import Looked, Wish
from sume_jobs.store.render_jobs import Accepted, Claim, Refused

from tests.database.conftest import store_of
from tests.database.sessions import (
    WIDE,
    Session,
    accept,
    claim,
    move,
    put,
    reap,
    refuse,
)
from tests.support.postgres import Database

# What names a row of each table, for people.
KEYS = {
    "render_jobs": "prompt",
    "gen_job": "job_id",
    "webhook_event": "event_id",
    "follow_up": "kind || ' ' || job_id",
    "job_conflict": "reason || ' ' || job_id",
    "pace_budget": "name",
    "pace_gate": "name",
}


def snapshot(session: Session) -> dict[str, str]:
    """Every row of every table, as `table: name`."""
    return {
        f"{table}: {row['name']}": row["whole"]
        for table, key in KEYS.items()
        for row in session.run(f"select {key} as name, to_jsonb(t)::text as whole from {table} t")
    }


@dataclass
class Crowd:
    """Rows by their prompts, jobs by their ids, claims by the prompts of their rows."""

    store: Session
    claims: dict[str, Claim] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)

    def changed(self, call: Callable[[Any], object]) -> set[str]:
        """The names of what the call made, changed or deleted."""
        before = snapshot(self.store)
        call(self.store)
        after = snapshot(self.store)
        names = before.keys() | after.keys()
        return {name for name in names if before.get(name) != after.get(name)}


SENT = [
    "queued", "asked", "processing", "completed", "failed", "silent", "canceled", "unwanted",
    "done", "early",
]  # fmt: skip


@pytest.fixture
def crowd(full: Crowd) -> Iterator[Crowd]:
    yield full
    full.store.rollback()


@pytest.fixture(scope="module")
def full(shared_database: Database) -> Iterator[Crowd]:
    """A row in every state; each job is named after its row."""
    database, store = shared_database, store_of(shared_database)
    session = Session(database)
    yield fill(Crowd(session), database, store)
    session.close()
    store.close()


def fill(crowd: Crowd, database: Database, store: Any) -> Crowd:
    names = [*SENT, "refused", "unknown", "in hand", "in another hand", "stale"]
    for name in names:
        crowd.ids[name] = database.insert(name)
    by_id = {number: name for name, number in crowd.ids.items()}
    crowd.claims = {by_id[each.row_id]: each for each in claim(store)}
    for name in SENT:
        accept(store, crowd.claims[name], f"job {name}".replace(" ", "_"))
    refuse(store, crowd.claims["refused"], "fail", error_code="bad")
    refuse(store, crowd.claims["unknown"], unknown=True, delay=1000.0)
    put(database, crowd.ids["stale"], claimed_at="2001-01-01", unknown_since=None)
    database.execute(
        "update render_jobs set claimed_at = now() - interval '1 hour' where prompt = 'stale'"
    )
    for name in ("waiting", "waiting too", "suspect", "planned", "not wanted"):
        crowd.ids[name] = database.insert(name)
    put(database, crowd.ids["suspect"], reaps=2)
    put(database, crowd.ids["planned"], run_after="2999-01-01")
    render_jobs.request_cancel(store, crowd.ids["not wanted"])
    move(store, "job_processing", "processing")
    move(store, "job_asked", "processing")
    move(store, "job_completed", "completed")
    move(store, "job_done", "completed")
    move(store, "job_failed", "failed", {"code": "c", "retryable": True})
    move(store, "job_silent", "failed")
    move(store, "job_canceled", "canceled")
    render_jobs.request_cancel(store, crowd.ids["unwanted"])
    gen_jobs.record_looks(store, [Looked("job_done", 5.0, "found", result='{"artifacts": []}')])
    database.execute(
        "update gen_job set next_poll_at = now() - interval '1 s'"
        " where job_id in ('job_processing', 'job_early')"
    )
    database.execute(
        "update gen_job set next_poll_at = now() - interval '1 h' where job_id = 'job_processing'"
    )
    for event, job in (("held of early", "job_early"), ("held of nobody", "job_of_nobody")):
        database.execute(
            "insert into webhook_event (event_id, job_id, job_status, body, outcome)"
            " values (%s, %s, 'completed', '{}', 'held')",
            event,
            job,
        )
    webhook_events.receive(
        store, webhook_events.Event("applied", "{}", "job_asked", status="queued")
    )
    return crowd


def accepted(crowd: Crowd, name: str, job: str) -> Accepted:
    claimed = crowd.claims[name]
    return Accepted(claimed.row_id, claimed.token, claimed.key, job)


def refused(crowd: Crowd, name: str, action: str = "requeue", **facts: Any) -> Refused:
    claimed = crowd.claims[name]
    return Refused(claimed.row_id, claimed.token, claimed.key, action, **facts)


# What is asked, and all that may change.
ASKED: dict[str, tuple[Callable[[Crowd, Any], object], set[str]]] = {
    "claim one": (
        lambda c, s: claim(s, 1),
        {"render_jobs: waiting", "pace_budget: writes"},
    ),
    "claim two": (
        lambda c, s: claim(s, 2),
        {"render_jobs: waiting", "render_jobs: waiting too", "pace_budget: writes"},
    ),
    "record a job": (
        lambda c, s: render_jobs.record(s, [accepted(c, "in hand", "job_new")], 8, 5.0),
        {"render_jobs: in hand", "gen_job: job_new"},
    ),
    "record a job again": (
        lambda c, s: render_jobs.record(s, [accepted(c, "queued", "job_queued")], 8, 5.0),
        set(),
    ),
    "record two answers": (
        lambda c, s: render_jobs.record(
            s, [accepted(c, "in hand", "job_new"), refused(c, "in another hand", "fail")], 8, 5.0
        ),
        {
            "render_jobs: in hand",
            "gen_job: job_new",
            "render_jobs: in another hand",
            "follow_up: submission.failed render-job-{in another hand}",
            "pace_budget: writes",
        },
    ),
    "record a refusal": (
        lambda c, s: render_jobs.record(s, [refused(c, "in hand", unknown=True)], 8, 5.0),
        {"render_jobs: in hand"},
    ),
    "record a late refusal": (
        lambda c, s: render_jobs.record(s, [refused(c, "queued", "fail")], 8, 5.0),
        set(),
    ),
    "record a job of another row": (
        lambda c, s: render_jobs.record(s, [accepted(c, "in hand", "job_queued")], 8, 5.0),
        {
            "render_jobs: in hand",
            "job_conflict: job_of_another_row job_queued",
            "follow_up: submission.failed render-job-{in hand}",
        },
    ),
    "record a second job": (
        lambda c, s: render_jobs.record(s, [accepted(c, "queued", "job_new")], 8, 5.0),
        {"job_conflict: second_job_for_row job_new"},
    ),
    "record a collision": (
        lambda c, s: render_jobs.record(
            s, [refused(c, "in hand", "collision", job_id="job_theirs")], 8, 5.0
        ),
        {
            "render_jobs: in hand",
            "job_conflict: idempotency_key_collision job_theirs",
            "follow_up: submission.failed render-job-{in hand}",
            "pace_budget: writes",
        },
    ),
    "reap": (lambda c, s: reap(s), {"render_jobs: stale"}),
    "wish to cancel a row": (
        lambda c, s: render_jobs.request_cancel(s, c.ids["waiting"]),
        {"render_jobs: waiting"},
    ),
    "wish to cancel a job": (
        lambda c, s: render_jobs.request_cancel(s, c.ids["queued"]),
        {"render_jobs: queued", "gen_job: job_queued"},
    ),
    "start a generation": (
        lambda c, s: render_jobs.start_generation(s, c.ids["refused"], 1),
        {"render_jobs: refused"},
    ),
    "make again": (
        lambda c, s: render_jobs.regenerate(s, [("job_failed", c.ids["failed"])], 2),
        {"render_jobs: failed", "gen_job: job_failed"},
    ),
    "close a judgement": (
        lambda c, s: gen_jobs.close_regenerations(s, ["job_failed"]),
        {"gen_job: job_failed"},
    ),
    "claim due jobs": (
        lambda c, s: gen_jobs.claim_due(s, WIDE, 1, 50.0, 25.0),
        {"gen_job: job_processing", "pace_budget: reads"},
    ),
    "apply": (
        lambda c, s: gen_jobs.apply(s, [Wish("job_queued", "completed")]),
        {"gen_job: job_queued", "follow_up: job.completed job_queued"},
    ),
    "apply two": (
        lambda c, s: gen_jobs.apply(
            s, [Wish("job_queued", "completed"), Wish("job_processing", "failed")]
        ),
        {
            "gen_job: job_queued",
            "follow_up: job.completed job_queued",
            "gen_job: job_processing",
            "follow_up: job.failed job_processing",
        },
    ),
    "look": (
        lambda c, s: gen_jobs.record_looks(s, [Looked("job_queued", 60.0, "found")]),
        {"gen_job: job_queued"},
    ),
    "look at two": (
        lambda c, s: gen_jobs.record_looks(
            s, [Looked("job_queued", 60.0, "found"), Looked("job_processing", 5.0, "missing")]
        ),
        {"gen_job: job_queued", "gen_job: job_processing"},
    ),
    "look soon": (lambda c, s: gen_jobs.look_soon(s, "job_queued"), {"gen_job: job_queued"}),
    "claim a cancel": (
        lambda c, s: gen_jobs.claim_cancels(s, 5, 30.0),
        {"gen_job: job_unwanted"},
    ),
    "a cancel was asked": (
        lambda c, s: gen_jobs.cancel_asked(s, "job_unwanted", None),
        {"gen_job: job_unwanted"},
    ),
    "archived": (
        lambda c, s: gen_jobs.archived(s, "job_done", [], "s3://manifest", None),
        {"gen_job: job_done"},
    ),
    "receive": (
        lambda c, s: webhook_events.receive(
            s, webhook_events.Event("new", "{}", "job_queued", status="completed")
        ),
        {
            "webhook_event: new",
            "gen_job: job_queued",
            "follow_up: job.completed job_queued",
        },
    ),
    "receive what decides nothing": (
        lambda c, s: webhook_events.receive(s, webhook_events.Event("new", "{}", "job_queued")),
        {"webhook_event: new", "gen_job: job_queued"},
    ),
    "apply what is held of one": (
        lambda c, s: webhook_events.apply_held(s, ["job_early", "job_queued"]),
        {
            "webhook_event: held of early",
            "gen_job: job_early",
            "follow_up: job.completed job_early",
        },
    ),
    "apply what is held": (
        lambda c, s: webhook_events.apply_all_held(s),
        {
            "webhook_event: held of early",
            "gen_job: job_early",
            "follow_up: job.completed job_early",
        },
    ),
    "take a token": (lambda c, s: pace.take(s, "writes", WIDE), {"pace_budget: writes"}),
    "close a gate": (lambda c, s: pace.close(s, ["reads"], 30.0, "why"), {"pace_gate: reads"}),
    "note an ambiguous answer": (
        lambda c, s: pace.note_ambiguous(s, "writes", False, ["1"]),
        {"pace_gate: writes"},
    ),
    "purge the young": (lambda c, s: retention.purge(s, 1, 86400, lambda: True), set()),
}


@pytest.mark.parametrize("name", ASKED)
def test_nothing_else_is_touched(crowd: Crowd, name: str) -> None:
    call, expected = ASKED[name]
    named = {text.replace("{", "{0[").replace("}", "]}").format(crowd.ids) for text in expected}
    assert crowd.changed(lambda store: call(crowd, store)) == named


# What a statement locks besides, to test its guard on the locked row.
LOCKED = {
    "record a job again": {"render_jobs: queued"},
    "record a late refusal": {"render_jobs: queued"},
    "record a second job": {"render_jobs: queued"},
    "close a gate": {"pace_gate: reads"},
}


@pytest.mark.parametrize("name", ASKED)
def test_nobody_else_is_locked(crowd: Crowd, shared_database: Database, name: str) -> None:
    call, expected = ASKED[name]
    named = {text.replace("{", "{0[").replace("}", "]}").format(crowd.ids) for text in expected}
    call(crowd, crowd.store)
    everybody, free = set(), set()
    for table, key in KEYS.items():
        query = f"select '{table}: ' || {key} as name from {table}"
        everybody |= {row["name"] for row in shared_database.query(query)}
        free |= {row["name"] for row in shared_database.query(query + " for update skip locked")}
    assert everybody - free <= named | LOCKED.get(name, set())


def test_a_claimed_follow_up_and_no_other(crowd: Crowd) -> None:
    everything = [each.kind for each in follow_ups.claim(crowd.store, 60.0, 20).follow_ups]
    assert len(everything) == 6
    assert crowd.changed(lambda store: follow_ups.claim(store, 60.0, 20)) == set(), "leased"


def test_a_marked_follow_up_and_no_other(crowd: Crowd) -> None:
    one, *_ = follow_ups.claim(crowd.store, 60.0, 20).follow_ups
    mark = follow_ups.Mark(one.id, one.token, ("sqs",))
    assert crowd.changed(lambda store: follow_ups.mark(store, [mark], 20)) == {
        f"follow_up: {one.kind} {one.job_id}"
    }
