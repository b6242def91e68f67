"""Pitfalls of pace: account errors, Retry-After, stampedes, the shared budget, queue capacity."""

from __future__ import annotations

import email.utils
import itertools
import time

import pytest

from local.fake_sume import Behaviour, FakeSume
from tests.support.bundle import Bundle
from tests.support.postgres import Database
from tests.support.waiting import slack

CONCURRENCY = 16


def together(
    bundle: Bundle, name: str, count: int, remaining: float = 30.0
) -> list[dict[str, object]]:
    """The function in so many processes at the same moment."""
    containers = [bundle.another() for _ in range(count)]
    calls = [bundle.start(name, remaining, container) for container in containers]
    results = [call.result() for call in calls]
    for container in containers:
        container.close()
    return results


# ------------------------------------------------------------------------------------------- P15


@pytest.mark.parametrize("status", [401, 402, 403])
def test_p15_account_errors_stop_the_queue_and_fail_nothing(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    database.insert_many(50)
    fake.always_on_submit(Behaviour(status=status))
    result = bundle.D()
    assert result["stopped"] == 1
    assert 1 <= len(fake.posts()) <= CONCURRENCY
    first = len(fake.posts())
    # Closed for five minutes at first.
    bundle.D()
    database.age("4 minutes 50 seconds")
    bundle.D()
    assert len(fake.posts()) == first
    # Then one single probe, whoever asks; and closed for longer.
    database.age("7 minutes")
    together(bundle, "submit", 3)
    assert len(fake.posts()) == first + 1
    database.age("9 minutes")
    bundle.D()
    assert len(fake.posts()) == first + 1
    database.age("6 minutes")
    bundle.D()
    assert len(fake.posts()) == first + 2
    for row in database.rows():
        assert (row["status"], row["attempts"]) == ("pending", 0)
    assert bundle.metric("GateClosed") >= 1
    assert bundle.logs("ERROR")
    keys = [post.key for post in fake.posts()]
    assert keys[-1] != keys[-2], "the probe is not always the same row"
    fake.behave()
    database.age("20 minutes")
    for _ in range(4):
        bundle.D()
    assert database.statuses() == {"submitted": 50}
    assert fake.billed == 50


def test_p15_the_stop_never_grows_past_a_quarter_of_an_hour(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    database.insert_many(3)
    fake.always_on_submit(Behaviour(status=402))
    for _ in range(6):
        bundle.submit_later("20 minutes")
    posts = len(fake.posts())
    database.age("14 minutes")
    bundle.D()
    assert len(fake.posts()) == posts
    # The asked quarter of an hour, and what is put on top to spread the come-backs.
    database.age("5 minutes")
    bundle.D()
    assert len(fake.posts()) == posts + 1


def test_p15_a_dead_probe_does_not_hold_the_gate(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling: the worker that probes is killed."""
    database.insert_many(5)
    fake.on_submit(Behaviour(status=402))
    bundle.set(SUBMIT_CONCURRENCY=1)
    bundle.D()
    database.age("7 minutes")
    fake.on_submit(Behaviour(status=503, accept=False, call=lambda _: bundle.warm("submit").kill()))
    assert bundle.start("submit").wait().get("died")
    database.age("1 minute")
    bundle.D()
    assert database.statuses()["submitted"] >= 4, "the probe's slot expired with its HTTP timeout"


def test_p15_accepted_ones_in_a_stopped_batch_are_kept(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling: the balance ends in the middle of a batch."""
    fake.options.credits = 7
    database.insert_many(40)
    assert bundle.D()["stopped"] == 1
    assert fake.billed == 7
    assert database.statuses() == {"pending": 33, "submitted": 7}
    for row in database.rows():
        if row["status"] == "pending":
            assert (row["attempts"], row["unknown_since"]) == (0, None)
    fake.options.credits = None
    for _ in range(3):
        bundle.submit_later()
    assert database.statuses() == {"submitted": 40}


def test_p15_an_account_error_stops_reads_too(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.accepted(3)
    database.insert()
    fake.on_submit(Behaviour(status=402))
    database.age("1 hour")
    bundle.D()
    sent = len(fake.requests)
    bundle.P()
    assert len(fake.requests) == sent


# ------------------------------------------------------------------------------------------- P23

FOREVER = "Fri, 31 Dec 9999 23:59:59 GMT"


def date(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


# The header, the longest time at which nothing may be sent yet, and the time at which it must be.
RETRY_AFTER: dict[str, tuple[str | None, int, int]] = {
    "seconds": ("7", 6, 60),
    "zero": ("0", 0, 60),
    "missing": (None, 25, 60),
    "date": ("date+90", 80, 150),
    "past date": ("date-90", 0, 60),
    "for ever": (FOREVER, 14 * 60, 20 * 60),
    "huge": ("99999999999999", 14 * 60, 20 * 60),
    "longer than an int": ("9" * 400, 14 * 60, 20 * 60),
    "negative": ("-5", 0, 60),
    "fraction": ("1.5", 0, 60),
    "infinite": ("inf", 25, 60),
    "nan": ("nan", 25, 60),
    "formula": ("rand(30),add(30)", 25, 60),
    "empty": ("", 25, 60),
    "exponent": ("1e3", 0, 20 * 60),
    "full width": ("\uff17", 0, 60),
    "half a date": ("Fri, 31 Dec", 25, 60),
    "impossible date": ("Fri, 99 Foo 2030 25:61:61 GMT", 25, 60),
}


@pytest.mark.parametrize(
    ("kind", "status"),
    [(kind, 429) for kind in RETRY_AFTER]
    + [(kind, 503) for kind in ("seconds", "missing", "date", "for ever", "formula")],
)
def test_p23_retry_after(
    bundle: Bundle, database: Database, fake: FakeSume, kind: str, status: int
) -> None:
    header, quiet, due = RETRY_AFTER[kind]
    if header is not None and header.startswith("date"):
        header = date(float(header[4:]))
    if header is not None and not header.isascii():
        header = header.encode().decode("latin-1")
    row = database.insert()
    fake.on_submit(
        Behaviour(status=status, headers={} if header is None else {"Retry-After": header})
    )
    running = bundle.start("submit")
    assert running.result()["stopped"] == 1
    assert running.seconds is not None
    assert running.seconds < 3.0 * slack(), "it does not sleep inside the function"
    after = database.row(row)
    assert (after["status"], after["attempts"]) == ("pending", 0)
    if quiet:
        bundle.D()
        database.age(f"{quiet} seconds")
        bundle.D()
        assert len(fake.posts()) == 1, "not before the time that was asked"
    database.age(f"{due - quiet} seconds")
    bundle.D()
    assert database.row(row)["status"] == "submitted"
    assert fake.billed == 1


def test_p23_retry_after_on_a_read(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """The sibling: the same header on a poll; nonsense raises nothing, the sweep goes on later."""
    _, job = bundle.job()
    for kind, (header, _, _) in RETRY_AFTER.items():
        if header is None or not header.isascii():
            continue
        value = date(float(header[4:])) if header.startswith("date") else header
        fake.on_read(Behaviour(status=429, headers={"Retry-After": value}))
        before = len(fake.requests)
        bundle.poll_now()
        assert len(fake.requests) == before + 1, kind
        assert database.job(job)["status"] == "queued"
    fake.set_status(job, "completed")
    bundle.poll_now()
    assert database.job(job)["status"] == "completed"


# ------------------------------------------------------------------------------------------- P24


def claimed_and_lost(bundle: Bundle, database: Database, fake: FakeSume, count: int) -> None:
    """So many rows whose claims are stale, each with a distinct claim of its own."""
    database.insert_many(count)
    bundle.set(SUBMIT_CONCURRENCY=64)
    fake.always_on_submit(
        Behaviour(status=503, accept=False, call=lambda _: bundle.warm("submit").kill())
    )
    for _ in range(200):
        waiting = database.statuses().get("pending", 0)
        if not waiting:
            break
        bundle.start("submit").wait()
    assert database.statuses() == {"submitting": count}
    bundle.set(SUBMIT_CONCURRENCY=None)
    fake.behave()


def test_p24_reaped_rows_do_not_come_back_in_the_same_second(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    claimed_and_lost(bundle, database, fake, 50)
    database.age("20 minutes")
    for _ in range(20):
        bundle.R()
        if database.statuses() == {"pending": 50}:
            break
    waits = [
        row["wait"]
        for row in database.query(
            "select extract(epoch from run_after - now())::float wait from render_jobs order by 1"
        )
    ]
    assert len(waits) == 50
    assert waits[-1] <= 10.5
    assert waits[-1] - waits[0] > 2.0, "spread over 5 to 10 seconds"
    assert len({round(wait, 1) for wait in waits}) > 15


def test_p24_a_shared_retry_after_is_no_stampede(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    database.insert_many(300)
    fake.always_on_submit(
        Behaviour(status=429, headers={"Retry-After": "30"}, code="rate_limit_exceeded")
    )
    together(bundle, "submit", 5)
    first = len(fake.posts())
    assert first <= 5 * CONCURRENCY
    together(bundle, "submit", 5)
    database.age("29 seconds")
    together(bundle, "submit", 5)
    assert len(fake.posts()) == first, "closed for everybody, and never earlier than asked"
    database.age("15 seconds")
    together(bundle, "submit", 5)
    assert len(fake.posts()) == first + 1, "one probe for all of them"
    fake.behave()
    database.age("1 minute")
    for _ in range(8):
        together(bundle, "submit", 5)
        database.age("1 minute")
    assert database.statuses() == {"submitted": 300}
    refused = [post for post in fake.posts() if post.status == 429]
    assert len(refused) == first + 1


# ------------------------------------------------------------------------------------------- P25


@pytest.mark.slow
def test_p25_the_budget_is_shared_by_all_processes(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """Ten processes at once, for two minutes of the schedule; between the runs time is moved."""
    budget = 120
    fake.options.writes_per_minute = budget
    database.insert_many(600)
    bundle.set(SUME_WRITES_PER_MINUTE=budget, SUME_TIMEOUT_SECONDS=1)
    moved, instants = 0.0, []
    seen = 0
    for _ in range(2):
        together(bundle, "submit", 10, remaining=8.5)
        posts = fake.posts()
        instants += [post.at + moved for post in posts[seen:]]
        seen = len(posts)
        database.age("52 seconds")
        moved += 52
    assert len(instants) >= 2 * 2
    instants.sort()
    for index, start in enumerate(instants):
        inside = [instant for instant in instants[index:] if instant < start + 60]
        assert len(inside) <= budget
    # In a short window, ten times the budget would show at once.
    for index, start in enumerate(instants):
        inside = [instant for instant in instants[index:] if instant < start + 2]
        assert len(inside) <= budget * 0.05 + 2 * budget / 60 + 2, (
            "each process had a budget of its own"
        )
    assert "submitting" not in database.statuses()
    assert not [post for post in fake.posts() if post.status == 429], "nobody is ever refused"


@pytest.mark.slow
def test_p25_the_budget_is_used(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """At least 95 % on average while there is work; three processes, 1,200 a minute."""
    budget = 1200
    database.insert_many(400)
    bundle.set(SUME_WRITES_PER_MINUTE=budget, SUME_TIMEOUT_SECONDS=1)
    together(bundle, "submit", 3, remaining=12.0)
    instants = [post.at for post in fake.posts()]
    start, end = instants[0] + 1.0, instants[0] + 5.0
    inside = [instant for instant in instants if start <= instant < end]
    assert len(inside) >= 0.9 * budget / 60 * 4, len(inside)
    assert len(inside) <= budget * 0.05 + budget / 60 * 4 + 2, len(inside)


@pytest.mark.slow
def test_p25_reads_have_a_budget_of_their_own(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.accepted(100)
    bundle.set(SUME_READS_PER_MINUTE=120, SUME_TIMEOUT_SECONDS=1)
    database.age("1 hour")
    before = len(fake.requests)
    together(bundle, "poll", 4, remaining=9.0)
    instants = [request.at for request in fake.requests[before:]]
    assert instants
    span = instants[-1] - instants[0]
    assert len(instants) <= 120 * 0.05 + 2 * span + 4
    assert len({request.path for request in fake.requests[before:]}) == len(instants), (
        "overlapping polls never read one job twice"
    )


def test_p25_a_locked_budget_row_does_not_hang_or_raise(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The limiter's own row is not a lock that stops everything."""
    bundle.job()
    database.insert()
    tables = database.pace_tables()
    assert tables
    with database.session(user=None) as other:
        for table in tables:
            other.execute(f"select 1 from {table} for update")
        running = bundle.start("submit", remaining=30.0)
        running.result()
        other.rollback()
    assert running.seconds is not None
    assert running.seconds < 15.0 * slack()
    for _ in range(2):
        bundle.D()
    assert database.statuses() == {"submitted": 2}


# ------------------------------------------------------------------------------------------- P56


@pytest.mark.parametrize("place", ["data", "root", "job"])
def test_p56_the_run_stops_where_the_capacity_ends(
    bundle: Bundle, database: Database, fake: FakeSume, place: str
) -> None:
    bundle.set(SUBMIT_CONCURRENCY=1)
    database.insert_many(20)
    fake.on_submit(*(Behaviour(capacity=left, capacity_place=place) for left in (3, 2, 1, 0)))
    fake.always_on_submit(Behaviour(status=429, code="queue_full"))
    result = bundle.D()
    assert result["submitted"] == 4
    assert result["stopped"] == 1
    assert len(fake.posts()) == 4, "nobody ran into queue_full"
    assert database.statuses() == {"pending": 16, "submitted": 4}
    assert all(row["attempts"] == 0 for row in database.rows() if row["status"] == "pending")
    bundle.D()
    assert len(fake.posts()) == 4, "closed for 30 s"
    database.age("45 seconds")
    bundle.D()
    refused = [post for post in fake.posts() if post.status == 429]
    assert len(refused) == 1, "at most one queue_full a run"
    assert database.statuses() == {"pending": 16, "submitted": 4}
    fake.behave()
    for _ in range(3):
        bundle.submit_later("2 minutes")
    assert database.statuses() == {"submitted": 20}


def test_p56_odd_capacities_mean_unknown(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    odd: list[object] = ["missing", None, "2", "lots", 2.5, [], {}, True, 2**31, 2**70, 10**30]
    for count, value in enumerate(odd, 1):
        database.insert_many(20)
        fake.always_on_submit(Behaviour(capacity=value))
        bundle.D()
        assert database.statuses() == {"submitted": 20 * count}, value


@pytest.mark.parametrize("value", [0, -1, -1000])
def test_p56_no_capacity_closes_the_gate(
    bundle: Bundle, database: Database, fake: FakeSume, value: int
) -> None:
    rows = database.insert_many(40)
    fake.always_on_submit(Behaviour(capacity=value))
    assert bundle.D()["stopped"] == 1
    assert len(fake.posts()) <= CONCURRENCY
    fake.behave()
    for _ in range(3):
        bundle.submit_later("2 minutes")
    assert database.statuses() == {"submitted": len(rows)}


def test_p56_near_the_end_one_at_a_time(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    database.insert_many(30)
    fake.always_on_submit(Behaviour(capacity=10, delay=0.05))
    bundle.D()
    seen = len(fake.posts())
    database.insert_many(6)
    bundle.D()
    later = [post.at for post in fake.posts()[max(seen, CONCURRENCY) :]]
    gaps = [after - before for before, after in itertools.pairwise(later)]
    assert gaps, "some were still to be sent"
    assert min(gaps) >= 0.045, "with less capacity than workers, one at a time"


def test_p56_queue_full_from_the_first(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    fake.options.queue_capacity = 10
    database.insert_many(40)
    bundle.D()
    assert fake.billed == 10
    refused = [post for post in fake.posts() if post.status == 429]
    assert len(refused) <= CONCURRENCY
    assert database.statuses() == {"pending": 30, "submitted": 10}
    assert all(row["attempts"] == 0 for row in database.rows() if row["status"] == "pending")


# ------------------------------------------------------------------------------------------- P58


@pytest.mark.parametrize("status", [429, 503, 401, 402, 403, 500])
def test_p58_a_refused_run_returns_normally(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    """What raises is run again twice by Lambda. Three runs of one event; the metrics tell."""
    database.insert_many(60)
    fake.always_on_submit(Behaviour(status=status, accept=False))
    for _ in range(3):
        result = bundle.D()
        assert isinstance(result, dict)
    assert len(fake.posts()) <= 2 * CONCURRENCY
    assert bundle.metric("Requeued") >= 1
    assert bundle.metric("GateClosed") >= 1
    assert set(result) >= {"claimed", "submitted", "requeued", "failed", "stopped"}


@pytest.mark.parametrize("name", ["submit", "reap", "poll"])
def test_p58_any_event_will_do(
    bundle: Bundle, database: Database, fake: FakeSume, name: str
) -> None:
    """The sibling: a console's test event, a Scheduler payload, nothing at all."""
    database.insert()
    container = bundle.another()
    for event in ({}, {"key1": "value1"}, [], "x", 7, {"Records": []}, {"detail": None}):
        result = container.invoke(name, event)
        assert isinstance(result, dict)


def test_p58_an_outage_of_sume_closes_the_gate(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """Five ambiguous answers in a row from different rows, no acceptance between: like a 503."""
    database.insert_many(60)
    bundle.set(SUBMIT_CONCURRENCY=1)
    fake.always_on_submit(Behaviour(status=500, accept=False))
    assert bundle.D()["stopped"] == 1
    assert len(fake.posts()) == 5
    bundle.D()
    assert len(fake.posts()) == 5
    fake.behave()
    for _ in range(3):
        bundle.submit_later("2 minutes")
    assert database.statuses() == {"submitted": 60}


def test_p58_counts_of_every_function(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    bundle.job()
    assert set(bundle.R()) >= {"reaped", "expired"}
    assert set(bundle.P()) >= {"polled", "changed", "results"}
    assert bundle.metric("Claimed") == 1
    assert bundle.metric("Submitted") == 1
