"""Infrastructure faults made for real at the database, under load; then the four promises.

CI keeps each fault short. `RELIABILITY_SECONDS=60 pytest tests/reliability/test_faults_database.py`
lets an absence and a held lock last for a minute.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from local.fake_sume import FakeSume
from tests.reliability.cloud import Cloud
from tests.reliability.traffic import Around, Traffic, around, check_answers, settle
from tests.support.bundle import Bundle, event_body
from tests.support.postgres import APP_ROLE, Database, Server
from tests.support.proxies import Proxy
from tests.support.waiting import slack, wait_until

ROWS = 20
LONG = float(os.environ.get("RELIABILITY_SECONDS", "0"))
ABSENCE = LONG or 1.0
LOCKED = LONG or 2.6
# The deadline of a test that lasts longer than CI's.
pytestmark = pytest.mark.timeout(180 + 3 * LONG)


def alter(database: Database, statement: str) -> None:
    """Change a setting of the product's role or of its database."""
    with database.server.connect() as admin:
        admin.execute(
            sql.SQL(statement).format(
                role=sql.Identifier(APP_ROLE), database=sql.Identifier(database.name)
            )
        )


def own_server(database: Database) -> Server:
    if not database.server.embedded:
        pytest.skip("the server is not ours to stop")
    return database.server


@contextlib.contextmanager
def down(database: Database, how: signal.Signals) -> Iterator[None]:
    """The server is away: nobody listens on its port."""
    server = own_server(database)
    database.close()
    assert server._process is not None
    server._process.send_signal(how)
    server._process.wait(30)
    try:
        yield
    finally:
        server._run()


def restart(database: Database) -> None:
    with down(database, signal.SIGINT):
        pass


def crash(database: Database) -> None:
    with down(database, signal.SIGQUIT):
        pass


def absence(database: Database) -> None:
    with down(database, signal.SIGINT):
        time.sleep(ABSENCE)


def terminated_at_random(database: Database) -> None:
    chance = random.Random(4)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        pids = [session["pid"] for session in database.sessions()]
        for pid in chance.sample(pids, min(len(pids), 2)):
            database.query("select pg_terminate_backend(%s)", pid)
        time.sleep(0.03)


def end_sessions(database: Database) -> None:
    """End the product's sessions; others may begin at once, for the traffic goes on."""
    for session in database.sessions():
        database.query("select pg_terminate_backend(%s)", session["pid"])


def read_only(database: Database) -> None:
    database.query("select 1")
    alter(database, "alter database {database} set default_transaction_read_only = on")
    end_sessions(database)
    time.sleep(0.6)
    # Nothing is terminated now: sessions that were opened meanwhile must go by themselves.
    alter(database, "alter database {database} reset default_transaction_read_only")


def too_many_connections(database: Database) -> None:
    alter(database, "alter role {role} connection limit 1")
    try:
        database.query(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", APP_ROLE
        )
        time.sleep(0.8)
    finally:
        alter(database, "alter role {role} connection limit -1")


def statement_timeouts(database: Database) -> None:
    timeouts = "alter role {role} in database {database} set statement_timeout = "
    alter(database, timeouts + "'3ms'")
    end_sessions(database)
    time.sleep(0.8)
    alter(database, timeouts + "'20s'")
    # Its own sessions do not end by a timeout, so they would keep this one.
    end_sessions(database)


def rows_locked(database: Database) -> None:
    """Somebody's transaction holds every row, longer than the product waits for a lock (2 s)."""
    with database.session(user=None) as other:
        for table in ("pace_budget", "pace_gate", "render_jobs", "gen_job"):
            other.execute(f"select from {table} for update")
        time.sleep(LOCKED)


def table_locked(database: Database) -> None:
    """A migration of somebody's: the whole table, also against reading."""
    with database.session(user=None) as other:
        other.execute("lock table gen_job in access exclusive mode")
        time.sleep(LOCKED)


FAULTS: dict[str, Callable[[Database], None]] = {
    fault.__name__: fault
    for fault in (
        restart,
        crash,
        absence,
        terminated_at_random,
        read_only,
        too_many_connections,
        statement_timeouts,
        rows_locked,
        table_locked,
    )
}


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """What the functions call of AWS."""
    cloud = Cloud()
    yield cloud
    cloud.close()


# With dispatch, the archive and clients of the API at work as well.
WITH_ALL_FUNCTIONS = ("restart", "absence", "read_only", "terminated_at_random")


@pytest.mark.parametrize("name", FAULTS)
def test_the_promises_hold_after(
    bundle: Bundle, database: Database, fake: FakeSume, cloud: Cloud, name: str
) -> None:
    # The tests' server commits asynchronously for speed; a crash may then forget the last ones.
    alter(database, "alter database {database} set synchronous_commit = on")
    # Slow enough that the fault meets requests under way.
    fake.options.latency = (0.0, 0.1)
    rows = database.insert_many(ROWS)
    bundle.set(SUBMIT_CONCURRENCY=4, SUME_TIMEOUT_SECONDS=5)
    bundle.storage_down = True
    if name not in WITH_ALL_FUNCTIONS:
        _meet(bundle, database, fake, name, rows)
        settle(bundle, database, fake, rows)
        return
    bundle.set(**around(cloud))
    with Around(bundle, cloud) as others:
        wait_until(lambda: others.told, "the API answers", 30)
        _meet(bundle, database, fake, name, rows)
    settle(bundle, database, fake, sorted([*rows, *others.told.values()]))
    others.finish(database)


