"""The doctor's look at the database: the server, the schema, the clock, who is in the way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import psycopg
from sume_jobs.connection import DatabaseUnavailable
from sume_jobs.secrets import SecretUnavailable
from sume_jobs.settings import SettingsError
from sume_jobs.store import functions, health, migrations

from local.command_line.doctor_finding import (
    Finding,
    Limits,
    duration,
    number,
    ok,
    problem,
    warning,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sume_jobs.connection import Database

# gen_random_uuid() is part of the server since 13.
OLDEST_VERSION: Final = 130000
# What the first migration sets for its role, in milliseconds.
TIME_LIMITS: Final = {
    "lock_timeout": 2_000,
    "statement_timeout": 20_000,
    "idle_in_transaction_session_timeout": 10_000,
}
READS_OF_CLOCK: Final = 3


def check_connection(database: Database) -> Finding:
    """Reach the database, and tell which one it is, without its password."""
    try:
        info = database.connection().info
        name = f"database {info.dbname} as {info.user}"
        where = info.host if info.host.startswith("/") else f"{info.host}:{info.port}"
    except (DatabaseUnavailable, SecretUnavailable, SettingsError) as error:
        return problem(
            "database",
            f"the database cannot be reached: {words_of(error)}",
            "check the variables DATABASE_…, the network path and whether the server runs",
        )
    return ok("database", f"{name} on {where}")


def judge_server(server: health.Server, limits: Limits) -> Iterator[Finding]:
    """Judge what the server said of itself."""
    yield from _check_version(server)
    if server.is_read_only:
        yield problem(
            "database",
            "the server is a read-only replica, or the role may only read",
            "point DATABASE_… at the writer; after a failover, at the cluster's writer address; or "
            f"alter role {server.role} in database {server.database} "
            "set default_transaction_read_only = off",
        )
    if server.isolation != "read committed":
        yield warning(
            "database",
            f"sessions of {server.role} begin at {server.isolation}: claims fail for each other",
            f"as an administrator: alter role {server.role} in database {server.database} "
            "set default_transaction_isolation = 'read committed'",
        )
    if server.is_remote and not server.is_encrypted:
        yield warning(
            "database",
            "the connection is not encrypted",
            "remove sslmode from DATABASE_URL: without it, certificates are verified",
        )
    yield from _check_time_limits(server)
    used = server.connections / server.most_connections
    if used >= limits.share_of_connections:
        yield warning(
            "database",
            f"{server.connections} of {server.most_connections} connections are in use",
            "put RDS Proxy or PgBouncer in front, or lower the functions' concurrency",
        )
    if not server.has_autovacuum:
        yield problem(
            "autovacuum",
            "autovacuum or track_counts is off",
            "switch both on: without them the queue's tables grow and claims get slow",
        )
    if server.oldest_transaction > limits.oldest_transaction:
        yield problem(
            "autovacuum",
            f"the oldest transaction lies {server.oldest_transaction:,} back, and at two billion "
            "Postgres stops all writes",
            "end what holds it (below), then run: vacuum (freeze)",
        )


def words_of(error: Exception) -> str:
    """Say why a connection or a statement failed; libpq names all but the password."""
    cause = error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error
    if isinstance(cause, psycopg.Error) and cause.diag.message_primary:
        return cause.diag.message_primary
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0] if lines else type(cause).__name__


def _check_version(server: health.Server) -> Iterator[Finding]:
    if server.version_number < OLDEST_VERSION:
        yield problem(
            "database",
            f"PostgreSQL {server.version} is too old",
            f"use {OLDEST_VERSION // 10000} or newer",
        )
    if server.encoding != "UTF8":
        yield problem(
            "database",
            f"the database is encoded in {server.encoding}, prompts need UTF8",
            "make a database with encoding 'UTF8' and use that",
        )
    if server.version_number >= OLDEST_VERSION and server.encoding == "UTF8":
        yield ok("database", f"PostgreSQL {server.version}, encoded in UTF8")


def _check_time_limits(server: health.Server) -> Iterator[Finding]:
    wrong = []
    for name, wanted in TIME_LIMITS.items():
        found = getattr(server, name)
        if not 0 < found <= wanted:
            wrong.append(f"{name} is {f'{found / 1000:g} s' if found else 'not set'}")
    if not wrong:
        shown = ", ".join(f"{name} {getattr(server, name) / 1000:g} s" for name in TIME_LIMITS)
        yield ok("time limits", f"sessions of {server.role} have {shown}")
        return
    settings = "; ".join(
        f"alter role {server.role} in database {server.database} set {name} = '{wanted // 1000}s'"
        for name, wanted in TIME_LIMITS.items()
        if not 0 < getattr(server, name) <= wanted
    )
    yield warning(
        "time limits",
        f"for {server.role} {', '.join(wrong)}: a lock or a frozen worker can hold the queue up",
        f"as an administrator: {settings}",
    )


def check_migrations(database: Database) -> Finding:
    """Compare the schema with the code's migrations."""
    try:
        missing = migrations.missing(database)
    except migrations.MigrationError as error:
        return problem("schema", str(error), "use the code that made this schema, or a newer one")
    if missing:
        return problem(
            "schema",
            f"{number(len(missing), 'migration')} not applied: {', '.join(missing)}",
            "run ./sume-jobs migrate (a deployment does it by itself)",
        )
    if without := functions.missing(database):
        return warning(
            "schema",
            f"{number(len(without), 'stored statement')} without a function: {', '.join(without)};"
            " each call of theirs is planned anew",
            "run ./sume-jobs migrate (a deployment does it by itself)",
        )
    newest = migrations.migrations()[-1]
    return ok("schema", f"at migration {newest.version:04d}_{newest.name}, as the code expects")


