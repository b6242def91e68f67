"""Infrastructure faults around the product: pooler, failover, secrets, clock, names."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from psycopg import sql

from local.fake_sume import Behaviour, FakeSume
from tests.reliability.servers import PGBOUNCER, POOL_SIZE, Pooler, pair, pause, pooler
from tests.reliability.traffic import Traffic, check_answers, settle
from tests.support.bundle import API_KEY, SECRET, Bundle, event_body
from tests.support.container import HandlerRaised, Nursery
from tests.support.invariants import HISTORY
from tests.support.postgres import (
    APP_ROLE,
    PASSWORD_GROUP,
    Database,
    create_database,
)
from tests.support.proxies import Proxy
from tests.support.secrets_manager import SecretsManager
from tests.support.waiting import slack, wait_until

ROWS = 20


def applied(traffic: Traffic) -> int:
    return len([answer for answer in traffic.answers if answer.status == 200])


def until_it_goes_on(traffic: Traffic) -> None:
    before = applied(traffic)
    wait_until(lambda: applied(traffic) > before, "deliveries are answered again", 30)


# PgBouncer ----------------------------------------------------------------------------------------


@pytest.fixture
def pool(database: Database) -> Iterator[Pooler]:
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed: pooling by transaction is not checked here")
    with pooler(database.server) as started:
        yield started


def sessions_end(database: Database, pool: Pooler) -> None:
    for _ in range(5):
        database.query(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", APP_ROLE
        )
        pause(0.1)


def pooler_restarts(database: Database, pool: Pooler) -> None:
    pool.stop()
    pause(0.3)
    pool.start()


@pytest.mark.parametrize("fault", [sessions_end, pooler_restarts])
def test_behind_pgbouncer_in_transaction_mode(
    bundle: Bundle,
    database: Database,
    fake: FakeSume,
    pool: Pooler,
    fault: Callable[[Database, Pooler], None],
) -> None:
    """Twelve containers on three server connections; a session is another at each statement."""
    fake.options.latency = (0.0, 0.05)
    rows = database.insert_many(ROWS)
    bundle.set(DATABASE_URL=pool.url(database), SUBMIT_CONCURRENCY=4, SUME_TIMEOUT_SECONDS=5)
    bundle.storage_down = True
    with Traffic(bundle, fake, submitters=4, deliverers=6) as traffic:
        wait_until(lambda: len(fake.jobs) >= 4, "the traffic runs")
        assert 1 <= len(database.sessions()) <= POOL_SIZE
        failed = len(traffic.failed)
        assert not failed, traffic.failed
        fault(database, pool)
        rows += database.insert_many(10)
        until_it_goes_on(traffic)
    check_answers(traffic.answers)
    settle(bundle, database, fake, rows)


def test_a_migration_through_pgbouncer(
    bundle: Bundle, empty_database: Database, pool: Pooler
) -> None:
    container = bundle.another(DATABASE_URL=pool.url(empty_database))
    assert container.invoke("migrate")["applied"]
    assert container.invoke("migrate")["applied"] == []


# A real failover ----------------------------------------------------------------------------------


def test_a_failover_to_a_standby(nursery: Nursery, fake: FakeSume) -> None:
    """The primary is killed, its address leads to a standby that is read-only, then promoted."""
    fake.options.latency = (0.0, 0.05)
    with pair() as (primary, standby):
        create_database(primary, "sume")
        before = Database(primary, "sume")
        with Proxy(("127.0.0.1", int(primary.parts()["port"]))) as address:
            bundle = Bundle(nursery, before, fake)
            bundle.set(
                DATABASE_URL=f"postgresql://{APP_ROLE}@127.0.0.1:{address.port}/sume",
                SUBMIT_CONCURRENCY=4,
                SUME_TIMEOUT_SECONDS=5,
            )
            bundle.another().invoke("migrate")
            before.execute(HISTORY)
            # The tests' servers commit asynchronously; a failover may then forget the last ones.
            before.execute("alter database sume set synchronous_commit = on")
            rows = before.insert_many(ROWS)
            bundle.storage_down = True
            try:
                with Traffic(bundle, fake) as traffic:
                    wait_until(lambda: len(fake.jobs) >= 4, "the traffic runs")
                    before.close()
                    primary.crash()
                    address.target = ("127.0.0.1", int(standby.parts()["port"]))
                    address.reset_all()
                    pause(0.5)
                    assert any(answer.status == 503 for answer in traffic.answers)
                    standby.promote()
                    until_it_goes_on(traffic)
                check_answers(traffic.answers)
                after = Database(standby, "sume")
                bundle.database = after
                rows += after.insert_many(3)
                settle(bundle, after, fake, rows)
                assert "25006" in bundle.output(), "the standby was met while it was read-only"
                after.close()
            finally:
                bundle.close()


# Secrets ------------------------------------------------------------------------------------------


@pytest.fixture
def rotating(database: Database) -> Iterator[Callable[[str], None]]:
    """Call it to give the login `sume_rotating` another password and to end its sessions."""
    name = sql.Identifier("sume_rotating")
    with database.server.connect() as admin:
        admin.execute(sql.SQL("drop role if exists {}").format(name))
        admin.execute(
            sql.SQL("create role {} login in role {}, {}").format(
                name, sql.Identifier(APP_ROLE), sql.Identifier(PASSWORD_GROUP)
            )
        )

        def end_sessions() -> bool:
            return not admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where usename = 'sume_rotating'"
            ).fetchall()

        def rotate(password: str) -> None:
            admin.execute(sql.SQL("alter role {} password {}").format(name, sql.Literal(password)))
            end_sessions()

        yield rotate
        wait_until(end_sessions, "the role's sessions end")
        admin.execute(sql.SQL("drop role {}").format(name))


def secret(database: Database, password: str) -> str:
    server = database.server.parts()
    return json.dumps(
        {
            "host": server["host"],
            "port": server["port"],
            "dbname": database.name,
            "username": "sume_rotating",
            "password": password,
        }
    )


def test_rotation_under_load_and_a_store_that_is_away(
    bundle: Bundle, database: Database, fake: FakeSume, rotating: Callable[[str], None]
) -> None:
    with SecretsManager() as store:
        rotating("pass-word-0")
        store.secrets |= {
            "database": secret(database, "pass-word-0"),
            "key": API_KEY,
            "signing": SECRET,
        }
        bundle.set(
            DATABASE_URL=None,
            DATABASE_SECRET_ARN=store.arn("database"),
            SUME_API_KEY=None,
            SUME_API_KEY_SECRET_ARN=store.arn("key"),
            SUME_WEBHOOK_SECRETS=None,
            SUME_WEBHOOK_SECRETS_ARN=store.arn("signing"),
            AWS_ENDPOINT_URL=store.url,
            SUBMIT_CONCURRENCY=4,
            SUME_TIMEOUT_SECONDS=5,
        )
        fake.options.latency = (0.0, 0.05)
        rows = database.insert_many(ROWS)
        bundle.storage_down = True
        with Traffic(bundle, fake) as traffic:
            wait_until(lambda: len(fake.jobs) >= 4, "the traffic runs", 20)
            # The store learns of it a moment after the database, as it happens.
            rotating("pass-word-1")
            pause(0.2)
            store.secrets["database"] = secret(database, "pass-word-1")
            rows += database.insert_many(4)
            until_it_goes_on(traffic)
            store.unreachable = True
            # Warm containers have what they need; a cold one says so, in time, and claims nothing.
            rows += database.insert_many(4)
            until_it_goes_on(traffic)
            claimed = bundle.metric("Claimed")
            cold = bundle.another()
            started = time.monotonic()
            answer = bundle.W(event_body("job_x"), container=cold)
            assert (answer.status, answer.seconds < 9.0 * slack()) == (503, True)
            with pytest.raises(HandlerRaised, match="key-AbCdEf"):
                cold.start("submit", None, 40.0).result()
            assert time.monotonic() - started < 20.0 * slack()
            assert claimed <= bundle.metric("Claimed")
            store.unreachable = False
        check_answers(traffic.answers)
        assert "pass-word" not in bundle.output()
        assert API_KEY not in bundle.output()
        assert SECRET not in bundle.output()
        bundle.set(
            DATABASE_SECRET_ARN=None,
            DATABASE_URL=database.url,
            SUME_API_KEY=API_KEY,
            SUME_API_KEY_SECRET_ARN=None,
            SUME_WEBHOOK_SECRETS=SECRET,
            SUME_WEBHOOK_SECRETS_ARN=None,
        )
        settle(bundle, database, fake, rows)


# The clock ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [1800.0, -1800.0], ids=["ahead", "behind"])
def test_a_process_clock_that_is_half_an_hour_wrong(
    bundle: Bundle, database: Database, fake: FakeSume, shift: float
) -> None:
    """Only the webhook's window looks at it: deliveries are refused, polling carries the work."""
    rows = database.insert_many(6)
    fake.on_submit(Behaviour(status=429, headers={"Retry-After": _in_seconds(60)}))
    for name in ("submit", "poll", "reap", "webhook"):
        bundle.warm(name).shift_clock(shift)
    bundle.D()
    closed = database.one(
        "select extract(epoch from closed_until - now())::float from pace_gate"
        " where name = 'writes'"
    )
    assert 50 < closed < 80, "a date counts from the answer's own Date"
    bundle.D()
    assert len(fake.posts()) == 1
    database.age("81 seconds")
    bundle.D()
    bundle.D()
    assert database.statuses() == {"submitted": 6}
    bundle.R()
    assert database.statuses() == {"submitted": 6}, "no claim is stale for its clock"
    job = database.row(rows[0])["sume_job_id"]
    assert bundle.W(event_body(job), good=False).status == 401
    assert not database.events()
    for known in fake.jobs:
        fake.set_status(known, "completed", webhook=False)
    bundle.poll_now("1 minute")
    assert database.state(rows[0]) == "done"
    bundle.warm("webhook").shift_clock(0)
    assert bundle.W(event_body(job)).outcome == "noop"
    settle(bundle, database, fake, rows)


