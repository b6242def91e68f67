"""Property tests: Hypothesis drives the real statements on a real Postgres."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.examples import load_profile
from tests.support.postgres import Database, Server, create_database, drop_database

load_profile()


@pytest.fixture(scope="module")
def machine_database(postgres: Server, template: str) -> Iterator[Database]:
    """One migrated database for all runs of a machine; each run empties it."""
    name = f"sume_property_{os.getpid()}"
    create_database(postgres, name, template)
    database = Database(postgres, name)
    database.execute("drop schema test_history cascade")
    yield database
    database.close()
    drop_database(postgres, name)
