"""Commands for the database as a whole: migrate, prune."""

from typing import Annotated

import typer

from local.command_line.context import Session
from local.command_line.errors import ACT


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


def prune(
    session: Session,
    days: Annotated[
        int | None,
        typer.Option(min=1, max=36500, help="How long ago it ended (default: RETENTION_DAYS)."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int | None:
    """Delete what ended long ago, batch by batch: rows with all that hangs on them, and events.

    Never rows in flight, nor follow-ups that are still to be handed on, nor what is so young that
    its key could be made anew. The function reap does the same by itself.
    """
    from sume_jobs.store import retention, webhook_events

    settings, output = session.settings, session.output
    age, key_life = days or settings.retention_days, settings.idempotency_retention
    old = retention.count(session.database, age, key_life)
    found = {"days": age, "rows_found": old, "rows_deleted": 0, "webhook_events_deleted": 0}
    output.say(f"{old} rows ended more than {age} days ago and may go.")
    if dry_run:
        output.result(found, "Nothing was deleted.")
        return None
    question = f"Delete them, with their jobs and histories, and webhook events of {age} days ago?"
    if not output.confirm(question, yes=yes):
        output.say("Nothing was deleted.")
        return ACT
    found["rows_deleted"] = retention.purge(session.database, age, key_life, lambda: True)
    retention.purge_strays(session.database, age, key_life, lambda: True)
    while went := webhook_events.purge_old(session.database, age):
        found["webhook_events_deleted"] += went
    rows, events = found["rows_deleted"], found["webhook_events_deleted"]
    output.result(found, f"{rows} rows and {events} webhook events deleted.")
    return None
