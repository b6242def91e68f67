"""dispatch: hands follow-ups on to their targets, at least once, under a stable id."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from sume_jobs import targets, telemetry
from sume_jobs.decisions import backoff, follow_up_event
from sume_jobs.settings import RECORD_SECONDS
from sume_jobs.store import follow_ups
from sume_jobs.store.follow_ups import Mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sume_jobs.decisions.follow_up_event import Message
    from sume_jobs.flows.time_left import TimeLeft
    from sume_jobs.runtime import Runtime
    from sume_jobs.store.follow_ups import FollowUp
    from sume_jobs.targets import Target

# With the waits between them these attempts last for more than three hours. A target that takes
# nothing at all uses none of them.
MAX_ATTEMPTS: Final = 20
# A follow-up that came meanwhile is looked for this often while a run lingers, in seconds.
LOOK_AGAIN: Final = 1.0


def run(runtime: Runtime, left: TimeLeft, linger: bool = True) -> dict[str, int]:
    """Send what is due. Gives counts: dispatched, failed (not sent now), backlog (what waits).

    Without a target every follow-up stays where it is, and is counted. `linger` waits for new
    ones as LINGER_SECONDS says. Raises DatabaseUnavailable.
    """
    database = runtime.database
    counts: Counter[str] = Counter()
    try:
        if targets.names(runtime.settings):
            _drain(runtime, left, runtime.settings.linger if linger else 0.0, counts)
        if left.seconds() > RECORD_SECONDS:
            counts["backlog"] = follow_ups.backlog(database)
    finally:
        telemetry.count("FollowUpDispatched", counts["dispatched"])
        telemetry.count("FollowUpDead", counts["dead"])
        telemetry.event("dispatch_ran", **counts)
    return {name: counts[name] for name in ("dispatched", "failed", "backlog")}


def _drain(runtime: Runtime, left: TimeLeft, linger: float, counts: Counter[str]) -> None:
    database = runtime.database
    batch_seconds = len(targets.names(runtime.settings)) * targets.CALL_SECONDS + RECORD_SECONDS
    opened: list[Target] | None = None
    idle_until = time.monotonic() + linger
    while left.seconds() > batch_seconds:
        claimed = follow_ups.claim(database, 2 * batch_seconds, MAX_ATTEMPTS)
        _bury(claimed.dead, counts)
        if claimed.follow_ups:
            try:
                opened = targets.open_targets(runtime.settings) if opened is None else opened
            except targets.TargetUnavailable as error:
                opened = [_Closed(str(error))]
            if not _send(runtime, opened, claimed.follow_ups, counts):
                return
            idle_until = time.monotonic() + linger
        elif not claimed.dead:
            if time.monotonic() >= idle_until or left.seconds() <= batch_seconds + LOOK_AGAIN:
                return
            time.sleep(LOOK_AGAIN)


class _Closed:
    """Stands for targets that could not even be opened."""

    name = "aws"

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def send(self, messages: Sequence[Message]) -> dict[str, str]:
        raise targets.TargetUnavailable(self._reason)


def _send(
    runtime: Runtime, opened: list[Target], batch: list[FollowUp], counts: Counter[str]
) -> bool:
    """Send one batch to each target that lacks it, and record it; tells whether to go on."""
    errors: dict[int, str] = {}
    sent = {each.id: list(each.sent_to) for each in batch}
    unavailable: set[int] = set()
    for target in opened:
        missing = [each for each in batch if target.name not in each.sent_to]
        if not missing:
            continue
        try:
            refused = target.send([_message(each) for each in missing])
        except targets.TargetUnavailable as error:
            telemetry.alarm(
                "follow_ups_not_sent",
                target=target.name,
                reason=str(error),
                advice="check FOLLOW_UP_QUEUE_URL and FOLLOW_UP_EVENT_BUS, the function's "
                "permission and its network path; nothing is lost, it is tried again",
            )
            unavailable |= {each.id for each in missing}
            errors |= {each.id: f"{target.name} {error}" for each in missing}
            continue
        for each in missing:
            if code := refused.get(_message(each).id):
                errors[each.id] = f"{target.name} {code}"
            else:
                sent[each.id].append(target.name)
    marked = follow_ups.mark(
        runtime.database,
        [
            Mark(
                each.id,
                each.token,
                tuple(sent[each.id]),
                errors.get(each.id),
                delay=_delay(each, each.id in unavailable) if each.id in errors else 0.0,
                give_back_attempt=each.id in unavailable,
            )
            for each in batch
        ],
        MAX_ATTEMPTS,
    )
    counts["dispatched"] += len(marked.dispatched)
    counts["failed"] += len(marked.waiting)
    _bury(marked.dead, counts)
    for each in batch:
        if each.id in marked.waiting and each.id not in unavailable:
            telemetry.warn(
                "follow_up_refused",
                follow_up=each.id,
                kind=each.kind,
                reason=errors[each.id],
                attempts=each.attempts,
            )
    lost = len(batch) - len(marked.dispatched) - len(marked.waiting) - len(marked.dead)
    if lost:
        telemetry.warn("late_follow_up_ignored", follow_ups=lost)
    return not unavailable


def _bury(dead: Iterable[tuple[int, str, str]], counts: Counter[str]) -> None:
    for follow_up, kind, reason in dead:
        counts["failed"] += 1
        counts["dead"] += 1
        telemetry.alarm(
            "follow_up_dead",
            follow_up=follow_up,
            kind=kind,
            reason=reason,
            advice="see table follow_up; clear dead_reason and attempts to send it again",
        )


def _delay(follow_up: FollowUp, unavailable: bool) -> float:
    if unavailable:
        return backoff.spread(backoff.DEFAULT_RETRY_AFTER, random.random())
    return backoff.after_failure(follow_up.attempts, random.random())


def _message(follow_up: FollowUp) -> Message:
    has_job = follow_up.kind != follow_ups.SUBMISSION_FAILED
    return follow_up_event.message(
        kind=follow_up.kind,
        job_id=follow_up.job_id if has_job else None,
        idempotency_key=follow_up.idempotency_key,
        render_job_id=follow_up.render_job_id,
        reference=follow_up.reference,
        status=follow_up.status,
        error_code=follow_up.error_code,
        occurred_at=follow_up.occurred_at,
    )
