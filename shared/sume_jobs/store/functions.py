"""The functions in which the database keeps the plans of stored statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sume_jobs.store import follow_ups, gen_jobs, render_jobs, webhook_events
from sume_jobs.stored_statement import NAME_PATTERN

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGresult

    from sume_jobs.connection import Database
    from sume_jobs.stored_statement import StoredStatement

STATEMENTS: Final = (
    render_jobs.CLAIM,
    render_jobs.RECORD_NEW,
    render_jobs.RECORD,
    render_jobs.REAP,
    gen_jobs.APPLY,
    gen_jobs.CLAIM,
    gen_jobs.LOOKED,
    webhook_events.RECEIVE,
    webhook_events.RECEIVE_UNDECIDED,
    follow_ups.CLAIM,
    follow_ups.MARK,
)

_KNOWN: Final = """
select proname as name, oid::regprocedure::text as signature from pg_proc
 where pronamespace = quote_ident(current_schema())::regnamespace and proname ~ %(pattern)s"""


def install(connection: psycopg.Connection[Any], *, anew: bool) -> None:
    """Make the functions that are missing, all of them where `anew`, and drop those of other code.

    To be called in a transaction. Code that still looks for a dropped one runs its text instead.
    """
    rows = connection.execute(_KNOWN, {"pattern": NAME_PATTERN}).fetchall()
    wanted = {each.function: each for each in STATEMENTS}
    for row in rows:
        if anew or row["name"] not in wanted:
            connection.execute(f"drop function {row['signature']}")
    kept = set() if anew else {row["name"] for row in rows}
    for name, statement in wanted.items():
        if name not in kept:
            connection.execute(_definition(connection, statement))


def missing(database: Database) -> list[str]:
    """Name the statements of this code that the database has no function for."""
    known = {row["name"] for row in database.run(_KNOWN, {"pattern": NAME_PATTERN})}
    return [each.label for each in STATEMENTS if each.function not in known]


def _definition(connection: psycopg.Connection[Any], statement: StoredStatement) -> str:
    """Write the function. The server itself tells the types that its text takes and gives."""
    described = _described(connection, statement)
    takes = [_type(connection, described.param_type(n)) for n in range(described.nparams)]
    columns = [
        f'"{(described.fname(n) or b"").decode()}" {_type(connection, described.ftype(n))}'
        for n in range(described.nfields)
    ]
    gives = f"table ({', '.join(columns)})" if columns else "void"
    settings = "".join(f"set {each}\n" for each in statement.settings)
    return f"""create function {statement.function}({", ".join(takes)}) returns {gives}
language plpgsql
{settings}as $function$
#variable_conflict use_column
begin
{"return query" if columns else ""}{statement.numbered};
end $function$"""


def _described(connection: psycopg.Connection[Any], statement: StoredStatement) -> PGresult:
    from psycopg import ProgrammingError
    from psycopg.pq import ExecStatus

    server = connection.pgconn
    # Without a name: it is gone with the next statement.
    result = server.prepare(b"", statement.numbered.encode())
    if result.status == ExecStatus.COMMAND_OK:
        result = server.describe_prepared(b"")
    if result.status != ExecStatus.COMMAND_OK:
        raise ProgrammingError(f"{statement.label}: {result.get_error_message()}")
    return result


def _type(connection: psycopg.Connection[Any], oid: int) -> str:
    row = connection.execute("select format_type(%s, null) as name", (oid,)).fetchone()
    return str(row["name"]) if row else "text"
