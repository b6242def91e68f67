"""Migrations: from empty to full, repeated, two at once, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sume_jobs.store import functions, migrations
from sume_jobs.store.migrations import Migration, MigrationError, migrate

from tests.database.sessions import in_background, wait_for_lock
from tests.support.postgres import Database

KNOWN = migrations.migrations()
NAMES = [f"{each.version:04d}_{each.name}" for each in KNOWN]
TABLES = {
    "render_jobs", "gen_job", "webhook_event", "job_conflict", "follow_up", "pace_budget",
    "pace_gate", "sume_jobs_migration",
}  # fmt: skip


@pytest.fixture
def connect(empty_database: Database) -> Any:
    made: list[psycopg.Connection[Any]] = []

    def make() -> psycopg.Connection[Any]:
        made.append(psycopg.connect(empty_database.url, autocommit=True, row_factory=dict_row))
        return made[-1]

    yield make
    for connection in made:
        connection.close()


Connect = Callable[[], psycopg.Connection[Any]]


def test_the_files_are_numbered_without_a_gap() -> None:
    assert [each.version for each in KNOWN] == list(range(1, len(KNOWN) + 1))
    folder = Path(migrations.__file__).parent / "migrations"
    assert len(list(folder.glob("*.sql"))) == len(KNOWN), "no file is passed over"


def test_from_empty_to_full_and_again(empty_database: Database, connect: Connect) -> None:
    connection = connect()
    assert migrate(connection) == NAMES
    assert set(empty_database.tables()) >= TABLES
    recorded = empty_database.query("select * from sume_jobs_migration order by version")
    assert [(row["version"], row["sha256"]) for row in recorded] == [
        (each.version, each.sha256) for each in KNOWN
    ]
    assert migrate(connection) == []
    empty_database.insert("a complete enqueue")


def test_the_roles_timeouts(empty_database: Database, connect: Connect) -> None:
    migrate(connect())
    assert empty_database.timeouts() == {
        "statement_timeout": "20s",
        "lock_timeout": "2s",
        "idle_in_transaction_session_timeout": "10s",
    }


def test_three_at_once(empty_database: Database, connect: Connect) -> None:
    holder = connect()
    with in_background(empty_database) as start:
        with holder.transaction():
            holder.execute("select pg_advisory_xact_lock(%s)", (migrations._LOCK,))
            waiting = [start(migrate, connect()) for _ in range(3)]
            wait_for_lock(empty_database, 3)
        results = [future.result(30) for future in waiting]
    assert sorted(results) == [[], [], NAMES]


def test_its_own_time_limits_end_with_it(empty_database: Database, connect: Connect) -> None:
    migrate(connect())
    connection = connect()  # with the limits of the role
    limits = (
        "select current_setting('lock_timeout') as l, current_setting('statement_timeout') as s"
    )
    before = connection.execute(limits).fetchone()
    migrate(connection)
    assert connection.execute(limits).fetchone() == before == {"l": "2s", "s": "20s"}


def test_a_newer_database_is_refused(empty_database: Database, connect: Connect) -> None:
    connection = connect()
    migrate(connection)
    empty_database.execute(
        "insert into sume_jobs_migration (version, name, sha256) values (9999, 'later', 'x')"
    )
    with pytest.raises(MigrationError, match="deploy the newer code"):
        migrate(connection)


def test_a_changed_file_is_refused(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connect()
    migrate(connection)
    changed = [KNOWN[0]._replace(sql=KNOWN[0].sql + "\n-- changed"), *KNOWN[1:]]
    monkeypatch.setattr(migrations, "migrations", lambda: changed)
    with pytest.raises(MigrationError, match=r"0001_queue\.sql is not the file that was applied"):
        migrate(connection)


def test_a_new_file_is_applied_to_a_database_with_rows(
    empty_database: Database, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    migrate(connection)
    row = empty_database.insert()
    new = Migration(KNOWN[-1].version + 1, "later", "alter table render_jobs add column extra text")
    monkeypatch.setattr(migrations, "migrations", lambda: [*KNOWN, new])
    assert migrate(connection) == [f"{new.version:04d}_later"]
    assert empty_database.row(row)["extra"] is None


def test_all_or_nothing(
    empty_database: Database, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    bad = Migration(KNOWN[-1].version + 1, "bad", "create table half (id int); select 1 / 0")
    monkeypatch.setattr(migrations, "migrations", lambda: [*KNOWN, bad])
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(connection)
    assert empty_database.tables() == []


def test_every_earlier_version_can_be_brought_up(
    empty_database: Database, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    # Earlier code brought statements of its own.
    monkeypatch.setattr(functions, "install", lambda *_, **__: None)
    for version in range(1, len(KNOWN) + 1):
        monkeypatch.setattr(migrations, "migrations", lambda upto=version: KNOWN[:upto])
        assert migrate(connection) == [NAMES[version - 1]]


def test_a_database_that_cannot_hold_prompts_is_refused(
    empty_database: Database, connect: Connect
) -> None:
    with empty_database.server.connect() as admin:
        name = f"{empty_database.name}_latin"
        admin.execute(
            f"create database {name} encoding 'LATIN1' locale 'C' template template0 owner sume_app"
        )
        try:
            url = empty_database.server.url(name, "sume_app")
            with (
                psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection,
                pytest.raises(psycopg.errors.RaiseException, match="prompts need UTF8"),
            ):
                migrate(connection)
        finally:
            admin.execute(f"drop database {name} with (force)")
