"""Commands that look at rows: list, show."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from local.command_line import ids
from local.command_line.context import Session
from local.command_line.errors import USAGE, CommandError
from local.command_line.output import shown, state_text, table


class State(StrEnum):
    """The three that people see."""

    WORKING = "working"
    DONE = "done"
    NEEDS_ATTENTION = "needs_attention"


def list_(
    session: Session,
    state: Annotated[State | None, typer.Option(help="Only rows in this state.")] = None,
    reference: Annotated[str | None, typer.Option(help="Only the row of this reference.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Rows on a page.")] = 20,
    before: Annotated[
        int | None, typer.Option(metavar="ID", help="The next page: rows older than this one.")
    ] = None,
) -> None:
    """List rows, newest first, a page at a time."""
    from sume_jobs.decisions.enqueue_request import LARGEST_ID
    from sume_jobs.store import job_views, operator_views

    database, wanted = session.database, None if state is None else state.value
    following: int | None = None
    if reference is None:
        start = LARGEST_ID if before is None else min(max(before, 0), LARGEST_ID)
        jobs, following = job_views.newest(database, start, limit, wanted)
        # Where rows of a state are far apart a page may come out empty and not be the last.
        while not jobs and following is not None:
            jobs, following = job_views.newest(database, following, limit, wanted)
    elif before is None:
        jobs = job_views.by_reference(database, reference, wanted)
    else:
        raise CommandError("--before goes with no --reference: that is one row at most.", USAGE)
    rows = operator_views.standing(database, [json.loads(job)["id"] for job in jobs])
    if session.output.is_json:
        session.output.document({"jobs": [_document(row) for row in rows], "next": following})
        return
    if not rows:
        session.output.show("No such rows." if wanted or reference else "There are no rows yet.")
        return
    session.output.show(
        table(
            ">id", "reference", "state", "what there is to say", "model", "changed",
            rows=(_cells(row) for row in rows),
        )
    )  # fmt: skip
    if following is not None:
        again = f" --state {wanted}" if wanted else ""
        session.output.say(f"More: ./sume-jobs list{again} --before {following}")


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        row["id"],
        row["reference"],
        state_text(row["state"]),
        standing(row),
        row["model"],
        row["updated_at"],
    )


def standing(row: dict[str, Any]) -> str:
    """Where a row is, or why it needs attention, in a few words."""
    from sume_jobs.decisions.advice import advise

    if row["state"] == "needs_attention":
        return advise(row).reason
    if row["state"] == "done":
        return f"{len(row['artifacts'])} files" if len(row["artifacts"]) != 1 else "1 file"
    waits = "waits for its time to be sent" if row["is_later"] else "waits to be sent"
    words = {"pending": waits, "submitting": "is being sent"}
    return words.get(row["submission_status"]) or f"is {row['job_status']} at Sume"


def _document(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "standing": standing(row)}


def show(
    session: Session, job: Annotated[str, typer.Argument(metavar="ID", help=ids.HELP)]
) -> None:
    """Show everything that is known about a row, its prompt and its results included."""
    from sume_jobs.decisions.advice import advise
    from sume_jobs.store import job_views

    row_id = ids.row(session, job)
    row = job_views.support(session.database, row_id)
    if row is None:
        raise CommandError(f"Row {row_id} was deleted at this very moment.")
    found = json.loads(row["job"])
    advice = advise(row) if row["state"] == "needs_attention" else None
    found["advice"] = None if advice is None else {"reason": advice.reason, "action": advice.action}
    session.output.result(found, *_parts(found))


# What people look for first; the rest follows as the view has it.
FIRST = (
    "id", "reference", "state", "prompt", "model", "params", "priority", "run_after", "generation",
    "submission_status", "submission_error_code", "submission_error", "sume_job_id", "job_status",
    "error_code", "error", "attention",
)  # fmt: skip
# What is a table of its own, with the columns that people look at.
LISTS = {
    "history": ("at", "machine", "by", "from", "to", "job_id"),
    "jobs": ("job_id", "status", "error_code", "request_id", "attention", "created_at"),
    "webhook_events": ("received_at", "job_id", "job_status", "outcome", "event_id"),
    "follow_ups": ("created_at", "kind", "attempts", "dispatched_at", "dead_reason"),
    "conflicts": ("seen_at", "job_id", "reason", "idempotency_key"),
}


def _parts(found: dict[str, Any]) -> list[Any]:
    rest = [name for name in found if name not in (*FIRST, *LISTS, "advice", "result")]
    plain = {name: found[name] for name in (*FIRST, *rest) if found.get(name) is not None}
    artifacts = (found.get("result") or {}).get("artifacts") or []
    parts: list[Any] = [
        table(
            "", "",
            rows=((name.replace("_", " "), _text(name, value)) for name, value in plain.items()),
            header=False,
        )
    ]  # fmt: skip
    if artifacts:
        parts += [f"Artifact: {shown(each.get('url'))}" for each in artifacts]
    for name, columns in LISTS.items():
        if found[name]:
            rows = [[_text(column, each.get(column)) for column in columns] for each in found[name]]
            headers = [column.replace("_", " ") for column in columns]
            parts.append(table(*headers, rows=rows, title=name.replace("_", " ")))
    if found["advice"]:
        parts.append(f"{found['advice']['reason']} {found['advice']['action']}")
    return parts


def _text(name: str, value: Any) -> Any:
    if isinstance(value, str) and (name.endswith(("_at", "_after", "_since")) or name == "at"):
        from sume_jobs.decisions.instants import instant

        return instant(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
