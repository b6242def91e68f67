"""The server that a benchmark has to itself, on a file system in memory or on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import ClassVar, Self

import psycopg
from psycopg.conninfo import make_conninfo

from local.postgres import ROLE, EmbeddedPostgres
from local.runner import PROJECT

FOLDER = PROJECT / ".local" / "bench"
MEMORY = Path("/dev/shm")
# Steadier than any disk: each commit is about 1 ms dearer, like a database over a network.
MEMORY_SETTINGS = {"commit_delay": "1000", "commit_siblings": "0"}


class Server:
    """Runs PostgreSQL, with a fixed price for each commit unless ``on_disk``. A context manager."""

    SETTINGS: ClassVar = {"shared_buffers": "512MB", "max_wal_size": "2GB"}

    def __init__(self, *, on_disk: bool, **settings: str) -> None:
        self.on_disk = on_disk or not MEMORY.is_dir()
        self._settings = self.SETTINGS | settings | ({} if self.on_disk else MEMORY_SETTINGS)
        self._stack = contextlib.ExitStack()
        self._postgres: EmbeddedPostgres

    def __enter__(self) -> Self:
        FOLDER.mkdir(parents=True, exist_ok=True)
        parent = FOLDER if self.on_disk else MEMORY
        folder = Path(tempfile.mkdtemp(prefix=f"sume-bench-{os.getpid()}-", dir=parent))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            self._postgres = self._stack.enter_context(EmbeddedPostgres(folder, self._settings))
            self.prepare()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def prepare(self) -> None:
        """What else is there from the beginning."""

    def describe(self) -> str:
        """The server and its setting, in one line."""
        with psycopg.connect(self._postgres.superuser_url) as connection:
            version = connection.info.parameter_status("server_version")
        where = "disk" if self.on_disk else "memory, commit_delay 1 ms"
        buffers = self._settings["shared_buffers"]
        return f"PostgreSQL {version}, fsync on, shared_buffers {buffers}, data on {where}"

    def create(self, name: str, template: str = "template0") -> str:
        """Make a database; its URL."""
        made = f"create database {name} template {template} owner {ROLE}"
        self.superuser(f"{made} strategy file_copy")
        return self.url(name)

    def url(self, name: str) -> str:
        """A database, as the role that owns the tables."""
        return make_conninfo(self._postgres.url, dbname=name)

    def drop(self, name: str) -> None:
        """Make room."""
        self.superuser(f"drop database if exists {name} with (force)")

    def superuser(self, statement: str) -> None:
        """Run a statement as the superuser."""
        with psycopg.connect(self._postgres.superuser_url, autocommit=True) as connection:
            connection.execute(statement.encode())