def _meet(bundle: Bundle, database: Database, fake: FakeSume, name: str, rows: list[int]) -> None:
    """Let the fault happen under traffic, and more rows come in afterwards."""
    with Traffic(bundle, fake) as traffic:
        wait_until(lambda: len(fake.jobs) >= 4, "the traffic runs")
        FAULTS[name](database)
        rows += database.insert_many(5)
        delivered = len([answer for answer in traffic.answers if answer.status == 200])
        wait_until(
            lambda: len([a for a in traffic.answers if a.status == 200]) > delivered,
            "deliveries are answered again",
            30,
        )
    check_answers(traffic.answers)


def test_a_webhook_while_the_database_is_away_is_503_in_time_and_not_lost(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    pairs = bundle.accepted(6)
    for _, job in pairs:
        fake.set_status(job, "completed", webhook=False)
    bundle.storage_down = True
    assert bundle.W(event_body(pairs[0][1])).status == 200
    end = time.monotonic() + ABSENCE
    with down(database, signal.SIGINT):
        while True:
            for _, job in pairs[1:]:
                answer = bundle.W(event_body(job))
                assert answer.status == 503
                assert answer.seconds < 5.0 * slack()
            forged = bundle.W(event_body(pairs[1][1]), secret="wrong")
            assert forged.status == 401, "verified before any database access"
            if time.monotonic() > end:
                break
            time.sleep(min(1.0, ABSENCE / 4))
    for _, job in pairs[1:]:
        assert bundle.W(event_body(job)).outcome == "applied"
    settle(bundle, database, fake, [row for row, _ in pairs])


def test_sockets_dead_after_idle(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """A firewall forgot every connection, to the database and to Sume, while containers slept."""
    server = database.server.parts()
    target = (str(server["host"]), int(server["port"]))
    with (
        Proxy(target) as to_database,
        Proxy(("127.0.0.1", int(fake.url.split(":")[-1]))) as to_sume,
    ):
        bundle.set(
            DATABASE_URL=database.url.replace(f":{target[1]}/", f":{to_database.port}/"),
            SUME_BASE_URL=to_sume.url,
        )
        rows = database.insert_many(3)
        bundle.D()
        job = database.row(rows[0])["sume_job_id"]
        for _ in range(3):
            to_database.reset_all()
            to_sume.reset_all()
            rows += database.insert_many(2)
            assert bundle.D()["submitted"] == 2
            to_database.reset_all()
            assert bundle.W(event_body(job)).status == 200
            to_database.reset_all()
            to_sume.reset_all()
            bundle.poll_now()
            bundle.R()
        assert database.job(job)["status"] == "completed"
        bundle.set(DATABASE_URL=database.url, SUME_BASE_URL=fake.url)
        settle(bundle, database, fake, rows)


def test_no_connection_is_left_for_a_newcomer(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """53300 for the 101st container: it fails cleanly, and is well once somebody leaves."""
    _, job = bundle.job()
    rows = [row["id"] for row in database.rows()]
    alter(database, "alter role {role} connection limit 1")
    try:
        newcomer = bundle.another()
        bundle.storage_down = True
        answer = bundle.W(event_body(job), container=newcomer)
        assert (answer.status, answer.seconds < 5.0 * slack()) == (503, True)
        reply = newcomer.start("submit", None, 30.0).wait()
        assert "DatabaseUnavailable" in reply["kind"]
        bundle.storage_down = False
    finally:
        alter(database, "alter role {role} connection limit -1")
    assert bundle.W(event_body(job), container=newcomer).outcome == "applied"
    settle(bundle, database, fake, rows)


def test_a_database_name_that_does_not_resolve(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    pairs = bundle.accepted(2)
    bundle.set(DATABASE_URL="postgresql://sume_app@database.invalid:5432/sume")
    bundle.storage_down = True
    answer = bundle.W(event_body(pairs[0][1]))
    assert answer.status == 503
    for name in ("submit", "poll", "reap"):
        assert "error" in bundle.start(name, remaining=40.0).wait()
    bundle.set(DATABASE_URL=database.url)
    bundle.storage_down = False
    assert bundle.W(event_body(pairs[0][1])).outcome == "applied"
    fake.set_status(pairs[0][1], "completed", webhook=False)
    settle(bundle, database, fake, [row for row, _ in pairs])


def test_psycopg_sees_the_faults_this_file_makes(database: Database) -> None:
    """The faults are what their names say: SQLSTATEs of a read-only and of a full server."""
    alter(database, "alter database {database} set default_transaction_read_only = on")
    with database.session(autocommit=True) as app, pytest.raises(psycopg.Error) as error:
        app.execute("insert into render_jobs (prompt) values ('x')")
    assert error.value.sqlstate == "25006"
    alter(database, "alter database {database} reset default_transaction_read_only")
