"""Servers that some faults need: PgBouncer, and a second PostgreSQL that follows the first."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.support.folders import temporary_folder
from tests.support.postgres import APP_ROLE, Database, Server, _die_with_parent, free_port
from tests.support.waiting import wait_until

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/sbin")
POOL_SIZE = 3


class Pooler:
    """PgBouncer in transaction mode before a server, with few server connections."""

    def __init__(self, server: Server, folder: Path) -> None:
        assert PGBOUNCER is not None
        self.port = free_port()
        folder.chmod(0o755)
        self._settings = folder / "pgbouncer.ini"
        target = server.parts()
        self._settings.write_text(
            "[databases]\n"
            f"* = host={target['host']} port={target['port']} user={APP_ROLE}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            "auth_type = any\npool_mode = transaction\n"
            f"default_pool_size = {POOL_SIZE}\nmax_client_conn = 200\n"
            # What tests reset between faults shall be noticed at once, not after 15 seconds.
            "server_login_retry = 0.2\n"
        )
        self._settings.chmod(0o644)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # It refuses to run as root.
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [str(PGBOUNCER), "-q", *user, str(self._settings)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        wait_until(self._answers, "PgBouncer listens")

    def _answers(self) -> bool:
        try:
            psycopg.connect(f"host=127.0.0.1 port={self.port} dbname=postgres user=x").close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def url(self, database: Database) -> str:
        return f"postgresql://{APP_ROLE}@127.0.0.1:{self.port}/{database.name}"


@contextlib.contextmanager
def pooler(server: Server) -> Iterator[Pooler]:
    with temporary_folder() as folder:
        pooler = Pooler(server, folder)
        pooler.start()
        try:
            yield pooler
        finally:
            pooler.stop()


class Primary(Server):
    """An embedded server of the test's own, whatever TEST_DATABASE_URL says."""

    def start(self) -> Primary:
        self._start_embedded()
        self._prepare_roles()
        return self

    def crash(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)


class Standby(Server):
    """A hot standby of a primary; the primary's commits wait for it, as with RDS Multi-AZ."""

    def follow(self, primary: Primary) -> Standby:
        assert primary._directory is not None
        directory = primary._directory / "standby"
        directory.mkdir(mode=0o700)
        if primary._user:
            shutil.chown(directory, primary._user)
        programs = Path(primary._command[0]).parent
        self._user = primary._user
        source = primary.parts()
        subprocess.run(
            [str(programs / "pg_basebackup"), "-R", "-X", "stream", "-c", "fast", "-D",
            str(directory),
             "-h", str(source["host"]), "-p", str(source["port"]), "-U", str(source["user"])],
            check=True,
            capture_output=True,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
            cwd="/",
            timeout=60,
        )  # fmt: skip
        port = free_port()
        with (directory / "postgresql.conf").open("a") as configuration:
            configuration.write(f"\nport = {port}\n")
        self._command = [str(programs / "postgres"), "-D", str(directory)]
        self.log = primary._directory / "standby.log"
        self._parts = {**source, "port": port}
        self._run()
        with primary.connect() as admin:
            admin.execute("alter system set synchronous_standby_names = '*'")
            admin.execute("select pg_reload_conf()")
            wait_until(
                lambda: admin.execute(
                    "select 1 from pg_stat_replication where sync_state = 'sync'"
                ).fetchall(),
                "the standby follows",
                20,
            )
        return self

    def promote(self) -> None:
        with self.connect() as admin:
            admin.execute("select pg_promote()")


@contextlib.contextmanager
def pair() -> Iterator[tuple[Primary, Standby]]:
    """A primary and its standby."""
    primary = Primary()
    standby = Standby()
    try:
        primary.start()
        standby.follow(primary)
        yield primary, standby
    finally:
        standby.stop()
        primary.stop()


def pause(seconds: float) -> None:
    """Let a fault last; nothing is waited for."""
    time.sleep(seconds)
