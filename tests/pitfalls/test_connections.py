"""Pitfalls of connections: dead sessions, aborted transactions, cut replies, rotated passwords."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from local.fake_sume import Behaviour, FakeSume
from tests.support import pooler
from tests.support.bundle import API_KEY, Bundle, event_body, key_of
from tests.support.postgres import APP_ROLE, PASSWORD_GROUP, Database, Server, url_of
from tests.support.proxies import BlackHole, PasswordRecorder, Proxy, RawServer, ReplyCutter
from tests.support.secrets_manager import SecretsManager
from tests.support.waiting import slack, wait_until

# One for each run of the tests, which may share a server.
WITH_PASSWORD = f"sume_with_password_{os.getpid()}"


def address(database: Database) -> tuple[str, int]:
    parts = urlsplit(database.url)
    return str(parts.hostname), parts.port or 5432


def through(database: Database, port: int) -> str:
    """The product's database URL with another port."""
    return database.url.replace(f":{address(database)[1]}/", f":{port}/")


# ------------------------------------------------------------------------------------------- P26


def test_p26_the_server_closed_the_session(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    (_, one), (_, two) = bundle.accepted(2)
    assert bundle.W(event_body(one)).outcome == "applied"
    bundle.P()
    bundle.R()
    assert database.terminate_sessions() >= 3
    assert bundle.W(event_body(two)).outcome == "applied"
    row = database.insert()
    bundle.D()
    assert database.row(row)["status"] == "submitted"
    fake.set_status(database.row(row)["sume_job_id"], "completed")
    bundle.poll_now()
    bundle.R()
    assert database.state(row) == "done"


def test_p26_again_and_again(bundle: Bundle, database: Database) -> None:
    for _, job in bundle.accepted(4):
        database.terminate_sessions()
        assert bundle.W(event_body(job)).outcome == "applied"


def test_p26_closed_between_the_answer_and_the_store(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    fake.on_submit(Behaviour(call=lambda _: database.terminate_sessions()))
    bundle.D()
    assert not fake.errors
    after = database.row(row)
    assert after["status"] == "submitted", "a success is safe to record again"
    assert after["sume_job_id"] == fake.job_for(key_of(row)).id
    assert len(fake.posts()) == 1


def test_p26_closed_during_a_read(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    _, job = bundle.job()
    fake.set_status(job, "completed")
    fake.on_read(Behaviour(call=lambda _: database.terminate_sessions()))
    bundle.poll_now()
    assert database.job(job)["status"] == "completed"


def test_p26_a_server_restart(
    bundle: Bundle, database: Database, fake: FakeSume, postgres: Server
) -> None:
    if not postgres.embedded:
        pytest.skip("the server is not ours to restart")
    (_, one), (_, two) = bundle.accepted(2)
    assert bundle.W(event_body(one)).outcome == "applied"
    database.close()
    postgres.restart()
    assert bundle.W(event_body(two)).outcome == "applied"
    database._connection = None
    row = database.insert()
    bundle.D()
    assert database.row(row)["status"] == "submitted"


def test_p26_read_only_after_a_failover(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """The sibling: the address still answers, but that server is a replica now."""
    (_, one), (_, two) = bundle.accepted(2)
    assert bundle.W(event_body(one)).outcome == "applied"
    with database.server.connect() as admin:
        name = sql.Identifier(database.name)
        admin.execute(
            sql.SQL("alter database {} set default_transaction_read_only = on").format(name)
        )
        database.terminate_sessions()
        bundle.storage_down = True
        assert bundle.W(event_body(two)).status == 503
        bundle.storage_down = False
        admin.execute(sql.SQL("alter database {} reset default_transaction_read_only").format(name))
    # Same container, nothing terminated: the read-only session must not be used again.
    assert bundle.W(event_body(two)).outcome == "applied"


def test_p26_no_database_is_503_and_nothing_is_lost(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, job = bundle.job()
    bundle.set(DATABASE_URL="postgresql://nobody@127.0.0.1:9/none")
    bundle.storage_down = True
    answer = bundle.W(event_body(job))
    bundle.storage_down = False
    assert answer.status == 503
    assert answer.seconds < 5.0 * slack()
    assert bundle.W(event_body(job), secret="wrong").status == 401
    bundle.set(DATABASE_URL=database.url)
    assert bundle.W(event_body(job)).outcome == "applied"


def test_p26_a_database_name_that_does_not_resolve(bundle: Bundle, database: Database) -> None:
    bundle.set(DATABASE_URL="postgresql://nobody@database.invalid/none")
    bundle.storage_down = True
    answer = bundle.W(event_body("job_1"))
    bundle.storage_down = False
    assert answer.status == 503
    assert "nobody" not in answer.body
    bundle.set(DATABASE_URL=database.url)


# ------------------------------------------------------------------------------------------- P28


def test_p28_an_error_does_not_poison_the_connection(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    (_, one), (_, two) = bundle.accepted(2)
    assert bundle.W(event_body("job_warm")).outcome == "held"
    database.execute(f"revoke insert on follow_up from {APP_ROLE}")
    bundle.storage_down = True
    assert bundle.W(event_body(one)).status == 503
    bundle.storage_down = False
    assert not [s for s in database.sessions() if "transaction" in (s["state"] or "")]
    assert not [event for event in database.events() if event["job_id"] == one]
    database.execute(f"grant insert on follow_up to {APP_ROLE}")
    assert bundle.W(event_body(two)).outcome == "applied"
    assert bundle.W(event_body(one)).outcome == "applied"
    row = database.insert()
    bundle.D()
    assert database.row(row)["status"] == "submitted"


@pytest.mark.parametrize("table", ["render_jobs", "gen_job"])
def test_p28_the_same_for_submit_and_poll(
    bundle: Bundle, database: Database, fake: FakeSume, table: str
) -> None:
    _, job = bundle.job()
    fake.set_status(job, "completed")
    row = database.insert()
    database.age("1 hour")
    database.execute(f"revoke update on {table} from {APP_ROLE}")
    for name in ("submit", "poll"):
        reply = bundle.start(name).wait()
        assert not reply.get("died")
        assert not [s for s in database.sessions() if "transaction" in (s["state"] or "")]
    database.execute(f"grant update on {table} to {APP_ROLE}")
    database.age("11 minutes")
    bundle.R()
    bundle.submit_later()
    bundle.poll_now()
    assert database.row(row)["status"] == "submitted"
    assert database.job(job)["status"] == "completed"
    assert fake.billed == 2


# ------------------------------------------------------------------------------------------- P53


def test_p53_sockets_that_died_while_frozen(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    with Proxy(("127.0.0.1", urlsplit(fake.url).port or 0)) as proxy:
        bundle.set(SUME_BASE_URL=proxy.url)
        _, job = bundle.job()
        bundle.poll_now()
        proxy.reset_all()
        fake.close_connections()
        row = database.insert()
        bundle.D()
        after = database.row(row)
        assert (after["status"], after["attempts"]) == ("submitted", 1)
        proxy.reset_all()
        fake.set_status(job, "completed")
        bundle.poll_now()
        assert database.job(job)["status"] == "completed"
        bundle.set(SUME_BASE_URL=fake.url)
    assert len(fake.posts()) == 2


# ------------------------------------------------------------------------------------------- P54


def test_p54_a_dripping_answer_is_given_up_in_time(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(SUME_TIMEOUT_SECONDS=1)
    row = database.insert()
    fake.on_submit(Behaviour(drip=4))
    running = bundle.start("submit", remaining=30.0)
    running.result()
    assert running.seconds is not None
    assert running.seconds < 4.0 * slack(), "20 seconds are 20 seconds, however the bytes drip"
    after = database.row(row)
    assert after["status"] == "pending"
    assert after["unknown_since"] is not None
    bundle.submit_later()
    assert database.row(row)["sume_job_id"] == fake.job_for(key_of(row)).id
    assert fake.billed == 1


def test_p54_a_huge_answer_is_not_swallowed(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    bundle.D()
    database.insert()
    container = bundle.warm("submit")
    before = container.peak_memory()
    fake.on_submit(Behaviour(pad=100_000_000))
    running = bundle.start("submit", remaining=60.0)
    running.result()
    assert container.peak_memory() - before < 40_000_000
    assert database.row(row + 1)["status"] in ("pending", "submitted")
    bundle.submit_later()
    assert database.row(row + 1)["status"] == "submitted"


def drip_headers(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 202 Accepted\r\n")
    while True:
        client.sendall(b"X-Filler: y\r\n" if time.monotonic() % 1 < 0.5 else b"X-Other: z\r\n")
        time.sleep(0.2)


def drip_one_header(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 202 Accepted\r\nX-Filler: ")
    while True:
        client.sendall(b"y")
        time.sleep(0.2)


def endless_continue(client: socket.socket) -> None:
    while True:
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.05)


def endless_chunks(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        client.sendall(b"1\r\n \r\n")
        time.sleep(0.1)


def flood(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 9000000000\r\n\r\n")
    while True:
        client.sendall(b" " * 65536)


def gzip_bomb(client: socket.socket) -> None:
    body = gzip.compress(b" " * 300_000_000, 1)
    head = f"HTTP/1.1 202 Accepted\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)


def garbage(client: socket.socket) -> None:
    client.sendall(b"\x15\x03\x01\x00\x02\x02\x50 this is no HTTP at all\r\n\r\n")


def nothing(_: socket.socket) -> None:
    """Close without a byte."""


ANSWERS = [
    drip_headers,
    drip_one_header,
    endless_continue,
    endless_chunks,
    flood,
    gzip_bomb,
    garbage,
    nothing,
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.__name__)
@pytest.mark.parametrize("name", ["submit", "poll"])
def test_p54_no_kind_of_answer_outlives_the_deadline_or_the_cap(
    bundle: Bundle, database: Database, fake: FakeSume, name: str, answer: Any
) -> None:
    """The siblings: bytes that drip before the body, never end, or grow when they are unpacked."""
    row, job = bundle.job()
    bundle.P()
    second = database.insert()
    database.age("1 hour")
    container = bundle.warm(name)
    before = container.peak_memory()
    with RawServer(answer) as server:
        bundle.environment |= {"SUME_BASE_URL": server.url, "SUME_TIMEOUT_SECONDS": "1"}
        container = bundle.another()
        running = bundle.start(name, remaining=40.0, container=container)
        running.result()
        after = container.peak_memory()
        bundle.environment |= {"SUME_BASE_URL": fake.url, "SUME_TIMEOUT_SECONDS": "20"}
    assert running.seconds is not None
    assert running.seconds < 4.0 * slack()
    assert after - before < 60_000_000
    assert database.job(job)["status"] == "queued"
    assert database.row(second)["status"] == "pending"
    bundle.cold()
    fake.set_status(job, "completed")
    bundle.submit_later()
    bundle.poll_now()
    assert database.row(second)["status"] == "submitted"
    assert database.state(row) == "done"


# ------------------------------------------------------------------------------------------- P63


def until_uncut(attempt: Callable[[int], int], most: int = 60) -> int:
    """Call `attempt(n)`, which cuts at the n-th statement, until it says that nothing was cut."""
    for number in range(1, most):
        if not attempt(number):
            assert number > 1, "not one statement went through the proxy"
            return number - 1
    raise AssertionError("no end of statements")


@pytest.mark.parametrize("before", [False, True], ids=["reply lost", "statement lost"])
def test_p63_submit_with_each_reply_lost(
    bundle: Bundle, database: Database, fake: FakeSume, before: bool
) -> None:
    with ReplyCutter(address(database)) as cutter:
        bundle.set(DATABASE_URL=through(database, cutter.port))
        rows = []

        def attempt(number: int) -> int:
            row = database.insert()
            rows.append(row)
            cutter.cut_at(number, before)
            reply = bundle.start("submit").wait()
            cuts = cutter.disarm()
            assert not reply.get("died")
            database.age("11 minutes")
            bundle.R()
            database.age("1 minute")
            bundle.D()
            after = database.row(row)
            assert after["status"] == "submitted"
            assert after["sume_job_id"] == fake.job_for(key_of(row)).id
            return cuts

        assert until_uncut(attempt) >= 2
        bundle.set(DATABASE_URL=database.url)
    assert fake.billed == len(rows)
    assert len(database.jobs()) == len(rows)
    assert not database.conflicts()


@pytest.mark.parametrize("before", [False, True], ids=["reply lost", "statement lost"])
def test_p63_webhook_with_each_reply_lost(
    bundle: Bundle, database: Database, fake: FakeSume, before: bool
) -> None:
    jobs = [job for _, job in bundle.accepted(12)]
    with ReplyCutter(address(database)) as cutter:
        bundle.set(DATABASE_URL=through(database, cutter.port))

        def attempt(number: int) -> int:
            job = jobs[number - 1]
            body = event_body(job, event_id=f"evt_{number}")
            cutter.cut_at(number, before)
            bundle.storage_down = True
            first = bundle.W(body)
            bundle.storage_down = False
            cuts = cutter.disarm()
            assert first.status in (200, 503)
            assert bundle.W(body).status == 200
            assert database.job(job)["status"] == "completed"
            assert len(database.follow_ups(job)) == 1
            return cuts

        assert until_uncut(attempt, len(jobs)) >= 1
        bundle.set(DATABASE_URL=database.url)


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True], ids=["reply lost", "statement lost"])
@pytest.mark.parametrize("name", ["poll", "reap"])
def test_p63_poll_and_reap_with_each_reply_lost(
    bundle: Bundle, database: Database, fake: FakeSume, name: str, before: bool
) -> None:
    with ReplyCutter(address(database)) as cutter:
        bundle.set(DATABASE_URL=through(database, cutter.port))

        def attempt(number: int) -> int:
            row, job = bundle.job()
            fake.set_status(job, "completed")
            stale = None
            if name == "reap":
                stale = database.insert()
                lost = Behaviour(
                    status=503, accept=False, call=lambda _: bundle.warm("submit").kill()
                )
                fake.on_submit(lost)
                assert bundle.start("submit").wait().get("died")
            database.age("1 hour")
            cutter.cut_at(number, before)
            reply = bundle.start(name).wait()
            cuts = cutter.disarm()
            assert not reply.get("died")
            for _ in range(2):
                database.age("1 hour")
                bundle.R()
                bundle.P()
            assert database.state(row) == "done"
            assert database.job(job)["result"] is not None
            assert len(database.follow_ups(job)) == 1
            if stale is not None:
                bundle.submit_later("1 minute")
                assert database.row(stale)["status"] == "submitted"
            return cuts

        assert until_uncut(attempt) >= 1
        bundle.set(DATABASE_URL=database.url)


# ------------------------------------------------------------------------------------------- P64


def test_p64_no_transaction_is_open_while_calling_out_or_after(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    database.insert_many(5)
    fake.always_on_submit(Behaviour(delay=0.6))
    fake.always_on_read(Behaviour(delay=0.6))
    seen: list[dict[str, Any]] = []
    stop = threading.Event()

    def sample() -> None:
        with psycopg.connect(database.admin_url, autocommit=True) as watcher:
            while not stop.is_set():
                rows = watcher.execute(
                    "select state, xact_start, query from pg_stat_activity where datname = %s"
                    " and usename = %s and backend_type = 'client backend'",
                    (database.name, APP_ROLE),
                ).fetchall()
                seen.extend({"state": state, "query": query} for state, _, query in rows)
                time.sleep(0.02)

    watching = threading.Thread(target=sample)
    watching.start()
    try:
        bundle.D()
        bundle.poll_now()
        bundle.R()
        bundle.W(event_body(database.jobs()[0]["job_id"]))
        time.sleep(0.1)
    finally:
        stop.set()
        watching.join()
    assert seen
    assert not [s for s in seen if s["state"].startswith("idle in transaction")]
    idle = [s for s in seen if s["state"] == "idle"]
    assert len(idle) > 20, "during the calls the session was idle"


def test_p64_the_role_s_timeouts_end_a_frozen_claim(database: Database) -> None:
    """Postgres itself lets a frozen session's locks go: the migration sets it for the role."""
    values = database.timeouts()
    assert all(value != "0" for value in values.values()), values
    with database.session(autocommit=True) as app:
        seconds = {
            name: app.execute(
                "select extract(epoch from setting::interval)::float / 1 from"
                " (select current_setting(%s) setting) s",
                (name,),
            ).fetchone()[0]
            for name in values
        }
    assert seconds["lock_timeout"] <= 2.0
    assert seconds["idle_in_transaction_session_timeout"] <= 120.0
    assert seconds["statement_timeout"] <= 60.0


# ------------------------------------------------------------------------------------------- P72


@pytest.fixture
def password_role(database: Database) -> Iterator[Callable[[str], None]]:
    """Call it to set the password of a login that must give one and owns what the app role owns."""
    name = WITH_PASSWORD
    with database.server.connect() as admin:
        admin.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))
        admin.execute(
            sql.SQL("create role {} login in role {}, {}").format(
                sql.Identifier(name), sql.Identifier(APP_ROLE), sql.Identifier(PASSWORD_GROUP)
            )
        )

        def change(password: str) -> None:
            admin.execute(
                sql.SQL("alter role {} password {}").format(
                    sql.Identifier(name), sql.Literal(password)
                )
            )

        yield change
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", (name,)
        )
        wait_until(
            lambda: (
                not admin.execute(
                    "select 1 from pg_stat_activity where usename = %s", (name,)
                ).fetchall()
            ),
            "the role's sessions end",
        )
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def secret_text(database: Database, password: str) -> str:
    host, port = address(database)
    return json.dumps(
        {
            "engine": "postgres",
            "host": host,
            "port": port,
            "dbname": database.name,
            "username": WITH_PASSWORD,
            "password": password,
        }
    )


def test_p72_a_password_rotated_while_warm(
    bundle: Bundle, database: Database, fake: FakeSume, password_role: Callable[[str], None]
) -> None:
    with SecretsManager() as store:
        password_role("first-pass-word")
        store.secrets["database"] = secret_text(database, "first-pass-word")
        bundle.set(
            DATABASE_URL=None, DATABASE_SECRET_ARN=store.arn("database"), AWS_ENDPOINT_URL=store.url
        )
        (_, one), (_, two), (_, three) = bundle.accepted(3)
        assert bundle.W(event_body(one)).outcome == "applied"
        assert store.reads["database"] <= 2, "cached while it works"
        # Rotated, and every session ended, as a rotation does.
        password_role("second-pass-word")
        store.secrets["database"] = secret_text(database, "second-pass-word")
        database.terminate_sessions()
        row = database.insert()
        bundle.D()
        assert database.row(row)["status"] == "submitted"
        assert bundle.W(event_body(two)).outcome == "applied"
        # The store is behind: bounded retries, 503, and well again afterwards.
        password_role("third-pass-word")
        database.terminate_sessions()
        reads = store.reads["database"]
        bundle.storage_down = True
        answer = bundle.W(event_body(three))
        bundle.storage_down = False
        assert answer.status == 503
        assert answer.seconds < 5.0 * slack()
        assert 1 <= store.reads["database"] - reads <= 3
        store.secrets["database"] = secret_text(database, "third-pass-word")
        assert bundle.W(event_body(three)).outcome == "applied"
        assert "pass-word" not in bundle.output()
        bundle.set(DATABASE_URL=database.url, DATABASE_SECRET_ARN=None)


def test_p72_an_api_key_rotated_while_warm(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    with SecretsManager() as store:
        store.secrets["key"] = "sume_live_old"
        fake.options.api_keys = {"sume_live_old"}
        bundle.set(
            SUME_API_KEY=None, SUME_API_KEY_SECRET_ARN=store.arn("key"), AWS_ENDPOINT_URL=store.url
        )
        _, job = bundle.job()
        bundle.poll_now()
        store.secrets["key"] = "sume_live_new"
        fake.options.api_keys = {"sume_live_new"}
        row = database.insert()
        bundle.D()
        bundle.D()
        after = database.row(row)
        assert after["status"] == "submitted", "read again once past the cache"
        assert after["attempts"] == 1, "the one that was refused is given back"
        fake.set_status(job, "completed")
        for _ in range(2):
            bundle.poll_now()
        assert database.job(job)["status"] == "completed"
        assert "sume_live_" not in bundle.output()
        # A key that is refused for good stops the queue, and does not hammer the store either.
        fake.options.api_keys = {"sume_live_none"}
        reads = store.reads["key"]
        database.insert_many(20)
        for _ in range(3):
            bundle.D()
        assert store.reads["key"] - reads <= 4
        assert database.statuses()["pending"] == 20
        assert bundle.metric("GateClosed") >= 1
        bundle.set(SUME_API_KEY=API_KEY, SUME_API_KEY_SECRET_ARN=None)


# ------------------------------------------------------------------------------------------- P74


def test_p74_a_new_iam_token_for_every_connection(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, one = bundle.job()
    _, two = bundle.job()
    _, three = bundle.job()
    with PasswordRecorder(address(database)) as recorder:
        bundle.set(
            DATABASE_URL=None,
            DATABASE_HOST="127.0.0.1",
            DATABASE_PORT=recorder.port,
            DATABASE_NAME=database.name,
            DATABASE_USER=APP_ROLE,
            DATABASE_IAM_AUTH="true",
        )
        assert bundle.W(event_body(one)).outcome == "applied"
        assert len(recorder.passwords) == 1
        assert "X-Amz-Signature" in recorder.passwords[0]
        container = bundle.warm("webhook")
        container.shift_clock(16 * 60)
        later = int(time.time()) + 16 * 60
        # The session lives on; its token's age is no reason to end it.
        assert bundle.W(event_body(two), timestamp=later).outcome == "applied"
        assert len(recorder.passwords) == 1
        database.terminate_sessions()
        assert bundle.W(event_body(three), timestamp=later).outcome == "applied"
        assert len(recorder.passwords) == 2
        first, second = recorder.passwords
        assert first != second, "a token of its own for each connection"
        assert "X-Amz-Signature" not in bundle.output()
        bundle.set(
            DATABASE_URL=database.url,
            **dict.fromkeys(
                (
                    "DATABASE_HOST",
                    "DATABASE_PORT",
                    "DATABASE_NAME",
                    "DATABASE_USER",
                    "DATABASE_IAM_AUTH",
                )
            ),
        )


# ------------------------------------------------------------------------------------------- P75


def test_p75_a_storm_of_webhooks_on_few_connections(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    jobs = [job for _, job in bundle.accepted(30)]
    bundle.cold()
    wait_until(lambda: not database.sessions(), "the sessions of submit end")
    with database.server.connect() as admin:
        role = sql.Identifier(APP_ROLE)
        admin.execute(sql.SQL("alter role {} connection limit 5").format(role))
        try:
            containers = [bundle.another() for _ in jobs]
            bundle.storage_down = True
            bad = [
                bundle.start_W(event_body(job), container=container, secret="wrong")
                for job, container in zip(jobs, containers, strict=True)
            ]
            assert {call.result().status for call in bad} == {401}
            assert not database.sessions(), "no connection before the signature is checked"
            calls = [
                bundle.start_W(event_body(job), container=container)
                for job, container in zip(jobs, containers, strict=True)
            ]
            answers = [call.result() for call in calls]
            bundle.storage_down = False
            assert {answer.status for answer in answers} <= {200, 503}
            applied = [answer for answer in answers if answer.status == 200]
            assert len(applied) >= 5
            assert len(database.sessions()) <= 5, "one connection per container"
            for container in containers:
                container.close()
        finally:
            admin.execute(sql.SQL("alter role {} connection limit -1").format(role))
    for job in jobs:
        assert bundle.W(event_body(job)).status == 200
    assert {database.job(job)["status"] for job in jobs} == {"completed"}


def test_p75_one_connection_for_each_function(bundle: Bundle, database: Database) -> None:
    rows = bundle.accepted(40)
    for _ in range(3):
        bundle.poll_now()
        bundle.R()
        bundle.W(event_body(rows[0][1]))
        bundle.D()
    assert len(database.sessions()) <= 4


# ------------------------------------------------------------------------------------------- P76


def test_p76_nothing_a_transaction_pooler_or_rds_proxy_cannot_take(
    bundle: Bundle, database: Database, fake: FakeSume, postgres: Server
) -> None:
    """No named prepared statement, session SET, LISTEN, advisory lock or temporary table."""
    if postgres.log is None:
        pytest.skip("the server's log is not at hand")
    with database.server.connect() as admin:
        admin.execute(
            sql.SQL("alter database {} set log_statement = 'all'").format(
                sql.Identifier(database.name)
            )
        )
    start = postgres.log.stat().st_size
    pairs = bundle.accepted(20)
    for index in range(7):
        bundle.W(event_body(pairs[index][1]))
        database.insert()
        bundle.D()
        bundle.poll_now()
        bundle.R()
    with postgres.log.open("rb") as log:
        log.seek(start)
        text = log.read().decode(errors="replace")
    mine = [
        block
        for block in text.split(f"[{database.name}] ")[1:]
        if "statement:" in block or "execute " in block
    ]
    assert len(mine) > 60
    product = [block for block in mine if "session_replication_role" not in block]
    for block in product:
        head = block.split(":", 2)[-1].strip().lower()
        assert "execute _pg3_" not in block, block[:200]
        assert not head.startswith(
            ("set session", "listen", "prepare", "create temp", "declare", "discard", "deallocate")
        ), block[:200]
        assert not (head.startswith("set ") and not head.startswith("set local")), block[:200]
        assert "pg_advisory_lock" not in block, block[:200]


@pytest.mark.skipif(pooler.binary() is None, reason="PgBouncer is not installed")
@pytest.mark.parametrize("size", [1, 3])
def test_p76_pgbouncer_in_transaction_mode(
    bundle: Bundle, database: Database, fake: FakeSume, size: int
) -> None:
    with pooler.Pooler(database.url, size) as bouncer:
        bundle.set(DATABASE_URL=bouncer.url)
        pairs = bundle.accepted(20)
        database.insert_many(60)
        other = bundle.another()
        for _, job in pairs:
            # Two clients run the same statements through the same few server connections.
            one = bundle.start_W(event_body(job, event_id=f"{job}_a"))
            two = bundle.start_W(event_body(job, event_id=f"{job}_b"), container=other)
            assert sorted(str(c.result().outcome) for c in (one, two)) == ["applied", "noop"]
        calls = [bundle.start("submit", container=bundle.another()) for _ in range(3)]
        calls += [bundle.start(name) for name in ("reap", "poll")]
        for call in calls:
            call.result()
        for _ in range(7):
            bundle.poll_now()
            bundle.R()
        assert database.statuses() == {"submitted": 80}
        assert len(fake.posts()) == 80
        migration = bundle.another()
        migration.invoke("migrate", {})
        bundle.set(DATABASE_URL=database.url)


# ------------------------------------------------------------------------------------------- P85


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["connect", "read"])
def test_p85_black_holes_instead_of_sume_the_secret_store_and_the_database(
    bundle: Bundle, database: Database, fake: FakeSume, make_database: Any, mode: str
) -> None:
    """Each in its own process, all at once: what swallows packets must not hold a function."""
    other = make_database()
    database.insert_many(20)
    other.insert_many(20)
    arn = SecretsManager.arn("key")
    with BlackHole(mode) as hole:
        no_sume = bundle.another(SUME_BASE_URL=hole.url, SUME_TIMEOUT_SECONDS="1")
        no_secrets = {
            "DATABASE_URL": other.url,
            "SUME_API_KEY": "",
            "SUME_API_KEY_SECRET_ARN": arn,
            "SUME_WEBHOOK_SECRETS": "",
            "SUME_WEBHOOK_SECRETS_ARN": arn,
            "AWS_ENDPOINT_URL": hole.url,
        }
        no_database = bundle.another(
            DATABASE_URL=url_of(host="127.0.0.1", port=hole.port, user="x", dbname="x")
        )
        keyless = bundle.another(**no_secrets)
        bundle.storage_down = True
        to_sume = bundle.start("submit", 15.0, no_sume)
        without_key = bundle.start("submit", 60.0, keyless)
        unverified = bundle.start_W(event_body("job_1"), container=bundle.another(**no_secrets))
        unstored = bundle.start_W(event_body("job_1"), container=no_database)

        to_sume.result()
        assert to_sume.seconds is not None
        assert to_sume.seconds < 10.0 * slack()
        assert database.statuses() == {"pending": 20}
        sent = [row for row in database.rows() if row["sends"]]
        if mode == "connect":
            assert not sent, "no connection, so nothing left"
            assert not any(row["attempts"] for row in database.rows())
        else:
            assert len(sent) <= 5, "five unknown outcomes in a row are an outage: the run stops"

        reply = without_key.wait(60)
        assert not reply.get("died")
        assert without_key.seconds is not None
        assert without_key.seconds < 15.0 * slack()
        shown = json.dumps(reply) + keyless.output()
        assert "SUME_API_KEY_SECRET_ARN" in shown or arn in shown, "the error says which secret"
        for row in other.rows():
            assert (row["status"], row["attempts"], row["claimed_at"]) == ("pending", 0, None)

        for call in (unverified, unstored):
            answer = call.result()
            assert answer.status == 503
            assert answer.seconds < 9.0 * slack()
        bundle.storage_down = False
    for _ in range(4):
        bundle.submit_later()
    assert database.statuses() == {"submitted": 20}


def test_p85_names_that_do_not_resolve(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    database.insert_many(20)
    bundle.set(SUME_BASE_URL="http://sume.invalid", SUME_TIMEOUT_SECONDS=2)
    running = bundle.start("submit", remaining=20.0)
    running.result()
    assert running.seconds is not None
    assert running.seconds < 10.0 * slack()
    assert database.statuses() == {"pending": 20}
    assert not any(row["attempts"] or row["sends"] for row in database.rows())
    bundle.set(SUME_BASE_URL=fake.url, SUME_TIMEOUT_SECONDS=None)
    for _ in range(3):
        bundle.submit_later()
    assert database.statuses() == {"submitted": 20}


# ------------------------------------------------------------------------------------------- P86


def test_p86_nothing_is_made_at_import(bundle: Bundle, database: Database) -> None:
    """Containers are forked from a process with the handlers imported, like a snapshot."""
    from pathlib import Path

    descriptors = Path(f"/proc/{bundle.nursery.process.pid}/fd")
    if descriptors.exists():
        sockets = [link for link in descriptors.iterdir() if "socket" in str(link.readlink())]
        assert len(sockets) <= 1, "only the line to the test"
    assert not database.sessions()


def test_p86_restored_copies_share_nothing(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(SUBMIT_CONCURRENCY=1)
    database.insert_many(5)
    release = threading.Event()
    fake.always_on_submit(Behaviour(hold=release))
    calls = []
    for count in range(1, 6):
        calls.append(bundle.start("submit", container=bundle.another()))
        wait_until(lambda count=count: len(fake.posts()) >= count, "a POST arrives")
    rows = database.query(
        "select to_jsonb(r) - 'id' r from render_jobs r where status = 'submitting'"
    )
    tokens = {
        name: [row["r"][name] for row in rows]
        for name in rows[0]["r"]
        if "token" in name or "claim_id" in name
    }
    assert tokens, "a claim carries a token"
    for values in tokens.values():
        assert None not in values
        assert len(set(values)) == len(rows)
    assert len({session["pid"] for session in database.sessions()}) == 5
    release.set()
    for call in calls:
        call.result()
    assert len(fake.posts()) == 5
    assert database.statuses() == {"submitted": 5}
