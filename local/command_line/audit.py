"""The command that compares Sume's jobs with ours: audit."""

from typing import TYPE_CHECKING, Annotated

import typer

from local.command_line.context import Session
from local.command_line.errors import ACT, OK, USAGE, CommandError
from local.command_line.output import shown, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from local.command_line.audit_rounds import Report

SHOWN = 20


def audit(
    session: Session,
    since: Annotated[
        str, typer.Option(help="Begin of the window: 24h, 7d, 90min, or 2026-01-31T08:00Z.")
    ] = "24h",
    until: Annotated[
        str | None, typer.Option(help="End of the window, in the same way.", show_default="now")
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, help="List no more jobs than these, 100 with each read.")
    ] = 100_000,
    checks: Annotated[
        int, typer.Option(min=0, help="Read no more single jobs than these once more.")
    ] = 500,
) -> int:
    """Compare the jobs that Sume lists with those that we hold.

    Tells which are only ours, which are only theirs (paid work without an owner), whose status
    differs, and how many were billed twice: Sume jobs beyond one for each row and generation.
    Whatever differs is looked at once more before it is told. Writes nothing; each read comes out
    of the shared budget of reads. Ends with 1 if there is anything to act on.
    """
    from contextlib import closing

    from rich.console import Console
    from sume_jobs.flows.sume_access import client_of
    from sume_jobs.store import health

    from local.command_line import audit_rounds
    from local.command_line.audit_reads import Reads

    database = session.database
    now = health.clock(database)
    begin, end = _instant(since, now, "--since"), _instant(until or "0s", now, "--until")
    if begin >= end:
        raise CommandError("The window is empty: --since must lie before --until.", USAGE)
    client = client_of(session.runtime)
    # Shown only where somebody looks at a terminal.
    with Console(stderr=True).status("Listing the jobs at Sume") as status, closing(client):
        report = audit_rounds.audit(
            database,
            session.settings,
            Reads(client, database, session.settings),
            audit_rounds.Wanted(begin, end, most, checks),
            status.update,
        )
    session.output.result(report.document(), *_told(report))
    return ACT if report.must_act else OK


def _instant(text: str, now: float, option: str) -> float:
    """Read an instant, or a time before now; seconds since the epoch."""
    import re
    from datetime import UTC, datetime

    units = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
    if found := re.fullmatch(r"(\d{1,9})(s|min|m|h|d)", text.strip(), re.ASCII):
        return now - int(found[1]) * units[found[2]]
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise CommandError(
            f"{option} is neither a time before now (24h, 7d, 90min) nor an instant "
            "(2026-01-31, 2026-01-31T08:00Z).",
            USAGE,
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _told(report: "Report") -> "Iterator[RenderableType]":
    walk, wanted = report.walk, report.wanted
    yield (
        f"From {_time(wanted.since)} to {_time(wanted.until)}: Sume listed {walk.jobs} jobs on "
        f"{walk.pages} pages, we hold {report.ours}, {report.matched} of them on both sides. "
        f"{report.reads} reads."
    )
    yield table(
        "",
        ">jobs",
        "what it means",
        rows=[
            ("billed twice", report.billed_twice, "jobs beyond one for each row and generation"),
            ("only theirs", len(report.only_theirs), "paid work without an owner"),
            ("only ours", len(report.only_ours), "jobs that Sume does not know"),
            ("status differs", len(report.status_differs), "and does not come right by itself"),
            ("conflicts", len(report.conflicts), "kept in job_conflict in this window"),
            ("settles itself", report.count("settles_itself"), "a row will learn of it"),
            ("catching up", len(report.differences) - len(report.status_differs), "in motion"),
            ("of others", report.count("of_others"), "their keys are none of ours"),
        ],
    )
    yield from _details(report)
    for sentence in report.unseen:
        yield f"Not seen: {sentence}."
    yield (
        "There is something to act on: Audit in docs/runbook.md says what."
        if report.must_act
        else "Nothing to act on."
    )


def _details(report: "Report") -> "Iterator[RenderableType]":
    twice = [(each.row_id, each.key, ", ".join(each.job_ids)) for each in report.twice]
    yield from _some("Billed twice", ("row", "key", "jobs at Sume"), twice)
    theirs = [
        (each.job_id, each.status, _time(each.created_at), each.row_id, each.why)
        for each in report.only_theirs
    ]
    yield from _some("Only theirs", ("job", "status", "made", "row", "why"), theirs)
    ours = [
        (each.job_id, each.row_id, each.status, _time(each.created_at)) for each in report.only_ours
    ]
    yield from _some("Only ours", ("job", "row", "status", "recorded"), ours)
    differ = [
        (each.job_id, each.row_id, each.ours, each.theirs, each.why)
        for each in report.status_differs
    ]
    yield from _some("Status differs", ("job", "row", "ours", "theirs", "why"), differ)
    conflicts = [
        (each.row_id, each.job_id, each.reason, _time(each.seen_at)) for each in report.conflicts
    ]
    yield from _some("Conflicts", ("row", "job", "reason", "seen"), conflicts)


def _some(
    title: str, columns: tuple[str, ...], rows: "Sequence[tuple[object, ...]]"
) -> "Iterator[RenderableType]":
    if rows:
        yield table(*columns, rows=rows[:SHOWN], title=title)
    if len(rows) > SHOWN:
        yield f"… and {len(rows) - SHOWN} more; --json shows all."


def _time(seconds: float | None) -> str:
    from datetime import UTC, datetime

    return shown(None if seconds is None else datetime.fromtimestamp(seconds, UTC))
