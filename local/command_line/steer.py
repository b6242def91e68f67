"""Commands that change what becomes of rows: retry, cancel."""

from typing import Annotated, Any

import typer

from local.command_line import ids
from local.command_line.context import Session
from local.command_line.errors import ACT, OK, CommandError
from local.command_line.output import table


def retry(
    session: Session,
    jobs: Annotated[list[str], typer.Argument(metavar="ID...", help=ids.HELP)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    same_key: Annotated[
        bool,
        typer.Option(
            "--same-key", help="Send again what Sume may have: billed once, if soon enough."
        ),
    ] = False,
    may_bill_twice: Annotated[
        bool,
        typer.Option("--may-bill-twice", help="A new generation also of what Sume may have."),
    ] = False,
) -> int:
    """Make rows that have ended once more: a new generation, with a new key, billed anew.

    A row that failed without anybody knowing whether Sume took it is refused, because it might
    be billed twice: --same-key sends it again under its own key, which costs nothing if Sume
    has it.
    """
    from sume_jobs.store import operator_views

    if same_key and may_bill_twice:
        raise CommandError("--same-key and --may-bill-twice contradict each other.", 2)
    rows = operator_views.standing(session.database, ids.rows(session, jobs))
    refused = [_refusal(row, same_key, may_bill_twice) for row in rows]
    outcomes = [
        {"id": row["id"], "outcome": "refused", "reason": reason}
        for row, reason in zip(rows, refused, strict=True)
        if reason
    ]
    able = [row for row, reason in zip(rows, refused, strict=True) if not reason]
    if able and not session.output.confirm(_question(able, same_key), yes=yes):
        session.output.say("Nothing was done.")
        return ACT
    outcomes += [_retried(session, row, same_key) for row in able]
    return _told(session, outcomes)


def _refusal(row: dict[str, Any], same_key: bool, may_bill_twice: bool) -> str | None:
    ended = row["submission_status"] in ("failed", "canceled") or (
        row["job_status"] in ("completed", "failed", "canceled")
    )
    if not ended:
        return "It has not ended: wait, or cancel it first (./sume-jobs cancel)."
    if same_key:
        may_have = row["sume_may_have_the_job"]
        if may_have and row["submission_error_code"] != "idempotency_key_collision":
            return None
        return "Sume has not got its request: start a new generation, without --same-key."
    if row["sume_may_have_the_job"] and not may_bill_twice:
        return (
            "Sume may have it, a new generation might be billed beside it: use --same-key, which "
            "costs nothing if Sume has it; or, once Sume's list was looked at, --may-bill-twice."
        )
    return None


def _question(rows: list[dict[str, Any]], same_key: bool) -> str:
    number = f"{len(rows)} rows" if len(rows) > 1 else f"row {rows[0]['id']}"
    if same_key:
        return f"Send {number} again, each under its own key?"
    done = sum(row["state"] == "done" for row in rows)
    besides = f" {done} of them are done already." if done and len(rows) > 1 else ""
    if done and len(rows) == 1:
        besides = " It is done already."
    return f"Make {number} once more? Sume bills each anew.{besides}"


def _retried(session: Session, row: dict[str, Any], same_key: bool) -> dict[str, Any]:
    import psycopg
    from sume_jobs.store import render_jobs

    row_id, generation = row["id"], row["generation"]
    try:
        if same_key:
            if render_jobs.send_again(session.database, row_id):
                return {"id": row_id, "outcome": "sent_again", "reason": None}
        elif render_jobs.start_generation(session.database, row_id, generation):
            return {
                "id": row_id,
                "outcome": "new_generation",
                "reason": None,
                "generation": generation + 1,
            }
    except psycopg.errors.CheckViolation as error:
        return {"id": row_id, "outcome": "refused", "reason": error.diag.message_primary}
    return {"id": row_id, "outcome": "refused", "reason": "It was changed at this very moment."}


def cancel(
    session: Session,
    jobs: Annotated[list[str], typer.Argument(metavar="ID...", help=ids.HELP)],
) -> int:
    """Cancel rows: what never left ends at once, else Sume is asked and decides."""
    from sume_jobs.store import render_jobs

    outcomes = []
    for row_id in ids.rows(session, jobs):
        outcome = render_jobs.request_cancel(session.database, row_id)
        reason = None
        if outcome in (None, "too_late"):
            reason = "It has ended already." if outcome else "It was deleted at this very moment."
        outcomes.append(
            {"id": row_id, "outcome": "refused" if reason else outcome, "reason": reason}
        )
    return _told(session, outcomes)


WORDS = {
    "refused": "refused",
    "new_generation": "waits to be sent, as a new generation",
    "sent_again": "waits to be sent again, under its own key",
    "canceled": "canceled, it never left",
    "requested": "Sume is asked to cancel it",
}


def _told(session: Session, outcomes: list[dict[str, Any]]) -> int:
    rows = [(each["id"], WORDS[each["outcome"]], each["reason"]) for each in outcomes]
    session.output.result({"jobs": outcomes}, table(">id", "outcome", "why", rows=rows))
    return ACT if any(each["outcome"] == "refused" for each in outcomes) else OK
