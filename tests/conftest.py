"""Fixtures for every folder of tests: a real PostgreSQL, a fake Sume, the handlers in processes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.bundle import SECRET, Bundle
from tests.support.container import HandlerRaised, Nursery
from tests.support.invariants import HISTORY
from tests.support.postgres import (
    Database,
    Server,
    create_database,
    database_name,
    drop_database,
)

TEMPLATE = f"sume_template_{os.getpid()}"

failed_tests: pytest.StashKey[bool] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    report: pytest.TestReport = yield  # type: ignore[assignment, misc]
    if call.when == "call":
        item.stash[failed_tests] = call.excinfo is not None
    return report  # type: ignore[return-value]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The session's PostgreSQL server."""
    server = Server().start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """The interpreter from which the handlers' processes are forked."""
    nursery = Nursery(tmp_path_factory.mktemp("containers"))
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def template(postgres: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database migrated by the real `functions/migrate`, copied for each test.

    TEST_TEMPLATE names one that is there already.
    """
    if given := os.environ.get("TEST_TEMPLATE"):
        yield given
        return
    nursery: Nursery = request.getfixturevalue("nursery")
    create_database(postgres, TEMPLATE)
    database = Database(postgres, TEMPLATE)
    container = nursery.container({"DATABASE_URL": database.url})
    try:
        container.invoke("migrate", {})
    except HandlerRaised as error:
        raise AssertionError(f"{error}\n{container.output()}") from None
    finally:
        container.close()
    database.execute(HISTORY)
    database.close()
    yield TEMPLATE
    drop_database(postgres, TEMPLATE)


@pytest.fixture
def make_database(
    postgres: Server, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Database]]:
    """Make databases: `make_database()` is migrated, `make_database(migrated=False)` is empty."""
    made: list[Database] = []

    def make(migrated: bool = True) -> Database:
        name = database_name(next(_numbers))
        create_database(postgres, name, request.getfixturevalue("template") if migrated else None)
        database = Database(postgres, name)
        made.append(database)
        return database

    yield make
    for database in made:
        database.close()
        drop_database(postgres, database.name)


_numbers = itertools.count(1)


@pytest.fixture
def database(make_database: Callable[..., Database]) -> Database:
    """A migrated database of the test's own."""
    return make_database()


@pytest.fixture
def empty_database(make_database: Callable[..., Database]) -> Database:
    """A database without the schema."""
    return make_database(migrated=False)


@pytest.fixture
def fake() -> Iterator[object]:
    """A fake Sume that changes no job's status by itself and delivers nothing unasked."""
    from local.fake_sume import FakeSume

    with FakeSume(auto_advance=False, webhook_secret=SECRET) as server:
        yield server


@pytest.fixture
def make_bundle(nursery: Nursery) -> Iterator[Callable[..., Bundle]]:
    """Make deployments: `make_bundle(database, fake)`."""
    made: list[Bundle] = []

    def make(database: Database, fake: object) -> Bundle:
        bundle = Bundle(nursery, database, fake)  # type: ignore[arg-type]
        made.append(bundle)
        return bundle

    yield make
    for bundle in made:
        bundle.close()


@pytest.fixture
def bundle(
    make_bundle: Callable[..., Bundle],
    database: Database,
    fake: object,
    request: pytest.FixtureRequest,
) -> Iterator[Bundle]:
    """The deployment under test; its output is shown when the test fails."""
    bundle = make_bundle(database, fake)
    yield bundle
    if request.node.stash.get(failed_tests, False):
        print(bundle.output()[-20_000:])


@pytest.fixture
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parent.parent
