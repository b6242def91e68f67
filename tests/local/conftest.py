"""A database with the schema, for the tests of the local bundle's parts."""

import pytest

from local.postgres import EmbeddedPostgres


@pytest.fixture(scope="session")
def local_database(tmp_path_factory):
    """The URL of a database of our own with the schema in it."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("local_database")) as server:
        migrate(server.url)
        yield server.url


def migrate(url):
    import psycopg

    from local.runner import PROJECT

    with psycopg.connect(url) as connection:
        folder = PROJECT / "shared" / "sume_jobs" / "store" / "migrations"
        for path in sorted(folder.glob("*.sql")):
            connection.execute(path.read_text())
