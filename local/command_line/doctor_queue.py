"""The doctor's look at the queue: the gates, and what does not move on as it should."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sume_jobs import targets
from sume_jobs.store import health, levels, pace

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
    from sume_jobs.settings import Settings


def check_queue(database: Database, settings: Settings, limits: Limits) -> Iterator[Finding]:
    """Look at the gates and at what does not move on as it should."""
    yield from _check_gates(database)
    yield from _check_day(database, settings)
    waiting = levels.read(database)
    queue = health.queue(database, settings.claim_timeout + limits.late, limits.late)
    oldest = waiting.oldest_pending_seconds
    if oldest > limits.oldest_pending:
        yield warning(
            "queue",
            f"{number(waiting.pending, 'row')} could be sent, the oldest for {duration(oldest)}",
            "if the gate is open: does submit run (enabled schedules, its log), and is "
            "SUME_WRITES_PER_MINUTE enough?",
        )
    else:
        since = f", the oldest for {duration(oldest)}" if waiting.pending else ""
        yield ok(
            "queue",
            f"{number(waiting.pending, 'row')} could be sent{since}; "
            f"{number(waiting.in_flight, 'job')} in flight",
        )
    yield from _check_stuck(queue, limits)
    yield from _check_follow_ups(queue, waiting, settings, limits)
    for reason, count in health.conflicts(database, limits.conflict_days).items():
        yield problem(
            "conflicts",
            f"{number(count, 'conflict')} of kind {reason} in {limits.conflict_days} days: the "
            "table and Sume disagree about a job",
            "run ./sume-jobs audit, and see DuplicateJob in docs/runbook.md",
        )


def _check_gates(database: Database) -> Iterator[Finding]:
    for gate in pace.state(database):
        name = gate["name"]
        if not gate["is_closed"]:
            yield ok("gates", f"the gate for {name} is open")
        elif gate["closed_for"] == math.inf:
            yield problem(
                "gates",
                f"the gate for {name} is closed until a person opens it: {gate['reason']}"
                + (f" ({gate['detail']})" if gate["detail"] else ""),
                "money may be spent twice: look into it first (AnomalyStop in docs/runbook.md, "
                "./sume-jobs audit), then ./sume-jobs gate open",
            )
        elif gate["closed_for"] > 0:
            yield warning(
                "gates",
                f"the gate for {name} is closed for {duration(gate['closed_for'])} more: "
                f"{gate['reason']}",
                "mend the reason (GateClosed in docs/runbook.md); it opens by itself, or by "
                "./sume-jobs gate open",
            )
        else:
            yield ok(
                "gates",
                f"the gate for {name} is half open after {gate['reason']}: one request will probe",
            )


def _check_day(database: Database, settings: Settings) -> Iterator[Finding]:
    limit, day = settings.daily_limit, pace.day(database)
    if not limit:
        yield ok("budget", f"{number(day['sent'], 'job')} sent this UTC day; no limit is set")
    elif day["sent"] >= limit:
        yield warning(
            "budget",
            f"the {limit:,} jobs of this UTC day are used up (SUBMIT_DAILY_LIMIT), for "
            f"{duration(day['ends_in'])} more",
            "rows wait until midnight UTC, or until the limit is raised",
        )
    else:
        yield ok("budget", f"{day['sent']:,} of {limit:,} jobs sent this UTC day")


def _check_stuck(queue: health.Queue, limits: Limits) -> Iterator[Finding]:
    found = False
    if queue.stale_claims:
        found = True
        yield problem(
            "claims",
            f"{number(queue.stale_claims, 'claim')} ended without a word and were not taken back, "
            f"the oldest {duration(queue.oldest_claim)} old",
            "reap does not run: enable its schedule, look at its log, or invoke it once by hand",
        )
    if queue.suspects:
        found = True
        yield warning(
            "claims",
            f"{number(queue.suspects, 'row')} ended the worker that sent them twice or more",
            "they are sent alone; see StuckSubmitting in docs/runbook.md",
        )
    if queue.held_for_known:
        found = True
        yield warning(
            "held events",
            f"{number(queue.held_for_known, 'held event')} of jobs that are known by now",
            "the next poll applies them; if they stay, poll does not run",
        )
    if queue.held - queue.held_for_known and queue.oldest_held > limits.oldest_held:
        found = True
        yield warning(
            "held events",
            f"{number(queue.held, 'event')} held for jobs that nobody knows here, the oldest for "
            f"{duration(queue.oldest_held)}",
            "does another application of this Sume workspace send its webhooks here? "
            "./sume-jobs audit tells whether it is paid work without an owner",
        )
    if queue.late_polls:
        found = True
        yield warning(
            "polls",
            f"{number(queue.late_polls, 'job')} should have been looked at, the latest "
            f"{duration(queue.latest_poll)} ago",
            "poll does not run or does not keep up: its schedule, the gate of reads, "
            "SUME_READS_PER_MINUTE",
        )
    if queue.overdue:
        found = True
        yield warning(
            "attention",
            f"{number(queue.overdue, 'job')} without a clear end",
            "see NeedsAttention in docs/runbook.md; ./sume-jobs list shows them",
        )
    if not found:
        yield ok("queue", "no stale claim, no late poll, no event held for long")


def _check_follow_ups(
    queue: health.Queue, waiting: levels.Levels, settings: Settings, limits: Limits
) -> Iterator[Finding]:
    if queue.dead_follow_ups:
        yield problem(
            "follow-ups",
            f"{number(queue.dead_follow_ups, 'follow-up')} given up, one because of "
            f"{queue.dead_reason}",
            "mend the reason and hand them on once more: FollowUpDead in docs/runbook.md",
        )
    if not targets.names(settings):
        yield ok(
            "follow-ups",
            f"no target is set: {number(queue.waiting_follow_ups, 'follow-up')} kept in the table",
        )
    elif waiting.oldest_follow_up_seconds > limits.oldest_pending:
        yield warning(
            "follow-ups",
            f"{number(queue.waiting_follow_ups, 'follow-up')} not handed on, the oldest for "
            f"{duration(waiting.oldest_follow_up_seconds)}",
            "does dispatch run, and may it write to its target? FollowUpLag in docs/runbook.md",
        )
    else:
        yield ok(
            "follow-ups", f"{number(queue.waiting_follow_ups, 'follow-up')} waiting to be handed on"
        )
