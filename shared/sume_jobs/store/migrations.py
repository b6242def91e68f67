"""The numbered migrations and the table that records them."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sume_jobs.store import functions

if TYPE_CHECKING:
    import psycopg

    from sume_jobs.connection import Database

# An arbitrary number: whoever migrates this project waits for the others at it.
_LOCK: Final = 7_305_226_411

_LEDGER: Final = """
create table if not exists sume_jobs_migration (
  version    integer primary key,
  name       text not null,
  sha256     text not null,
  applied_at timestamptz not null default now())"""


class MigrationError(RuntimeError):
    """The database and the code do not fit; the message says which is to be changed."""


class DatabaseIsNewer(MigrationError):
    """The database is ahead of the code, which happens when code is taken back."""


class Migration(NamedTuple):
    """One numbered SQL file."""

    version: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """The digest that tells whether the file changed after it was applied."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """Read the SQL files of the package `sume_jobs.store` in order."""
    found = []
    for file in resources.files("sume_jobs.store").joinpath("migrations").iterdir():
        if match := re.fullmatch(r"([0-9]{4})_([a-z0-9_]+)\.sql", file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.version)
    return found


class Standing(NamedTuple):
    """The newest migration that a database has (0: none), the newest that this code has, and
    those of the code that the database lacks (of two branches one may bring a lower number)."""

    applied: int
    newest: int
    missing: tuple[str, ...]


def standing(database: Database) -> Standing:
    """Tell how far a database is."""
    known, recorded = migrations(), set[int]()
    if database.run("select to_regclass('sume_jobs_migration') as ledger")[0]["ledger"]:
        rows = database.run("select version from sume_jobs_migration")
        recorded = {row["version"] for row in rows}
    return Standing(
        max(recorded, default=0),
        known[-1].version,
        tuple(f"{each.version:04d}_{each.name}" for each in known if each.version not in recorded),
    )


def migrate(connection: psycopg.Connection[Any]) -> list[str]:
    """Bring the database up to this code, all or nothing; gives the names of what was applied.

    Safe to repeat and to run twice at once. Raises DatabaseIsNewer where the database is newer
    than the code, MigrationError where an applied file was changed.
    """
    known = migrations()
    applied = []
    with connection.transaction():
        # For this transaction only: a migration may take longer than any statement of the queue.
        connection.execute("set local lock_timeout = '60s'")
        connection.execute("set local statement_timeout = 0")
        # The files are read as they are written, whatever the role has.
        connection.execute("set local standard_conforming_strings = on")
        connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute(_LEDGER)
        rows = connection.execute(
            "select version, name, sha256 from sume_jobs_migration order by version"
        ).fetchall()
        recorded = {row["version"]: row for row in rows}
        _check(known, recorded)
        for migration in known:
            if migration.version in recorded:
                continue
            # The text comes from the package itself.
            connection.execute(migration.sql)
            connection.execute(
                "insert into sume_jobs_migration (version, name, sha256) values (%s, %s, %s)",
                (migration.version, migration.name, migration.sha256),
            )
            applied.append(f"{migration.version:04d}_{migration.name}")
        functions.install(connection, anew=bool(applied))
    return applied


def missing(database: Database) -> list[str]:
    """Name the migrations that a database lacks, for a look; writes nothing.

    Raises DatabaseIsNewer, MigrationError as `migrate` does.
    """
    stands = standing(database)
    if stands.applied:
        rows = database.run("select version, name, sha256 from sume_jobs_migration")
        _check(migrations(), {row["version"]: row for row in rows})
    return list(stands.missing)


def _check(known: list[Migration], recorded: dict[int, Any]) -> None:
    newest = known[-1].version
    if recorded and max(recorded) > newest:
        raise DatabaseIsNewer(
            f"the database is at migration {max(recorded)}, this code only knows {newest}: "
            "deploy the newer code (the database is never taken back)"
        )
    for migration in known:
        row = recorded.get(migration.version)
        if row and row["sha256"] != migration.sha256:
            raise MigrationError(
                f"migration {migration.version:04d}_{migration.name}.sql is not the file that was "
                "applied to this database: restore it and put the change into a new file"
            )
