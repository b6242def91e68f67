"""Pace and stop as Sume sees them: what was sent and when, with a metric and a log line for each.

Time is moved in SQL; the fake's log of requests is the judge.
"""

from __future__ import annotations

import email.utils
import threading
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from local.fake_sume import Behaviour, FakeSume
from tests.reliability.traffic import settle
from tests.support.bundle import Bundle
from tests.support.postgres import Database
from tests.support.waiting import wait_until

ROWS = 12


def closed_for(database: Database, name: str = "writes") -> float:
    """Seconds until the gate is half open; negative when it is, 0 when it is open."""
    seconds = database.one(
        "select extract(epoch from closed_until - now())::float from pace_gate where name = %s",
        name,
    )
    return float(seconds or 0.0)


def gate_lines(bundle: Bundle, message: str) -> list[dict[str, Any]]:
    return [line for line in bundle.logs() if line.get("message") == message]


def together(bundle: Bundle, name: str, count: int) -> list[dict[str, Any]]:
    """The function in so many processes at the same moment."""
    containers = [bundle.another() for _ in range(count)]
    calls = [bundle.start(name, 60.0, container) for container in containers]
    return [call.result() for call in calls]


# Retry-After --------------------------------------------------------------------------------------

# The header, and between how many seconds the gate is then closed for everybody.
FORMS: dict[str, tuple[str | None, float, float]] = {
    "seconds": ("7", 7, 9),
    "many seconds": ("120", 120, 151),
    "a date": ("date", 90, 114),
    "nothing": (None, 30, 38),
    "zero": ("0", 30, 38),
    "negative": ("-5", 30, 38),
    "nonsense": ("soon", 30, 38),
    "a fraction": ("1.5", 30, 38),
    "a past date": ("Thu, 01 Jan 1970 00:00:00 GMT", 30, 38),
    "for ever": ("Fri, 31 Dec 9999 23:59:59 GMT", 900, 1126),
    "huge": ("9" * 40, 900, 1126),
}
FORMS_OF_503 = ("seconds", "a date", "nothing")


