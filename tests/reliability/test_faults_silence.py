"""A database that acknowledges every packet and never answers: nothing ends by itself there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
from sume_jobs import connection
from sume_jobs.connection import Database as Store
from sume_jobs.connection import DatabaseUnavailable
from sume_jobs.secrets import Secrets
from sume_jobs.settings import Settings

from local.fake_sume import Behaviour, FakeSume
from tests.reliability.traffic import WEBHOOK_SECONDS, Traffic, check_answers, settle
from tests.support.bundle import Bundle, event_body
from tests.support.postgres import Database
from tests.support.proxies import Silencer
from tests.support.waiting import slack, wait_until


@pytest.fixture
def proxy(bundle: Bundle, database: Database) -> Iterator[Silencer]:
    """Between the product and PostgreSQL."""
    server = database.server.parts()
    with Silencer((str(server["host"]), int(server["port"]))) as proxy:
        url = database.url.replace(f":{server['port']}/", f":{proxy.port}/")
        bundle.set(DATABASE_URL=url, SUME_TIMEOUT_SECONDS=1)
        yield proxy


def settle_directly(bundle: Bundle, database: Database, fake: FakeSume, rows: list[int]) -> None:
    """Settle with new connections, which nobody has to give up first."""
    bundle.set(DATABASE_URL=database.url, FOLLOW_UP_QUEUE_URL=None)
    settle(bundle, database, fake, rows)


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_webhook_is_503_in_time_and_applied_later(
    bundle: Bundle, database: Database, fake: FakeSume, proxy: Silencer, warm: bool
) -> None:
    (row, job), (other_row, other) = bundle.accepted(2)
    for each in (job, other):
        fake.set_status(each, "completed", webhook=False)
    if warm:
        assert bundle.W(event_body(other)).outcome == "applied"
    proxy.fall_silent()
    bundle.storage_down = True
    answer = bundle.W(event_body(job))
    assert answer.status == 503
    assert answer.seconds < WEBHOOK_SECONDS * slack()
    proxy.speak()
    bundle.storage_down = False
    assert bundle.W(event_body(job)).outcome in ("applied", "duplicate")
    settle_directly(bundle, database, fake, [row, other_row])


def test_a_webhook_is_applied_where_only_its_own_connection_is_silent(
    bundle: Bundle, database: Database, fake: FakeSume, proxy: Silencer
) -> None:
    (row, job), (other_row, other) = bundle.accepted(2)
    for each in (job, other):
        fake.set_status(each, "completed", webhook=False)
    assert bundle.W(event_body(other)).outcome == "applied"
    proxy.fall_silent(newcomers=False)
    assert bundle.W(event_body(job)).outcome == "applied"
    settle_directly(bundle, database, fake, [row, other_row])


@pytest.mark.parametrize("name", ["submit", "poll", "reap", "dispatch"])
def test_a_schedule_ends_within_its_time(
    bundle: Bundle, database: Database, fake: FakeSume, proxy: Silencer, name: str
) -> None:
    """It fails by itself before Lambda would end it, whatever it was about to ask."""
    bundle.set(FOLLOW_UP_QUEUE_URL="https://sqs.eu-central-1.amazonaws.com/1/follow-ups")
    rows = [row for row, _ in bundle.accepted()]
    bundle.start(name).result()
    rows += database.insert_many(2)
    database.age("1 minute")
    proxy.fall_silent()
    remaining = 6.0
    call = bundle.start(name, remaining)
    reply = call.wait()
    assert reply["kind"] == "DatabaseUnavailable"
    assert call.seconds is not None
    assert call.seconds < remaining * slack()
    proxy.speak()
    settle_directly(bundle, database, fake, rows)


def test_an_answer_that_cannot_be_recorded_is_not_lost(
    bundle: Bundle, database: Database, fake: FakeSume, proxy: Silencer
) -> None:
    """The silence begins while Sume answers; it is over for the connection that comes next."""
    rows = database.insert_many(1)
    fake.on_submit(Behaviour(call=lambda _: proxy.fall_silent(newcomers=False)))
    assert bundle.D(remaining=5.5)["submitted"] == 1
    settle_directly(bundle, database, fake, rows)


def test_the_promises_hold_after_a_silence_under_traffic(
    bundle: Bundle, database: Database, fake: FakeSume, proxy: Silencer
) -> None:
    rows = database.insert_many(20)
    bundle.storage_down = True
    fake.options.latency = (0.0, 0.1)
    with Traffic(bundle, fake, remaining=5.0) as traffic:
        wait_until(lambda: len(fake.jobs) >= 4, "the traffic runs")
        proxy.fall_silent()
        time.sleep(1.0)
        proxy.speak()
        delivered = len([answer for answer in traffic.answers if answer.status == 200])
        wait_until(
            lambda: len([a for a in traffic.answers if a.status == 200]) > delivered,
            "deliveries are answered again",
            30,
        )
    check_answers(traffic.answers)
    settle_directly(bundle, database, fake, rows)


def test_a_statement_waits_as_long_as_its_caller_can(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """22 s with time enough; else so that a second try, or at least an answer, is possible."""
    settings = Settings(database_url=database.url)
    store = Store(settings, Secrets(settings))
    waits = {}
    for left in (float("inf"), 60.0, 10.0, 4.8, 4.0, 0.2, -3.0):
        store.seconds_left = partial(float, left)
        waits[left] = round(store._patience(), 1)
    assert waits == {
        float("inf"): 22.0, 60.0: 22.0, 10.0: 7.5, 4.8: 2.3, 4.0: 3.5, 0.2: 0.5, -3.0: 0.5,
    }  # fmt: skip
    monkeypatch.setattr(connection, "LAST_STATEMENT", 0.05)
    store.seconds_left = lambda: 0.1
    with pytest.raises(DatabaseUnavailable):
        store.run("select pg_sleep(60)")
    store.seconds_left = lambda: 60.0
    assert store.run("select 1 as one") == [{"one": 1}]
    store.close()
