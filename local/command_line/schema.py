"""The command that brings a database up to this program: migrate."""

from local.command_line.context import Session


def migrate(session: Session) -> None:
    """Bring the database up to this program's schema; safe to repeat.

    It is never taken back. A deployed bundle migrates its database by itself.
    """
    from sume_jobs.store import migrations

    applied = migrations.migrate(session.runtime.database.connection())
    standing = migrations.standing(session.runtime.database)
    if applied:
        text = f"Applied {', '.join(applied)}."
    else:
        text = f"Nothing to do: the database is at migration {standing.applied} already."
    session.output.result({"applied": applied, "version": standing.applied}, text)