def _in_seconds(seconds: float) -> str:
    import email.utils

    return email.utils.formatdate(time.time() + seconds, usegmt=True)


# Names --------------------------------------------------------------------------------------------


def test_sume_s_name_does_not_resolve_for_a_while(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """Nothing left, so nothing is counted: neither an attempt nor a send, and no gate closes."""
    rows = database.insert_many(8)
    bundle.set(SUME_BASE_URL="http://sume.invalid", SUME_TIMEOUT_SECONDS=2)
    for _ in range(3):
        bundle.submit_later("30 seconds")
    assert {(row["attempts"], row["sends"]) for row in database.rows()} == {(0, 0)}
    assert bundle.logs("ERROR")
    bundle.set(SUME_BASE_URL=fake.url, SUME_TIMEOUT_SECONDS=None)
    bundle.submit_later("30 seconds")
    job = database.row(rows[0])["sume_job_id"]
    bundle.set(SUME_BASE_URL="http://sume.invalid", SUME_TIMEOUT_SECONDS=2)
    bundle.poll_now("1 minute")
    assert database.job(job)["status"] == "queued", "a failed read says nothing about the job"
    bundle.set(SUME_BASE_URL=fake.url, SUME_TIMEOUT_SECONDS=None)
    settle(bundle, database, fake, rows)
