"""The functions that keep the plans of the hot statements: an aid, never a condition."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sume_jobs.store
from psycopg.rows import dict_row
from sume_jobs.connection import Database as Connected
from sume_jobs.store import follow_ups, functions, gen_jobs, render_jobs, webhook_events
from sume_jobs.store.migrations import migrate
from sume_jobs.stored_statement import StoredStatement

from tests.database.conftest import store_of
from tests.database.sessions import WIDE, claiming
from tests.support.postgres import Database

FUNCTIONS = "select proname from pg_proc where proname ~ '^sume_.*_[0-9a-f]{16}$' order by proname"
TWO = StoredStatement("two", "select %(a)s::int + %(b)s::int as sum, %(a)s::text as a")


@pytest.fixture
def database(make_database: Callable[..., Database]) -> Database:
    """One of its own: its schema is changed."""
    return make_database()


@pytest.fixture
def connected(database: Database) -> Iterator[Connected]:
    store = store_of(database)
    yield store
    store.close()


@pytest.fixture
def owner(database: Database) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with psycopg.connect(database.url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


def names(owner: psycopg.Connection[dict[str, Any]]) -> list[str]:
    return [row["proname"] for row in owner.execute(FUNCTIONS).fetchall()]


def test_every_stored_statement_has_its_function() -> None:
    """None is forgotten in the list from which migrate makes them."""
    found = {
        value
        for module in pkgutil.iter_modules(sume_jobs.store.__path__, "sume_jobs.store.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, StoredStatement)
    }
    assert found == set(functions.STATEMENTS)
    assert len({each.label for each in functions.STATEMENTS}) == len(functions.STATEMENTS)


def test_the_name_holds_what_the_function_does() -> None:
    again = StoredStatement("two", str(TWO))
    assert again.function == TWO.function
    assert StoredStatement("two", str(TWO) + " ").function != TWO.function
    assert StoredStatement("two", str(TWO), in_batches=True).function != TWO.function
    assert TWO.parameters == ("a", "b")
    assert TWO.numbered == "select $1::int + $2::int as sum, $1::text as a"
    assert TWO.call == f"select * from {TWO.function}(%(a)s, %(b)s)"


def test_migrate_makes_them_and_drops_those_of_other_code(
    owner: psycopg.Connection[dict[str, Any]],
) -> None:
    wanted = sorted(each.function for each in functions.STATEMENTS)
    assert names(owner) == wanted
    owner.execute("create function sume_claim_0123456789abcdef(int) returns int return 1")
    owner.execute(f"drop function {render_jobs.CLAIM.function}")
    assert migrate(owner) == []
    assert names(owner) == wanted


def test_those_that_are_there_are_left_as_they_are(
    owner: psycopg.Connection[dict[str, Any]],
) -> None:
    """A running worker's function is not dropped under it for nothing."""
    numbers = "select array_agg(oid order by oid) as oids from pg_proc where proname ~ '^sume_'"
    before = owner.execute(numbers).fetchone()
    migrate(owner)
    assert owner.execute(numbers).fetchone() == before


def test_the_functions_are_what_is_run(connected: Connected, database: Database) -> None:
    """Each is called with what the store gives it: no type of a parameter is left to chance."""
    row = database.insert()
    claim = render_jobs.claim(connected, claiming(), 1, True).claims[0]
    accepted = render_jobs.Accepted(row, claim.token, claim.key, "job_1")
    refused = render_jobs.Refused(row, claim.token, claim.key, "requeue")
    render_jobs.record(connected, [accepted], 8, 5.0)
    render_jobs.record(connected, [refused], 8, 5.0)
    render_jobs.reap(connected, 600, 86400, 8, "render-job")
    webhook_events.receive(connected, webhook_events.Event("evt_1", "{}", "job_1"))
    gen_jobs.apply(connected, [gen_jobs.Wish("job_1", "processing")])
    event = webhook_events.Event("evt_2", "{}", "job_1", status="completed")
    assert webhook_events.receive(connected, event).outcome == "applied"
    webhook_events.apply_held(connected, ["job_1"])
    assert gen_jobs.claim_due(connected, WIDE, 1, 60.0, 25.0)[1][0].job_id == "job_1"
    gen_jobs.record_looks(connected, [gen_jobs.Looked("job_1", 60.0, "found")])
    (follow_up,) = follow_ups.claim(connected, 60.0, 8).follow_ups
    mark = follow_ups.Mark(follow_up.id, follow_up.token, ("queue",))
    assert follow_ups.mark(connected, [mark], 8).dispatched == {follow_up.id}
    assert connected.without_functions == frozenset()


