"""What a run came to: the table at its end, and whether every promise was kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

from local.progress import standing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from local.bundle import Bundle
    from local.progress import Standing
    from local.runner import Statistics

REASONS = """
select coalesce(attention, error_code, submission_error_code, job_status, submission_status),
       count(*)
  from run_rows join job_support using (id)
 where state = 'needs_attention' group by 1 order by 2 desc, 1"""

KEYS = "select id, idempotency_key, sume_job_id from run_rows join render_jobs using (id)"

FOLLOW_UPS = """
select count(*),
       count(*) filter (where (
         select array_agg(kind) from follow_up f
          where f.job_id = g.job_id and f.kind in ('job.completed', 'job.failed', 'job.canceled')
       ) is distinct from array['job.' || g.status])
  from run_rows join render_jobs r using (id) join gen_job g on g.job_id = r.sume_job_id
 where g.status in ('completed', 'failed', 'canceled')"""

CONFLICTS = """
select count(*) from job_conflict where render_job_id in (select id from run_rows)"""


@dataclass
class Report:
    """The numbers of a run. ``billed`` is None with the real API, which tells nobody."""

    standing: Standing
    accepted: int
    billed: int | None
    replays: int | None
    reasons: list[tuple[str, int]]
    follow_ups: int
    webhooks: Mapping[str, int]
    rejected_webhooks: int
    functions: Mapping[str, Statistics]
    memory_limits: Mapping[str, int]
    broken: list[str] = field(default_factory=list)


def report(connection: psycopg.Connection[Any], bundle: Bundle) -> Report:
    """Take stock after everything has come to rest, and check each promise."""
    now = standing(connection)
    keys = connection.execute(KEYS).fetchall()
    accepted = sum(job is not None for _, _, job in keys)
    broken = []
    if now.working:
        broken.append(f"{now.working} rows are neither done nor in need of attention")
    if now.lacks_result:
        broken.append(f"{now.lacks_result} completed jobs are without their result")
    billed = replays = None
    if bundle.fake is not None:
        stats = bundle.fake.stats(keys=True)
        replays = stats["replays"]
        billed = _check_bills(keys, stats["billed_by_key"], broken)
    follow_ups, wrong = connection.execute(FOLLOW_UPS).fetchone() or (0, 0)
    if wrong:
        broken.append(f"{wrong} jobs that ended do not have exactly one follow-up")
    (conflicts,) = connection.execute(CONFLICTS).fetchone() or (0,)
    if conflicts:
        broken.append(f"{conflicts} entries in job_conflict: a row met a job that is not its own")
    responses: Counter[int] = Counter()
    for (function, status), number in bundle.gateway.responses.items():
        if function == "webhook":
            responses[status] += number
    return Report(
        standing=now,
        accepted=accepted,
        billed=billed,
        replays=replays,
        reasons=connection.execute(REASONS).fetchall(),
        follow_ups=follow_ups,
        webhooks=dict(bundle.gateway.outcomes),
        rejected_webhooks=sum(number for status, number in responses.items() if status >= 400),
        functions=bundle.runner.statistics(),
        memory_limits={name: f.memory_megabytes for name, f in bundle.runner.functions.items()},
        broken=broken,
    )


def _check_bills(
    keys: list[tuple[int, str | None, str | None]],
    billed_by_key: Mapping[str, int],
    broken: list[str],
) -> int:
    """Compare the rows with what the fake billed; the number of jobs billed for them."""
    bills = [(row, job, billed_by_key.get(key or "", 0)) for row, key, job in keys]
    twice = [row for row, _, number in bills if number > 1]
    unpaid = [row for row, job, number in bills if job is not None and not number]
    unknown = [row for row, job, number in bills if job is None and number]
    if twice:
        broken.append(f"billed more than once: {_rows(twice)}")
    if unpaid:
        broken.append(f"said to be submitted, but never billed: {_rows(unpaid)}")
    if unknown:
        broken.append(f"billed, but without their job: {_rows(unknown)}")
    return sum(number for _, _, number in bills)


def _rows(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:10]))
    return f"{len(rows)} rows (id {shown}{', …' if len(rows) > 10 else ''})"


def summary_table(found: Report, seconds: float) -> Table:
    """The table that ends a run."""
    table = Table(show_header=False, title="Result", title_justify="left", min_width=50)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    now = found.standing
    table.add_row("rows", str(now.rows), "")
    refused = now.rows - found.accepted
    note = f"{refused} refused by Sume, never billed" if refused else ""
    if found.billed is None:
        table.add_row("jobs accepted", str(found.accepted), note)
    else:
        equal = "equal to rows" if found.billed == now.rows else note
        table.add_row("jobs billed", str(found.billed), equal)
    table.add_row("done", str(now.done), "")
    table.add_row("needs attention", str(now.needs_attention), "")
    for reason, number in found.reasons:
        table.add_row(f"  {reason}", str(number), "")
    if now.working:
        table.add_row("in between", str(now.working), "")
    table.add_section()
    table.add_row("follow-ups", str(found.follow_ups), "one for each job that ended")
    webhooks = found.webhooks
    table.add_row("webhooks applied", str(webhooks.get("applied", 0)), "")
    if webhooks.get("held"):
        table.add_row("webhooks early", str(webhooks["held"]), "held, applied with the row")
    table.add_row("webhooks duplicate", str(webhooks.get("duplicate", 0)), "")
    for outcome in ("noop", "ignored"):
        if webhooks.get(outcome):
            table.add_row(f"webhooks {outcome}", str(webhooks[outcome]), "")
    if found.rejected_webhooks:
        table.add_row("webhooks refused", str(found.rejected_webhooks), "")
    poll = found.functions["poll"].counts
    table.add_row("polls", str(poll["polled"]), f"{poll['results']} results fetched")
    if found.replays is not None:
        table.add_row("replays", str(found.replays), "same key again, same job, billed once")
    requeued = found.functions["submit"].counts["requeued"]
    table.add_row("sends put back", str(requeued), "429, dropped connections and the like")
    table.add_row("time", f"{seconds:.1f} s", "")
    return table


def functions_table(found: Report) -> Table:
    """What the functions did: calls, failures, the slowest call, the most memory."""
    table = Table(title="Functions", title_justify="left")
    table.add_column("function")
    for name in ("calls", "cold", "failed", "longest", "memory"):
        table.add_column(name, justify="right")
    for name, done in found.functions.items():
        if done.invocations:
            table.add_row(
                name,
                str(done.invocations),
                str(done.cold_starts),
                str(done.errors),
                f"{done.longest_seconds:.2f} s",
                f"{done.peak_memory_bytes / 2**20:.0f} of {found.memory_limits[name]} MB",
            )
    return table