def check_tables(database: Database, limits: Limits) -> Iterator[Finding]:
    """Look for tables, privileges and guards that are missing, and for bloat."""
    for table in health.tables(database):
        if not table.is_missing:
            yield from judge_table(table, limits)
        else:
            yield problem(
                "schema",
                f"table {table.name} is not there, or not in this role's search_path",
                "migrate, or set the role's search_path to the schema that was migrated",
            )


def judge_table(table: health.Table, limits: Limits) -> Iterator[Finding]:
    """Judge a table that is there."""
    if table.lacks:
        yield problem(
            "schema",
            f"this role may not {', '.join(table.lacks)} on {table.name}",
            f"as its owner: grant {', '.join(table.lacks).lower()} on {table.name} to the role",
        )
    for trigger in table.triggers_off:
        yield problem(
            "schema",
            f"trigger {trigger} of {table.name} is off, and with it a guard",
            f"alter table {table.name} enable trigger {trigger}",
        )
    for index in table.invalid_indexes:
        yield problem(
            "schema",
            f"index {index} of {table.name} is not valid",
            f"reindex index concurrently {index}",
        )
    if table.is_never_vacuumed:
        yield problem(
            "autovacuum",
            f"autovacuum is switched off for {table.name}",
            f"alter table {table.name} reset (autovacuum_enabled)",
        )
    if table.dead > limits.dead_rows and table.dead > table.live:
        yield warning(
            "autovacuum",
            f"{table.name} has {table.dead:,} dead rows beside {table.live:,} live ones",
            f"end what holds old rows (below), then run: vacuum (analyze) {table.name}",
        )


def check_transactions(database: Database, limits: Limits) -> Iterator[Finding]:
    """Look for transactions that keep dead rows or locks: the queue gets slow behind them."""
    return judge_transactions(health.transactions(database, limits.open_transaction), limits)


def judge_transactions(found: health.Transactions, limits: Limits) -> Iterator[Finding]:
    """Judge what is open: sessions, prepared transactions, slots that nobody reads."""
    for session in found.sessions:
        who = f"session {session.pid} of {session.role} ({session.application or 'no name'})"
        age = duration(session.transaction_age)
        what = (
            f"is idle in a transaction that began {age} ago"
            if session.is_idle
            else f"has had a transaction open for {age}"
        )
        yield warning(
            "transactions",
            f"{who} {what}: dead rows stay, and its locks too",
            f"end it there, or: select pg_terminate_backend({session.pid})",
        )
    for what, age_of in found.forgotten:
        since = f" for {duration(age_of)}" if age_of is not None else ""
        yield warning(
            "transactions",
            f"{what} has kept dead rows from being removed{since}",
            "finish or drop it",
        )
    unseen = (
        f"; {number(found.hidden, 'session')} of other roles could not be looked at "
        "(grant pg_read_all_stats to see them)"
        if found.hidden
        else ""
    )
    if not found.sessions and not found.forgotten:
        longest = duration(limits.open_transaction)
        yield ok("transactions", f"none open for more than {longest}{unseen}")


def check_clock(database: Database, limits: Limits) -> Iterator[Finding]:
    """Compare this machine's clock with the database's, half the way there taken off."""
    looks = []
    for _ in range(READS_OF_CLOCK):
        before = time.time()
        theirs = health.clock(database)
        after = time.time()
        looks.append((after - before, theirs - (before + after) / 2))
    way, skew = min(looks)
    yield compare_clocks("database", skew, way / 2, limits)


def compare_clocks(whose: str, skew: float, doubt: float, limits: Limits) -> Finding:
    """Judge how far a clock is ahead of this machine's (seconds, give or take `doubt`)."""
    if abs(skew) - doubt <= limits.skew:
        shown = f"within {duration(max(doubt, abs(skew), 0.1))}"
        return ok("clocks", f"this machine and the {whose} agree {shown}")
    side = "behind" if skew > 0 else "ahead of"
    return warning(
        "clocks",
        f"this machine is {duration(abs(skew))} {side} the {whose}",
        "set the clock by NTP: webhooks are refused once it is WEBHOOK_TOLERANCE_SECONDS off",
    )
