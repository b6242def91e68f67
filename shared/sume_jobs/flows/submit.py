"""submit: claims due rows, sends each with its own key, records what became of it."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sume_jobs import telemetry
from sume_jobs.decisions import backoff, outcomes
from sume_jobs.decisions.pacing import pace
from sume_jobs.flows import gates
from sume_jobs.flows.paced_run import Done, PacedRun, Signals
from sume_jobs.flows.sume_access import client_of, key_was_rotated
from sume_jobs.settings import RECORD_SECONDS
from sume_jobs.store import gen_jobs, render_jobs, webhook_events
from sume_jobs.store.render_jobs import Accepted, Claim, Recorded, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sume_jobs.connection import Database
    from sume_jobs.decisions.outcomes import Answer, NoAnswer, SubmitOutcome
    from sume_jobs.flows.time_left import TimeLeft
    from sume_jobs.runtime import Runtime
    from sume_jobs.settings import Settings
    from sume_jobs.store.pace import Admission
    from sume_jobs.sume_client import SumeClient

# A job is first looked at after this many seconds; later where a webhook is expected.
FIRST_POLL: Final = 5.0
FIRST_POLL_WITH_WEBHOOK: Final = 30.0
# How often held events are looked for while a run goes on, in seconds.
LOOK_FOR_HELD: Final = 0.2
CAPACITY_PAUSE: Final = 30.0
# The part of the key's life, at most, that is not used for sending.
LAST_OF_LIFE: Final = 0.01


def run(runtime: Runtime, left: TimeLeft) -> dict[str, int]:
    """Submit what is due. Gives counts: claimed, submitted, requeued, failed, stopped (0 or 1).

    Raises SettingsError, SecretUnavailable (before anything is claimed), DatabaseUnavailable.
    """
    settings = runtime.settings
    counts: Counter[str] = Counter()
    # Secrets first: nothing is claimed before the key is in hand.
    client = client_of(runtime)
    try:
        work = _Submit(runtime, client, counts)
        paced = PacedRun(
            work=work,
            left=left,
            pace=work.claiming.pace,
            concurrency=settings.submit_concurrency,
            call_seconds=settings.sume_timeout,
            linger=settings.linger,
        )
        try:
            paced.run()
        finally:
            for metric, name in METRICS.items():
                telemetry.count(metric, counts[name])
            telemetry.event("submit_ran", **counts, stopped=int(paced.stopped))
    finally:
        client.close()
    shown = ("claimed", "submitted", "requeued", "failed")
    return {name: counts[name] for name in shown} | {"stopped": int(paced.stopped)}


METRICS: Final = {
    "Claimed": "claimed",
    "Submitted": "submitted",
    "Requeued": "requeued",
    "SubmitFailed": "failed",
    "IdempotencyHit": "replays",
    "DuplicateJob": "conflicts",
    "DailyLimitReached": "day_full",
}


@dataclass(slots=True)
class _Submit:
    runtime: Runtime
    client: SumeClient
    counts: Counter[str]
    settings: Settings = field(init=False)
    database: Database = field(init=False)
    claiming: render_jobs.ClaimSettings = field(init=False)
    _streak: gates.Streak = field(init=False)
    _to_look_at: list[str] = field(default_factory=list)
    _looked_at: float = 0.0

    def __post_init__(self) -> None:
        self.settings = settings = self.runtime.settings
        self.database = self.runtime.database
        self._streak = gates.Streak(self.database, "writes")
        call_seconds = settings.sume_timeout + RECORD_SECONDS
        life = settings.idempotency_retention
        self.claiming = render_jobs.ClaimSettings(
            prefix=settings.idempotency_prefix,
            webhook_url=settings.webhook_url,
            # What is claimed at the last moment of the key's life would arrive after it.
            retention=life - min(call_seconds, LAST_OF_LIFE * life),
            max_attempts=settings.max_attempts,
            probe_seconds=call_seconds,
            pace=pace(settings.writes_per_minute),
            daily_limit=settings.daily_limit,
        )

    def claim(self, wanted: int, may_be_alone: bool) -> tuple[Admission, list[Claim]]:
        while True:
            result = render_jobs.claim(self.database, self.claiming, wanted, may_be_alone)
            for fate, number in result.ended.items():
                self.counts["canceled" if fate == "canceled" else "failed"] += number
                telemetry.warn("rows_ended_unsent", fate=fate, rows=number)
            if result.claims or not result.ended:
                break
        if result.admission.day_is_full and not result.claims and not self.counts["day_full"]:
            self.counts["day_full"] = 1
            telemetry.warn(
                "daily_limit_reached",
                limit=self.settings.daily_limit,
                seconds=round(result.admission.day_left),
                advice="rows wait for midnight UTC; a higher SUBMIT_DAILY_LIMIT works at once",
            )
        self.counts["claimed"] += len(result.claims)
        self._streak.is_open = result.admission.has_ambiguous
        return result.admission, result.claims

    def is_alone(self, item: Claim) -> bool:
        return item.suspect

    def call(self, item: Claim) -> Answer | NoAnswer:
        return self.client.submit(item.key, item.body)

    def record(self, done: Sequence[Done[Claim]]) -> Signals:
        now = time.time()
        decided = [
            (each, outcomes.decide_submit(each.answer, each.item.first_send, now)) for each in done
        ]
        if any(outcome.http_status == 401 for _, outcome in decided) and (
            key_was_rotated(self.runtime, self.client)
        ):
            # Only the key in hand was refused: the rows go again at once, with the new one.
            decided = [
                (each, outcome._replace(line=outcomes.OLD_KEY))
                if outcome.http_status == 401
                else (each, outcome)
                for each, outcome in decided
            ]
        recorded = render_jobs.record(
            self.database,
            [self._answer(each.item, outcome) for each, outcome in decided],
            self.settings.max_attempts,
            FIRST_POLL_WITH_WEBHOOK if self.settings.webhook_url else FIRST_POLL,
        )
        self._count(decided, recorded)
        self._apply_first_status(decided, recorded)
        signals = self._signals(decided)
        if any(_is_anomaly(each) for each in recorded) and gates.guard(self.runtime):
            signals.stop = True
        return signals

    def release(self, items: Sequence[Claim]) -> None:
        render_jobs.record(
            self.database,
            [
                Refused(
                    item.row_id,
                    item.token,
                    item.key,
                    "requeue",
                    give_back_attempt=True,
                    give_back_send=True,
                )
                for item in items
            ],
            self.settings.max_attempts,
            FIRST_POLL,
        )
        self.counts["claimed"] -= len(items)

    def after(self, force: bool) -> None:
        """Look for events that came before their jobs were recorded (both sides look)."""
        now = time.monotonic()
        if self._to_look_at and (force or now - self._looked_at >= LOOK_FOR_HELD):
            self._looked_at = now
            webhook_events.apply_held(self.database, self._to_look_at)
            self._to_look_at = []

    # What becomes of the row ------------------------------------------------------------------

    def _answer(self, item: Claim, outcome: SubmitOutcome) -> Accepted | Refused:
        request_id = outcome.error.request_id
        line = outcome.line
        if line.action == "accepted" and outcome.job_id:
            return Accepted(item.row_id, item.token, item.key, outcome.job_id, request_id)
        return Refused(
            item.row_id,
            item.token,
            item.key,
            line.action,
            delay=self._delay(item, outcome),
            give_back_attempt=line.give_back_attempt,
            give_back_send=line is outcomes.NEVER_SENT,
            unknown=line.unknown,
            error_code=outcome.error_code,
            error=_shown_error(outcome),
            request_id=request_id,
            job_id=outcome.job_id,
        )

    @staticmethod
    def _delay(item: Claim, outcome: SubmitOutcome) -> float:
        chance = random.random()
        if outcome.line is outcomes.OLD_KEY:
            return 0.0
        if outcome.line.stop == "backoff":
            return backoff.spread(outcome.retry_after or backoff.DEFAULT_RETRY_AFTER, chance)
        if outcome.line.stop == "account":
            # The gate holds the queue; the row only steps aside, so that another one probes.
            return backoff.spread(backoff.FIRST_DELAY, chance)
        return max(
            backoff.after_failure(item.attempts, chance),
            backoff.spread(outcome.retry_after or 0.0, chance),
        )

    def _count(
        self, decided: list[tuple[Done[Claim], SubmitOutcome]], recorded: list[Recorded]
    ) -> None:
        fates = {each.row_id: each for each in recorded}
        for done, outcome in decided:
            row_id, fate = done.item.row_id, fates[done.item.row_id].fate
            self.counts["replays"] += outcome.idempotency_hit
            if fate in ("submitted", "already"):
                self.counts["submitted"] += fate == "submitted"
                self._to_look_at.append(outcome.job_id or "")
            elif fate in ("requeued", "failed", "canceled"):
                self.counts[fate] += 1
            if _is_anomaly(fates[row_id]):
                self.counts["conflicts"] += 1
                if (
                    outcome.line.action == "collision"
                    or fates[row_id].reason == "job_of_another_row"
                ):
                    self.counts["failed"] += 1
                telemetry.alarm(
                    "job_conflict",
                    row=row_id,
                    job=outcome.job_id,
                    reason=fates[row_id].reason or outcome.line.code,
                    advice="another stage or a restored database uses this IDEMPOTENCY_PREFIX: "
                    "give each its own"
                    if outcome.line.action == "collision"
                    else None,
                )
            elif fate == "lost":
                telemetry.warn("late_answer_ignored", row=row_id, outcome=outcome.line.action)
            elif fate not in ("submitted", "already"):
                telemetry.warn(
                    "row_not_submitted",
                    row=row_id,
                    fate=fate,
                    status=outcome.http_status,
                    code=outcome.error.code,
                    reason=outcome.reason,
                    request_id=outcome.error.request_id,
                    attempts=done.item.attempts,
                )

    def _apply_first_status(
        self, decided: list[tuple[Done[Claim], SubmitOutcome]], recorded: list[Recorded]
    ) -> None:
        """Run a job that is already further than queued through the guarded update."""
        known = {each.job_id for each in recorded if each.fate in ("submitted", "already")}
        wishes = {
            outcome.job_id: gen_jobs.Wish(
                outcome.job_id,
                outcome.state.reported.status,
                outcome.state.error_code,
                outcome.state.error_json,
            )
            for _, outcome in decided
            if outcome.job_id in known
            and outcome.job_id
            and outcome.state
            and outcome.state.reported
            and outcome.state.reported.status != "queued"
        }
        if wishes:
            # An event that came early knows more than the answer to a replay does.
            webhook_events.apply_held(self.database, list(wishes))
            gen_jobs.apply(self.database, list(wishes.values()), by="submit")

    # What becomes of the queue ----------------------------------------------------------------

    def _signals(self, decided: list[tuple[Done[Claim], SubmitOutcome]]) -> Signals:
        signals = Signals()
        if any(done.probe and not outcome.line.stop for done, outcome in decided):
            gates.reopen(self.database, "writes")
        for _, outcome in decided:
            if outcome.line.stop:
                signals.stop = True
                self._close_for(outcome)
        if self._streak.note((str(done.item.row_id), _says(outcome)) for done, outcome in decided):
            signals.stop = True
        capacities = [outcome.capacity for _, outcome in decided if outcome.capacity is not None]
        if capacities:
            signals.one_at_a_time = min(capacities) <= self.settings.submit_concurrency
            if min(capacities) <= 0:
                signals.stop = True
                gates.close(self.database, "writes", "queue_capacity", CAPACITY_PAUSE)
        return signals

    def _close_for(self, outcome: SubmitOutcome) -> None:
        reason = outcome.line.code or outcome.error.code or f"http_{outcome.http_status}"
        if outcome.line.stop == "account":
            gates.stop_account(self.runtime, reason, outcome.http_status)
        else:
            wait = outcome.retry_after or backoff.DEFAULT_RETRY_AFTER
            gates.close(self.database, "writes", reason, wait, outcome.http_status)


def _is_anomaly(recorded: Recorded) -> bool:
    """Tell whether the answer is kept in job_conflict."""
    return recorded.fate == "conflict" or recorded.reason == "job_without_send"


def _says(outcome: SubmitOutcome) -> bool | None:
    """Ambiguous (True), an acceptance that ends a row of ambiguous answers (False), or neither."""
    if outcome.line.ambiguous:
        return True
    return False if outcome.line.action == "accepted" else None


def _shown_error(outcome: SubmitOutcome) -> dict[str, object]:
    """All that is known about an answer that was no acceptance, without what was sent."""
    known = {
        "http_status": outcome.http_status,
        "code": outcome.error.code,
        "message": outcome.error.message,
        "retryable": outcome.error.retryable,
        "reason": outcome.reason,
        "outcome_unknown": outcome.line.unknown or None,
    }
    return {key: value for key, value in known.items() if value is not None}