def test_where_a_function_is_missing_its_text_is_run(
    connected: Connected, owner: psycopg.Connection[dict[str, Any]], database: Database
) -> None:
    row = database.insert()
    connected.run("select 1")
    for name in names(owner):
        owner.execute(f"drop function {name}")
    claims = render_jobs.claim(connected, claiming(), 1, True).claims
    assert [each.row_id for each in claims] == [row]
    assert claims[0].attempts == 1
    assert connected.without_functions == {"claim"}
    # Another connection asks again: they may be there by then.
    functions.install(owner, anew=False)
    connected.close()
    render_jobs.claim(connected, claiming(), 1, True)
    assert connected.without_functions == frozenset()


def test_a_function_that_is_dropped_between_two_calls(
    connected: Connected, owner: psycopg.Connection[dict[str, Any]], database: Database
) -> None:
    rows = [database.insert() for _ in range(2)]
    first = render_jobs.claim(connected, claiming(), 1, True).claims
    owner.execute(f"drop function {render_jobs.CLAIM.function}")
    second = render_jobs.claim(connected, claiming(), 1, True).claims
    assert [each.row_id for each in (*first, *second)] == rows


def test_a_role_that_may_not_run_functions(
    connected: Connected, owner: psycopg.Connection[dict[str, Any]], database: Database
) -> None:
    """Some revoke execution by default."""
    row = database.insert()
    owner.execute(f"revoke execute on function {render_jobs.CLAIM.function} from public")
    owner.execute(f"revoke execute on function {render_jobs.CLAIM.function} from current_user")
    claims = render_jobs.claim(connected, claiming(), 1, True).claims
    assert [each.row_id for each in claims] == [row]


def test_what_the_statement_itself_does_wrong_is_told_once(
    connected: Connected, owner: psycopg.Connection[dict[str, Any]], database: Database
) -> None:
    """An error of the work is not taken for a missing function."""
    owner.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception using errcode = 'check_violation', message = 'no'; end $$"
    )
    owner.execute(
        "create trigger no before update on render_jobs for each row execute function refuse()"
    )
    database.insert()
    with pytest.raises(psycopg.errors.CheckViolation):
        render_jobs.claim(connected, claiming(), 1, True)
    assert connected.without_functions == frozenset()


def test_a_column_that_changes_its_type_under_a_session(
    connected: Connected, owner: psycopg.Connection[dict[str, Any]], database: Database
) -> None:
    """Between a migration by hand and the next `migrate` the text is run."""
    database.insert()
    render_jobs.claim(connected, claiming(), 1, True)
    row = database.insert()
    owner.execute("drop view job_support")
    owner.execute("alter table render_jobs alter column attempts type bigint")
    claims = render_jobs.claim(connected, claiming(), 1, True).claims
    assert [each.row_id for each in claims] == [row]
    functions.install(owner, anew=True)
    connected.close()
    row = database.insert()
    claims = render_jobs.claim(connected, claiming(), 1, True).claims
    assert [each.row_id for each in claims] == [row]
    assert connected.without_functions == frozenset()


def test_those_without_a_function_are_named(
    connected: Connected, owner: psycopg.Connection[dict[str, Any]]
) -> None:
    assert functions.missing(connected) == []
    owner.execute(f"drop function {webhook_events.RECEIVE.function}")
    assert functions.missing(connected) == ["receive"]
