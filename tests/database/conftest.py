"""Database tests: a migrated database for each module, emptied for each test, and the product's
own connection to it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from sume_jobs.connection import Database as Store
from sume_jobs.secrets import Secrets
from sume_jobs.settings import Settings

from tests.database.sessions import Session
from tests.support.examples import load_profile
from tests.support.postgres import (
    APP_ROLE,
    Database,
    Server,
    create_database,
    drop_database,
)

load_profile()

_numbers = itertools.count(1)

EMPTY = """
do $$
declare name text;
begin
  for name in select tablename from pg_tables
               where schemaname in ('public', 'test_history')
                 and tablename not in ('pace_budget', 'pace_gate', 'sume_jobs_migration') loop
    execute format('delete from %I.%I', (select schemaname from pg_tables t where t.tablename = name
                                           and schemaname in ('public', 'test_history')), name);
  end loop;
  update pace_budget set spent_until = '-infinity', day_ends = null, day_sent = 0;
  update pace_gate set closed_until = null, reason = null, closures = 0, probe_until = null,
                       ambiguous = '{}', detail = null, guarded_from = null;
end $$"""


@pytest.fixture(scope="module")
def shared_database(postgres: Server, template: str) -> Iterator[Database]:
    """One database for the tests of a module."""
    name = f"sume_store_{os.getpid()}_{next(_numbers)}"
    create_database(postgres, name, template)
    database = Database(postgres, name)
    # Tests hold locks against each other on purpose; on a busy machine that may take a while.
    for limit in ("lock_timeout", "idle_in_transaction_session_timeout"):
        database.execute(f"alter role {APP_ROLE} in database {name} set {limit} = '60s'")
    yield database
    database.close()
    drop_database(postgres, name)


@pytest.fixture
def database(shared_database: Database) -> Database:
    """The module's database, empty."""
    with shared_database.connection.transaction():
        shared_database.execute("set local session_replication_role = replica")
        shared_database.execute(EMPTY)
    return shared_database


def store_of(database: Database) -> Store:
    """The product's own connection."""
    settings = Settings(database_url=database.url)
    return Store(settings, Secrets(settings))


@pytest.fixture
def make_store(database: Database) -> Iterator[Callable[[], Store]]:
    made: list[Store] = []

    def make() -> Store:
        made.append(store_of(database))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: Callable[[], Store]) -> Store:
    return make_store()


@pytest.fixture
def session(database: Database) -> Iterator[Callable[[], Session]]:
    """Make sessions whose transactions stay open: `session()`."""
    made: list[Session] = []

    def make() -> Session:
        made.append(Session(database))
        return made[-1]

    yield make
    for each in made:
        each.close()
