"""What a command works with: the output, the settings, the database.

The database is the one that is named, by `--database-url` or by the variables that the functions
read; where none is named it is that of the bundle which runs on this machine, with its settings.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from local.command_line.errors import MIGRATE, USAGE, CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import psycopg
    from sume_jobs.connection import Database
    from sume_jobs.runtime import Runtime
    from sume_jobs.settings import Settings

    from local.command_line.output import Output

NAMING = ("DATABASE_URL", "DATABASE_SECRET_ARN", "DATABASE_HOST")
NO_DATABASE = (
    "No database: the bundle does not run in {folder}. Start it with `./sume-jobs up` in another "
    "terminal, or name a database with --database-url or DATABASE_URL."
)


@dataclass
class Session:
    """One run of a command. Everything is opened when it is first asked for."""

    output: Output
    database_url: str | None
    folder: Path

    @cached_property
    def running(self) -> Mapping[str, str] | None:
        """What the functions of the local bundle run with, where it runs and is meant."""
        from local.running import read

        if self.database_url or any(os.environ.get(name, "").strip() for name in NAMING):
            return None
        return read(self.folder)

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The variables that hold for this command. Raises CommandError without a database."""
        if self.database_url:
            return {**os.environ, "DATABASE_URL": self.database_url}
        if any(os.environ.get(name, "").strip() for name in NAMING):
            return os.environ
        if self.running is None:
            raise CommandError(NO_DATABASE.format(folder=self.folder), USAGE)
        return {**os.environ, **self.running}

    @cached_property
    def settings(self) -> Settings:
        """The settings; raises SettingsError, which names every fault."""
        from sume_jobs.settings import Settings

        return Settings.from_environment(self.environment)

    @cached_property
    def runtime(self) -> Runtime:
        """Settings, secrets and the database without a look at its schema."""
        from sume_jobs.runtime import Runtime
        from sume_jobs.secrets import Secrets

        log_beside_results()
        return Runtime(self.settings, Secrets(self.settings))

    @cached_property
    def database(self) -> Database:
        """The database, once its schema was found to be the one of this program."""
        from sume_jobs.store import migrations

        database = self.runtime.database
        standing = migrations.standing(database)
        if standing.missing:
            at = f"lacks {', '.join(standing.missing)}" if standing.applied else "has no schema yet"
            raise CommandError(f"The database {at}: {MIGRATE}.")
        if standing.applied > standing.newest:
            self.output.warn(
                f"The database is at migration {standing.applied}, newer than this program "
                f"({standing.newest}): use the program that is deployed."
            )
        return database

    def connect(self) -> psycopg.Connection[dict[str, Any]]:
        """A connection for a command of many statements; autocommit, rows as dicts."""
        return self.database.connection()

    def close(self) -> None:
        """Close what was opened."""
        if "runtime" in self.__dict__:
            self.runtime.close()


class _StandardError:
    """Whatever the standard error is at the moment of writing."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def log_beside_results() -> None:
    """Send the log lines of the layer to the standard error: the output is for results alone."""
    import logging

    from sume_jobs import telemetry

    handler = telemetry.logger.registered_handler
    if isinstance(handler, logging.StreamHandler):
        handler.setStream(_StandardError())