@pytest.mark.parametrize("status", [429, 503])
def test_each_form_of_retry_after_closes_writes_and_only_writes(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    rows = database.insert_many(3)
    forms = [form for name, form in FORMS.items() if status == 429 or name in FORMS_OF_503]
    for number, (header, least, most) in enumerate(forms, 1):
        if header == "date":
            header = email.utils.formatdate(time.time() + 91, usegmt=True)
        headers = {} if header is None else {"Retry-After": header}
        fake.on_submit(Behaviour(status=status, headers=headers))
        sent = len(fake.posts())
        assert bundle.D()["stopped"] == 1
        assert len(fake.posts()) == sent + 1, "the first call goes alone"
        assert least - 2 <= closed_for(database) <= most
        assert closed_for(database, "reads") == 0
        bundle.D()
        database.age_pace(f"{least - 3} seconds")
        assert bundle.D()["stopped"] == 1
        assert len(fake.posts()) == sent + 1, "not before the time that was asked for"
        assert bundle.metric("GateClosed") == number
        # Half open, and the refused rows have waited too.
        database.age("20 minutes")
    closed = gate_lines(bundle, "gate_closed")
    assert len(closed) == len(forms)
    assert all(line["gate"] == "writes" and line["status"] == status for line in closed)
    for row in database.rows():
        assert (row["attempts"], row["unknown_since"]) == (0, None)
    settle(bundle, database, fake, rows)
    assert gate_lines(bundle, "gate_opened"), "and it says that it opened"


# Stops for the account ----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 402, 403, 302, 404])
def test_a_stop_doubles_and_closes_reads_too(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    _, job = bundle.job()
    rows = [row["id"] for row in database.rows()]
    rows += database.insert_many(ROWS)
    headers = {"Location": "http://127.0.0.1:9/elsewhere"} if status == 302 else {}
    fake.always_on_submit(Behaviour(status=status, code="stop", headers=headers))
    requests = len(fake.requests)
    steps = (5, 10, 15, 15) if status == 402 else (5, 10)
    for number, minutes in enumerate(steps, 1):
        sent = len(fake.posts())
        together(bundle, "submit", 2) if number == 2 else bundle.D()
        assert len(fake.posts()) == sent + 1, "one row at a time meets it"
        seconds = minutes * 60
        assert seconds - 10 <= closed_for(database) <= seconds * 1.25 + 1
        assert seconds - 10 <= closed_for(database, "reads") <= seconds * 1.25 + 1
        database.age(f"{seconds - 15} seconds")
        bundle.D()
        bundle.P()
        assert len(fake.posts()) == sent + 1
        assert bundle.metric("GateClosed") == number
        database.age(f"{seconds * 0.25 + 30} seconds")
    assert len(fake.requests) == requests + len(steps), "a job was due all the time, and not read"
    assert not database.query("select 1 from render_jobs where attempts > 0 and status = 'pending'")
    stops = gate_lines(bundle, "queue_stopped")
    assert [line["level"] for line in stops] == ["ERROR"] * len(steps)
    assert all(line["status"] == status for line in stops)
    fake.behave()
    bundle.D()
    assert closed_for(database) == 0
    probes = {str(post.key) for post in fake.posts()[1 : 1 + len(steps)]}
    assert len(probes) == len(steps), "not always the same row probes"
    fake.set_status(job, "completed", webhook=False)
    settle(bundle, database, fake, rows)
    # After an acceptance the doubling begins anew.
    database.insert()
    fake.on_submit(Behaviour(status=402))
    bundle.D()
    assert 290 <= closed_for(database) <= 376


@pytest.mark.parametrize("status", [401, 402])
def test_a_stop_on_a_read_closes_both(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    pairs = bundle.accepted(3)
    rows = [row for row, _ in pairs] + database.insert_many(2)
    fake.always_on_read(Behaviour(status=status))
    posts = len(fake.posts())
    database.age("1 hour")
    bundle.P()
    reads = len(fake.requests) - posts
    assert reads == 1
    assert closed_for(database) > 290
    assert closed_for(database, "reads") > 290
    bundle.D()
    assert len(fake.posts()) == posts, "writes are closed by a stop on a read"
    assert bundle.metric("GateClosed") == 1
    fake.behave()
    settle(bundle, database, fake, rows)


@pytest.mark.parametrize("status", [429, 503])
def test_a_read_that_is_refused_closes_reads_and_only_reads(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    pairs = bundle.accepted(4)
    fake.on_read(Behaviour(status=status, headers={"Retry-After": "60"}))
    posts = len(fake.posts())
    database.age("1 hour")
    bundle.P()
    assert len(fake.requests) - posts == 1
    assert 55 <= closed_for(database, "reads") <= 76
    assert closed_for(database) == 0
    rows = [row for row, _ in pairs] + database.insert_many(2)
    assert bundle.D()["submitted"] == 2
    bundle.P()
    assert len(fake.requests) - len(fake.posts()) == 1
    (line,) = gate_lines(bundle, "gate_closed")
    assert (line["gate"], line["status"]) == ("reads", status)
    assert bundle.metric("GateClosed") == 1
    settle(bundle, database, fake, rows)


def test_a_403_on_one_read_is_that_job_s_matter(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    pairs = bundle.accepted(4)
    fake.on_read(Behaviour(status=403), job_id=pairs[0][1])
    database.age("1 hour")
    assert bundle.P()["polled"] == 4
    assert closed_for(database, "reads") == 0
    assert bundle.metric("GateClosed") == 0
    settle(bundle, database, fake, [row for row, _ in pairs])


# Half open ----------------------------------------------------------------------------------------


def half_open(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    fake.on_submit(Behaviour(status=503, headers={"Retry-After": "20"}))
    bundle.D()
    database.age("1 minute")
    assert closed_for(database) < 0


def test_one_probe_for_many_workers(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    rows = database.insert_many(ROWS)
    half_open(bundle, database, fake)
    sent = len(fake.posts())
    gate = threading.Event()
    fake.on_submit(Behaviour(hold=gate))
    containers = [bundle.another() for _ in range(4)]
    calls = [bundle.start("submit", 60.0, container) for container in containers]
    wait_until(lambda: len(fake.posts()) == sent + 1, "the probe is out")
    # While it is out, whoever asks is told to stop; nothing else is sent.
    wait_until(lambda: sum(call.done for call in calls) == 3, "the others return", 20)
    assert bundle.D()["stopped"] == 1
    assert len(fake.posts()) == sent + 1
    gate.set()
    for call in calls:
        call.result()
    assert closed_for(database) == 0
    assert len(gate_lines(bundle, "gate_opened")) == 1
    settle(bundle, database, fake, rows)


def test_a_probe_that_is_refused_closes_again_and_costs_no_attempt(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    rows = database.insert_many(ROWS)
    half_open(bundle, database, fake)
    for status in (503, 402, 429):
        fake.on_submit(Behaviour(status=status))
        sent = len(fake.posts())
        together(bundle, "submit", 3)
        assert len(fake.posts()) == sent + 1
        assert closed_for(database) > 20
        assert {row["attempts"] for row in database.rows()} == {0}
        database.age("20 minutes")
    settle(bundle, database, fake, rows)


def test_a_killed_probe_s_slot_expires_with_its_timeout(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(SUME_TIMEOUT_SECONDS=20)
    rows = database.insert_many(ROWS)
    half_open(bundle, database, fake)
    prober = bundle.another()
    fake.on_submit(Behaviour(call=lambda _: prober.kill(), delay=0.1))
    assert bundle.start("submit", 60.0, prober).wait().get("died")
    sent = len(fake.posts())
    database.age("15 seconds")
    bundle.D()
    assert len(fake.posts()) == sent, "the probe may still be under way"
    database.age("15 seconds")
    assert bundle.D()["submitted"] == ROWS - 1
    settle(bundle, database, fake, rows)


def test_an_ambiguous_probe_opens(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """Any answer that is no stop opens: a 500 says nothing about pace."""
    rows = database.insert_many(ROWS)
    half_open(bundle, database, fake)
    fake.on_submit(Behaviour(status=500))
    bundle.D()
    assert closed_for(database) == 0
    settle(bundle, database, fake, rows)


# An outage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(status=500, accept=False),
        Behaviour(drop="before"),
        Behaviour(status=502, body=b"x"),
    ],
    ids=["500", "drop", "502 page"],
)
def test_an_outage_is_five_different_rows_in_a_row(
    bundle: Bundle, database: Database, fake: FakeSume, behaviour: Behaviour
) -> None:
    """Over several runs and workers, and one acceptance between them begins the count anew."""
    bundle.set(SUBMIT_CONCURRENCY=1)
    rows = database.insert_many(5)
    fake.on_submit(behaviour, behaviour, behaviour, Behaviour(), behaviour)
    bundle.D()
    assert len(fake.posts()) == 5
    assert closed_for(database) == 0, "three, an acceptance, and one"
    rows += database.insert_many(20)
    fake.always_on_submit(behaviour)
    together(bundle, "submit", 2)
    sent = len(fake.posts()) - 5
    assert 4 <= sent <= 6, "closed after the fifth; two workers may have one under way each"
    assert 20 < closed_for(database) < 38
    assert closed_for(database, "reads") == 0
    bundle.D()
    assert len(fake.posts()) == 5 + sent
    assert bundle.metric("GateClosed") == 1
    (line,) = gate_lines(bundle, "gate_closed")
    assert line["reason"] == "outage"
    fake.behave()
    settle(bundle, database, fake, rows)


# The queue's capacity -----------------------------------------------------------------------------


def test_capacity_3_2_1_0(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """With little left one at a time, with nothing left not at all for 30 seconds."""
    bundle.set(SUBMIT_CONCURRENCY=3)
    rows = database.insert_many(ROWS)
    fake.options.latency = 0.05
    fake.on_submit(*(Behaviour(capacity=left) for left in (3, 2, 1, 0)))
    assert bundle.D()["stopped"] == 1
    posts = fake.posts()
    assert len(posts) == 4
    gaps = [two.at - one.at for one, two in pairwise(posts)]
    assert min(gaps) >= 0.05, "one after the other"
    assert 25 < closed_for(database) < 38
    (line,) = gate_lines(bundle, "gate_closed")
    assert (line["gate"], line["reason"]) == ("writes", "queue_capacity")
    assert bundle.metric("GateClosed") == 1
    bundle.D()
    assert len(fake.posts()) == 4
    fake.behave()
    settle(bundle, database, fake, rows)


# The kept pace ------------------------------------------------------------------------------------


def test_reads_and_writes_have_budgets_of_their_own(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """Writes that wait for tokens take none from reads, and the other way round."""
    pairs = bundle.accepted(30)
    rows = [row for row, _ in pairs] + database.insert_many(30)
    bundle.set(SUME_WRITES_PER_MINUTE=60, SUME_READS_PER_MINUTE=60, SUME_TIMEOUT_SECONDS=1)
    database.age("1 hour")
    before = len(fake.requests)
    calls = [
        bundle.start(name, 7.0, bundle.another()) for name in ("submit", "submit", "poll", "poll")
    ]
    for call in calls:
        call.result()
    new = fake.requests[before:]
    writes = [request.at for request in new if request.method == "POST"]
    reads = [request.at for request in new if request.method == "GET"]
    for instants in (writes, reads):
        span = instants[-1] - instants[0]
        assert 1 <= len(instants) <= 60 * 0.02 + span + 2
    bundle.set(SUME_WRITES_PER_MINUTE=60000, SUME_READS_PER_MINUTE=60000)
    settle(bundle, database, fake, rows)


def test_the_whole_behaviour_is_what_the_fake_was_told() -> None:
    """A guard for this file: a refusal makes no job, so that settling can count the bills."""
    for status in (401, 402, 403, 404, 429, 503, 302):
        assert not replace(Behaviour(), status=status).accepts
