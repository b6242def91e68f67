"""A database with the schema, for the tests of the local bundle's parts."""

import pytest

from local.bundle import LIMITS
from local.postgres import EmbeddedPostgres
from local.runner import Runner
from tests.support.folders import temporary_folder


@pytest.fixture
def tmp_path():
    """In the place of pytest's own, which an embedded Postgres cannot always reach."""
    with temporary_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def local_database():
    """The URL of a database of our own with the schema in it."""
    with temporary_folder() as folder, EmbeddedPostgres(folder) as server:
        environment = {"DATABASE_URL": server.url}
        with Runner([LIMITS["migrate"]], log_folder=folder, environment=environment) as runner:
            runner.invoke("migrate", {}).result()
        yield server.url
