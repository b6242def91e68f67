"""What a warm container keeps between invocations: settings, secrets, the connection."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sume_jobs.secrets import Secrets
from sume_jobs.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from sume_jobs.connection import Database


class Runtime:
    """The collaborators of one function."""

    def __init__(
        self, settings: Settings, secrets: Secrets, database: Database | None = None
    ) -> None:
        self.settings = settings
        self.secrets = secrets
        self._database = database
        self._seconds_left: Callable[[], float] | None = None

    @property
    def database(self) -> Database:
        """The database; psycopg is imported and connected only when a statement needs it."""
        if self._database is None:
            from sume_jobs.connection import Database

            self._database = Database(self.settings, self.secrets)
            self.begin(self._seconds_left)
        return self._database

    def begin(self, seconds_left: Callable[[], float] | None) -> None:
        """Begin an invocation: the database is waited for no longer than its time allows."""
        self._seconds_left = seconds_left
        if self._database is not None:
            self._database.seconds_left = seconds_left or (lambda: float("inf"))

    def close(self) -> None:
        """Close the connection, if one was opened."""
        if self._database is not None:
            self._database.close()


_current: Runtime | None = None


def current(seconds_left: Callable[[], float] | None = None) -> Runtime:
    """Give the container's runtime, made anew where the settings changed.

    `seconds_left` tells what the invocation has left; without it there is no limit. Raises
    SettingsError.
    """
    global _current
    settings = Settings.from_environment(os.environ)
    if _current is None or _current.settings != settings:
        reset()
        _current = Runtime(settings, Secrets(settings))
    _current.begin(seconds_left)
    return _current


def reset() -> None:
    """Forget everything, as a cold start does."""
    global _current
    if _current is not None:
        _current.close()
    _current = None
