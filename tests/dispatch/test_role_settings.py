"""Whatever its role or the database has set for a session, every function does its work.

The functions set nothing themselves: RDS Proxy pins a session that does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from psycopg import sql

from local.fake_sume import Behaviour, FakeSume
from tests.dispatch.conftest import Aws
from tests.support.bundle import Bundle, event_body, key_of
from tests.support.container import HandlerRaised
from tests.support.http_events import http_event
from tests.support.postgres import APP_ROLE, Database, Server
from tests.support.waiting import wait_until

SETTINGS = [
    ("datestyle", "German"),
    ("datestyle", "SQL, DMY"),
    ("datestyle", "Postgres, MDY"),
    ("intervalstyle", "iso_8601"),
    ("timezone", "Asia/Kathmandu"),
    ("timezone", "<odd>+03:17"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "-15"),
    ("standard_conforming_strings", "off"),
    ("transform_null_equals", "on"),
    ("row_security", "off"),
    ("default_transaction_deferrable", "on"),
    ("default_transaction_isolation", "repeatable read"),
    ("default_transaction_isolation", "serializable"),
]


def set_for_role(database: Database, name: str, value: str) -> None:
    database.execute(
        sql.SQL("alter role {} in database {} set {} = {}")
        .format(*map(sql.Identifier, (APP_ROLE, database.name, name)), sql.Literal(value))
        .as_string()
    )
    database.terminate_sessions()


def api(bundle: Bundle, method: str, path: str, **options: Any) -> Any:
    reply = bundle.start("api", event=http_event(method, path, **options)).result()
    assert reply["statusCode"] in (200, 201), reply
    return json.loads(reply["body"])


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_every_function_keeps_its_promises(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database, name: str, value: str
) -> None:
    set_for_role(database, name, value)
    at_aws.set(SUBMIT_DAILY_LIMIT=100)
    made = api(at_aws, "POST", "/jobs", body={"prompt": "a \\S for Zoë, 👍"})
    rows = [made["id"], *database.insert_many(2)]
    # One answer is unknown, and its row is sent again with the same key.
    fake.on_submit(Behaviour(status=500))
    at_aws.D()
    at_aws.submit_later("20 seconds")
    # A worker ends in the middle, and its row is reaped.
    rows.append(stuck := database.insert())
    fake.on_submit(Behaviour(hold=(release := threading.Event())))
    running = at_aws.start("submit", container=at_aws.another())
    wait_until(lambda: database.row(stuck)["status"] == "submitting", "the row is claimed")
    running.container.kill()
    release.set()
    database.age("11 minutes", "render_jobs")
    assert at_aws.R() == {"reaped": 1, "expired": 0}
    at_aws.submit_later("20 seconds")
    assert database.statuses() == {"submitted": 4}
    assert sorted(fake.billed_by_key) == [key_of(row) for row in rows]

    by_webhook, by_poll, failed, at_sume = (database.row(row)["sume_job_id"] for row in rows)
    ends = {by_webhook: "completed", by_poll: "completed", failed: "failed"}
    for job, status in ends.items():
        fake.set_status(job, status)
    assert at_aws.W(event_body(by_webhook)).outcome == "applied"
    assert at_aws.W(event_body(by_webhook)).outcome == "duplicate"
    at_aws.poll_now("2 minutes")
    assert {job["job_id"]: job["status"] for job in database.jobs()} == {**ends, at_sume: "queued"}

    at_aws.set(FOLLOW_UP_QUEUE_URL=(queue := aws.queue("follow-ups")))
    assert at_aws.start("dispatch").result() == {"dispatched": 3, "failed": 0, "backlog": 0}
    events = aws.events(queue)
    assert {event["job_id"]: event["status"] for event in events} == ends
    listed = api(at_aws, "GET", "/jobs")["jobs"]
    assert {job["id"]: job["state"] for job in listed} == dict(
        zip(rows, ("done", "done", "needs_attention", "working"), strict=True)
    )
    assert api(at_aws, "GET", f"/jobs/{rows[0]}") in listed
    support = api(at_aws, "GET", f"/support/jobs/{rows[0]}")
    assert support["prompt"] == "a \\S for Zoë, 👍"
    now = database.one("select now()")
    for text in (*(event["occurred_at"] for event in events), support["created_at"]):
        assert now - timedelta(hours=1) < datetime.fromisoformat(text) <= now
    stats = api(at_aws, "GET", "/stats")
    counts = {state: figure["count"] for state, figure in stats["states"].items()}
    assert counts == {"working": 1, "done": 2, "needs_attention": 1}
    assert 60 < stats["oldest_at_sume_seconds"] < 3600
    assert not at_aws.logs("ERROR")


@pytest.fixture
def everywhere(postgres: Server) -> Iterator[Any]:
    """Set something for the role, in all databases: `everywhere("array_nulls", "off")`."""
    names = []

    def set_(name: str, value: str) -> None:
        names.append(name)
        admin.execute(f"alter role {APP_ROLE} set {name} = '{value}'".encode())

    with postgres.connect() as admin:
        yield set_
        for name in names:
            admin.execute(f"alter role {APP_ROLE} reset {name}".encode())


def test_what_the_migration_sets_goes_before(database: Database, everywhere: Any) -> None:
    everywhere("default_transaction_isolation", "serializable")
    everywhere("array_nulls", "off")
    with database.session() as session:
        assert session.execute(
            "select current_setting('transaction_isolation'), current_setting('array_nulls')"
        ).fetchone() == ("read committed", "on")


def test_the_schema_is_made_as_it_is_written(bundle: Bundle, empty_database: Database) -> None:
    for name, value in SETTINGS:
        set_for_role(empty_database, name, value)
    bundle.set(DATABASE_URL=empty_database.url)
    assert bundle.start("migrate", event={}).result()["applied"]
    assert empty_database.insert("no capital letter")
    with pytest.raises(Exception, match="prompt has 32001 characters"):
        empty_database.insert("x" * 32_001)
    with pytest.raises(Exception, match="prompt is empty"):
        empty_database.insert("\n")


def test_a_role_that_may_only_read_is_told(bundle: Bundle, database: Database) -> None:
    set_for_role(database, "default_transaction_read_only", "on")
    with pytest.raises(HandlerRaised, match="default_transaction_read_only"):
        bundle.D()
