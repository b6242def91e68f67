"""What the triggers look up does not depend on who writes: not on their search path nor rights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sume_jobs.store import migrations

from tests.database.sessions import insert_past_triggers
from tests.support.postgres import Database

SHOP = f"sume_shop_{os.getpid()}"
SCHEMAS = ("sume_1", '"Sume 2"')


def test_every_trigger_looks_in_its_own_schema(database: Database) -> None:
    functions = database.query(
        """select distinct proname as name, prosecdef, proconfig from pg_proc
             join pg_trigger on tgfoid = pg_proc.oid join pg_class on pg_class.oid = tgrelid
            where pronamespace = 'public'::regnamespace and not tgisinternal"""
    )
    assert len(functions) > 8
    for each in functions:
        assert each["prosecdef"], each
        assert "search_path=public, pg_temp" in each["proconfig"], each


def test_a_trigger_of_the_team_s_own_is_left_as_it_is(database: Database) -> None:
    with database.connection.transaction(force_rollback=True):
        database.execute(
            "create function shop_notify() returns trigger language plpgsql as"
            " $$ begin return new; end $$"
        )
        database.query("select sume_pin_triggers()")
        assert not database.one("select prosecdef from pg_proc where proname = 'shop_notify'")


@pytest.fixture
def two_schemas(make_database: Callable[..., Database]) -> Iterator[Database]:
    """The bundle twice in one database, with a job at Sume each: row 1 in the first schema, row 2
    in the second. A role may write the rows of both, and nothing else.
    """
    database = make_database(migrated=False)
    connection = database.connection
    connection.execute(f"create role {SHOP} login")
    for number, schema in enumerate(SCHEMAS, 1):
        connection.execute(f"create schema {schema}")
        connection.execute(f"set search_path = {schema}")
        migrations.migrate(connection)
        connection.execute(f"grant usage on schema {schema} to {SHOP}")
        connection.execute(f"grant select, update, delete, truncate on render_jobs to {SHOP}")
        insert_past_triggers(
            database,
            {
                "render_jobs": [
                    {"id": number, "prompt": "x", "status": "submitted", "sume_job_id": "job"}
                ],
                "gen_job": [{"job_id": "job", "idempotency_key": "key", "render_job_id": number}],
            },
        )
    connection.execute("reset search_path")
    yield database
    connection.execute(f"drop owned by {SHOP}")
    connection.execute(f"drop role {SHOP}")


def test_the_jobs_of_the_row_are_those_beside_it(two_schemas: Database) -> None:
    """Also where those of another schema, or temporary ones, would be found first."""
    with two_schemas.session(user=SHOP, autocommit=True) as shop:
        shop.execute(f"set search_path = {SCHEMAS[0]}")
        shop.execute("create temporary table gen_job (job_id text, status text)")
        for schema in SCHEMAS:
            with pytest.raises(psycopg.errors.CheckViolation, match="in flight"):
                shop.execute(f"delete from {schema}.render_jobs")
        shop.execute(f"update {SCHEMAS[1]}.render_jobs set cancel_requested_at = now()")
        wished = "select cancel_due_at is not null from {}.gen_job"
        assert [two_schemas.one(wished.format(schema)) for schema in SCHEMAS] == [False, True]
        two_schemas.execute(f"update {SCHEMAS[1]}.gen_job set status = 'failed'")
        shop.execute(f"update {SCHEMAS[1]}.render_jobs set generation = generation + 1")
        moved = "select render_job_id, to_status from {}.job_history"
        assert two_schemas.query(moved.format(SCHEMAS[0])) == []
        assert two_schemas.query(moved.format(SCHEMAS[1])) == [
            {"render_job_id": 2, "to_status": "pending"}
        ]
        shop.execute(f"truncate {SCHEMAS[1]}.render_jobs")
        assert two_schemas.query(moved.format(SCHEMAS[1])) == []


def test_nobody_hangs_our_functions_on_a_table_of_his_own(two_schemas: Database) -> None:
    """They run with their owner's rights."""
    home = SCHEMAS[0]
    two_schemas.execute(
        f"insert into {home}.job_history (render_job_id, machine, by, from_status, to_status)"
        " values (1, 'x', 'x', 'x', 'x')"
    )
    with two_schemas.session(user=SHOP, autocommit=True) as shop:
        shop.execute("create temporary table mine (id bigint)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            shop.execute(
                "create trigger empties after truncate on mine"
                f" execute function {home}.render_jobs_forget_all_moves()"
            )
    assert two_schemas.one(f"select count(*) from {home}.job_history") == 1


def test_a_schema_that_was_renamed(two_schemas: Database) -> None:
    two_schemas.execute(f"alter schema {SCHEMAS[0]} rename to sume_3")
    with two_schemas.session(user=SHOP, autocommit=True) as shop:
        with pytest.raises(psycopg.errors.UndefinedTable):
            shop.execute("delete from sume_3.render_jobs")
        with two_schemas.connection.transaction():
            two_schemas.execute("set local search_path = sume_3")
            two_schemas.query("select sume_pin_triggers()")
        with pytest.raises(psycopg.errors.CheckViolation, match="in flight"):
            shop.execute("delete from sume_3.render_jobs")
