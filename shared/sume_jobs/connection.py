"""One database connection a warm container, replaced when it is no longer good.

Autocommit, no prepared statements, no session state: it works behind RDS Proxy and PgBouncer.
Time limits come from the role (see the first migration).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import conninfo
from psycopg.adapt import Loader
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import dict_row

from sume_jobs import telemetry
from sume_jobs.decisions.instants import since_2000
from sume_jobs.settings import SettingsError
from sume_jobs.stored_statement import StoredStatement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from psycopg.abc import RV, Buffer, PQGen

    from sume_jobs.secrets import Secrets
    from sume_jobs.settings import Settings

CONNECT_SECONDS: Final = 3
# How often a wait looks at its time limit.
LOOK_SECONDS: Final = 0.1
# A connection that was idle for longer may be dead without a sign (NAT and load balancers drop
# at 350 s); to find out would take longer than to open another.
LONGEST_IDLE: Final = 240.0
# The role's statement_timeout ends a statement after 20 s. An answer that is not here a little
# later never comes, although the server, or what stands for it, still acknowledges packets.
LONGEST_STATEMENT: Final = 22.0
# A little more than the role's lock_timeout: sooner, a wait for a lock would pass for silence.
LOCK_SECONDS: Final = 2.2
# Kept for the second try: to connect (2 s, the least that libpq allows) and a last statement.
SECOND_TRY_SECONDS: Final = 2.5
LAST_STATEMENT: Final = 0.5
SHORT_OF_TIME: Final = 10.0
# The certificates of Amazon RDS; `make certificates` puts the file into the layer.
RDS_CERTIFICATES: Final = Path(__file__).parent / "rds-global-bundle.pem"

Row = dict[str, Any]

_REFUSED_CREDENTIALS: Final = ("28P01", "28000")
# Deadlock and serialization failure: Postgres undid the statement, so it may run again.
_UNDONE: Final = ("40P01", "40001")
# A function that is not there, not for this role, dropped a moment ago, or made for other columns.
# Nothing of it has happened: its statement's text is run instead, and tells what else is wrong.
_NO_FUNCTION: Final = ("42883", "42501", "XX000", "42804", "0A000")
_REMEDIES: Final = {
    "25006": ": the server is a replica, or the role has default_transaction_read_only; point"
    " DATABASE_… at the writer, or reset that",
    "40001": ": set default_transaction_isolation of the functions' role to 'read committed'",
}


class DatabaseUnavailable(RuntimeError):
    """The database cannot be used now; the caller should be asked to come back."""


class _Connection(psycopg.Connection[Row]):
    """Waits for the server `patience` seconds at most, then raises OperationalError."""

    patience: float | None = None

    def wait(
        self, gen: PQGen[RV], interval: float = LOOK_SECONDS, timeout: float | None = None
    ) -> RV:
        return super().wait(gen, interval, self.patience if timeout is None else timeout)


class _Instant(Loader):
    """Reads an instant in UTC, and what datetime cannot hold (infinite, a year before 1 or after
    9999) as its ends.

    Any writer may put such an instant into a row; no list may fail for that one row.
    """

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        return since_2000(int.from_bytes(data, signed=True))


class Database:
    """Runs statements. Every statement is its own transaction.

    `seconds_left` tells how much time the caller has: a server that is silent is given up in time
    to say so.
    """

    def __init__(self, settings: Settings, secrets: Secrets) -> None:
        self._settings = settings
        self._secrets = secrets
        self._connection: _Connection | None = None
        self._used_at = 0.0
        # Functions that this connection did not find.
        self._without: set[str] = set()
        self.seconds_left: Callable[[], float] = _for_ever

    def run(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Run one statement that is safe to repeat and give its rows.

        It is repeated once, on a fresh connection, where the connection was lost or silent or the
        server cannot write; and once after a deadlock. Raises DatabaseUnavailable, or
        psycopg.Error for what the statement itself did wrong (also when it waited too long for a
        lock).
        """
        began = time.monotonic()
        try:
            return self._once(sql, parameters)
        except psycopg.Error as error:
            if not self._worth_repeating(error):
                raise
            may_be_silent = time.monotonic() - began >= LAST_STATEMENT
            if may_be_silent and self.seconds_left() < SECOND_TRY_SECONDS - LAST_STATEMENT:
                raise DatabaseUnavailable(f"no answer in time ({_kind(error)})") from error
            telemetry.warn("database_statement_repeated", sqlstate=error.sqlstate)
        try:
            return self._once(sql, parameters)
        except psycopg.Error as error:
            if not self._worth_repeating(error):
                raise
            remedy = _REMEDIES.get(error.sqlstate or "", "")
            raise DatabaseUnavailable(f"statement failed twice ({_kind(error)}){remedy}") from error

    def _once(self, sql: str, parameters: Mapping[str, Any] | None) -> list[Row]:
        connection = self.connection()
        connection.patience = self._patience()
        try:
            # The text is the project's own, put together in `store`; values are parameters.
            # Binary: as text, values look as the role has it (DateStyle, bytea_output, …).
            if isinstance(sql, StoredStatement) and sql.label not in self._without:
                try:
                    return connection.execute(sql.call, parameters, binary=True).fetchall()
                except psycopg.Error as error:
                    if error.sqlstate not in _NO_FUNCTION:
                        raise
                    self._without.add(sql.label)
            cursor = connection.execute(sql, parameters, binary=True)
            return cursor.fetchall() if cursor.description else []
        finally:
            connection.patience = None
            if not _is_good(connection):
                self.close()

    def _patience(self) -> float:
        """How long to wait for one statement, so that the caller can still act on its failure."""
        left = self.seconds_left()
        first = left - SECOND_TRY_SECONDS
        patience = first if first >= LOCK_SECONDS else left - LAST_STATEMENT
        return min(LONGEST_STATEMENT, max(LAST_STATEMENT, patience))

    def connection(self) -> _Connection:
        """Give the open connection, opening one if need be. Raises DatabaseUnavailable."""
        idle = time.monotonic() - self._used_at
        if self._connection is not None and (idle > LONGEST_IDLE or not _is_good(self._connection)):
            self.close()
        if self._connection is None:
            self._connection = self._connect()
        self._used_at = time.monotonic()
        return self._connection

    @property
    def without_functions(self) -> frozenset[str]:
        """The labels of the stored statements whose functions this connection did not find."""
        return frozenset(self._without)

    def close(self) -> None:
        """Drop the connection; the next statement opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except psycopg.Error as error:
                telemetry.warn("database_close_failed", kind=_kind(error))

    def _worth_repeating(self, error: psycopg.Error) -> bool:
        if error.sqlstate in _UNDONE:
            return True
        # 25006: the server became a read-only replica; 57P0x: it is shutting down.
        if error.sqlstate == "25006" or (error.sqlstate or "").startswith(("57P0", "08")):
            self.close()
            return True
        return isinstance(error, psycopg.OperationalError) and self._connection is None

    def _connect(self) -> _Connection:
        try:
            return self._open(refresh=False)
        except psycopg.OperationalError as error:
            if not _credentials_refused(error):
                raise DatabaseUnavailable(f"cannot connect ({_kind(error)})") from error
        # Rotated while warm: read the secret past the cache, once.
        telemetry.warn("database_credentials_refused")
        try:
            return self._open(refresh=True)
        except psycopg.OperationalError as error:
            raise DatabaseUnavailable(f"cannot connect ({_kind(error)})") from error

    def _open(self, refresh: bool) -> _Connection:
        parameters = connection_parameters(self._settings, self._secrets, refresh)
        left = self.seconds_left() - LAST_STATEMENT
        if left < SHORT_OF_TIME:
            # Whatever the URL says. libpq takes nothing below 2.
            parameters["connect_timeout"] = max(2, min(CONNECT_SECONDS, int(left)))
        connection = _Connection.connect(
            **parameters, autocommit=True, prepare_threshold=None, row_factory=dict_row
        )
        connection.adapters.register_loader("timestamptz", _Instant)
        self._without.clear()
        return connection


def connection_parameters(
    settings: Settings, secrets: Secrets, refresh: bool = False
) -> dict[str, Any]:
    """Put together what libpq needs. Raises SettingsError, SecretUnavailable."""
    if settings.database_url:
        try:
            parameters: dict[str, Any] = conninfo.conninfo_to_dict(settings.database_url)
        except psycopg.ProgrammingError:
            raise SettingsError("DATABASE_URL is not a connection string of libpq") from None
    elif settings.database_secret_arn:
        secret = secrets.database(refresh)
        parameters = {
            "host": settings.database_host or secret.get("host"),
            "port": secret.get("port") or settings.database_port,
            "dbname": settings.database_name or secret.get("dbname") or "postgres",
            "user": secret.get("username"),
            "password": secret.get("password"),
        }
    else:
        parameters = {
            "host": settings.database_host,
            "port": settings.database_port,
            "dbname": settings.database_name,
            "user": settings.database_user,
        }
        if settings.database_iam_auth:
            parameters["password"] = _iam_token(settings)
    parameters.setdefault("connect_timeout", CONNECT_SECONDS)
    parameters.setdefault("application_name", "sume-jobs")
    # Whatever the role, the database or PGCLIENTENCODING has: prompts hold any character.
    parameters["client_encoding"] = "UTF8"
    # A peer that vanished is noticed within a minute, not after the two hours of the default.
    parameters.setdefault("keepalives_idle", 30)
    parameters.setdefault("keepalives_interval", 10)
    parameters.setdefault("keepalives_count", 3)
    parameters.setdefault("tcp_user_timeout", 10000)
    if "sslmode" not in parameters and not _is_local(parameters):
        parameters["sslmode"] = "verify-full"
        if "sslrootcert" not in parameters:
            parameters["sslrootcert"] = _certificates(str(parameters.get("host") or ""))
    return parameters


def _certificates(host: str) -> str:
    # RDS signs its servers itself, but not its proxies: those have public certificates.
    is_proxy = ".proxy-" in host and ".rds.amazonaws.com" in host
    if RDS_CERTIFICATES.exists() and not is_proxy:
        return str(RDS_CERTIFICATES)
    # Not "system": the OpenSSL inside psycopg's wheel looks in a folder that Lambda does not have.
    import certifi

    return certifi.where()


def _is_local(parameters: Mapping[str, Any]) -> bool:
    hosts = str(parameters.get("hostaddr") or parameters.get("host") or "").split(",")
    return all(
        host in ("", "localhost", "::1") or host.startswith(("/", "@", "127.")) for host in hosts
    )


def _iam_token(settings: Settings) -> str:
    """Sign a new token: it is valid for 15 minutes and only looked at when connecting."""
    import boto3

    return boto3.client("rds").generate_db_auth_token(
        DBHostname=settings.database_host or "",
        Port=settings.database_port,
        DBUsername=settings.database_user or "",
    )


def _for_ever() -> float:
    return float("inf")


def _is_good(connection: psycopg.Connection[Row]) -> bool:
    return not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE


def _credentials_refused(error: psycopg.Error) -> bool:
    # libpq gives no SQLSTATE for a refused connection, only the server's words.
    return error.sqlstate in _REFUSED_CREDENTIALS or "authentication failed" in str(error)


def _kind(error: psycopg.Error) -> str:
    return error.sqlstate or type(error).__name__
