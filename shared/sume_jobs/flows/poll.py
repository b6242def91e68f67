"""poll: asks Sume about jobs in flight, fetches results, hands on wishes to cancel."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from sume_jobs import telemetry
from sume_jobs.decisions import backoff, outcomes
from sume_jobs.decisions.pacing import pace
from sume_jobs.decisions.status import TERMINAL
from sume_jobs.flows import gates
from sume_jobs.flows.paced_run import Done, PacedRun, Signals
from sume_jobs.flows.sume_access import client_of, key_was_rotated
from sume_jobs.settings import RECORD_SECONDS
from sume_jobs.store import gen_jobs, webhook_events
from sume_jobs.store import pace as pace_store
from sume_jobs.store.gen_jobs import Due, Looked, Wish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sume_jobs.decisions.outcomes import Answer, NoAnswer, ReadOutcome
    from sume_jobs.decisions.pacing import Pace
    from sume_jobs.flows.time_left import TimeLeft
    from sume_jobs.runtime import Runtime
    from sume_jobs.store.pace import Admission
    from sume_jobs.sume_client import SumeClient

# Reads in a row that do not find a job before a person is asked to look.
MISSING_READS: Final = 5
# Reads of a completed job without a result before a person is asked to look.
RESULT_READS: Final = 8
CANCELS_AT_ONCE: Final = 20
CANCEL_AGAIN: Final = 30.0

METRICS: Final = {"PollApplied": "changed"}


def run(runtime: Runtime, left: TimeLeft) -> dict[str, int]:
    """Look at the jobs that are due. Gives counts: polled, changed, results.

    Raises SettingsError, SecretUnavailable, DatabaseUnavailable.
    """
    settings = runtime.settings
    counts: Counter[str] = Counter()
    client = client_of(runtime)
    try:
        if left.seconds() > settings.sume_timeout + RECORD_SECONDS:
            counts["changed"] += len(webhook_events.apply_all_held(runtime.database))
            _ask_to_cancel(runtime, client, left)
        work = _Poll(runtime, client, counts)
        paced = PacedRun(
            work=work,
            left=left,
            pace=work.pace,
            concurrency=settings.submit_concurrency,
            call_seconds=settings.sume_timeout,
            linger=settings.linger,
        )
        try:
            paced.run()
        finally:
            for metric, name in METRICS.items():
                telemetry.count(metric, counts[name])
            telemetry.event("poll_ran", **counts, stopped=int(paced.stopped))
    finally:
        client.close()
    if counts["changed"] and settings.has_target:
        # What ended just now need not wait for the next tick of dispatch.
        from sume_jobs.flows import dispatch

        dispatch.run(runtime, left, linger=False)
    return {name: counts[name] for name in ("polled", "changed", "results")}


class _Poll:
    def __init__(self, runtime: Runtime, client: SumeClient, counts: Counter[str]) -> None:
        self.runtime = runtime
        self.client = client
        self.counts = counts
        self.settings = runtime.settings
        self.database = runtime.database
        self._streak = gates.Streak(self.database, "reads")

    @property
    def pace(self) -> Pace:
        return pace(self.settings.reads_per_minute)

    def claim(self, wanted: int, may_be_alone: bool) -> tuple[Admission, list[Due]]:
        del may_be_alone  # a read harms nobody beside it
        seconds = self.settings.sume_timeout + RECORD_SECONDS
        # Leased for longer than a sweep needs to read and record it.
        admission, jobs = gen_jobs.claim_due(
            self.database, self.pace, wanted, lease=2 * seconds, probe_seconds=seconds
        )
        self.counts["polled"] += len(jobs)
        self._streak.is_open = admission.has_ambiguous
        return admission, jobs

    def is_alone(self, item: Due) -> bool:
        del item
        return False

    def call(self, item: Due) -> Answer | NoAnswer:
        if item.status == "completed":
            return self.client.result(item.job_id)
        return self.client.job(item.job_id)

    def record(self, done: Sequence[Done[Due]]) -> Signals:
        now = time.time()
        decided = [
            (
                each,
                (
                    outcomes.decide_result
                    if each.item.status == "completed"
                    else outcomes.decide_read
                )(each.answer, each.item.job_id, now),
            )
            for each in done
        ]
        moved = gen_jobs.apply(
            self.database,
            [wish for each, outcome in decided if (wish := _wish(each.item, outcome))],
        )
        self.counts["changed"] += sum(each.won for each in moved)
        for each in moved:
            if each.contradicts:
                telemetry.warn(
                    "contradicting_end", job=each.job_id, reported=each.status, by="poll"
                )
        gen_jobs.record_looks(
            self.database, [self._look(each.item, outcome) for each, outcome in decided]
        )
        self.counts["results"] += sum(outcome.action == "result" for _, outcome in decided)
        return self._signals(decided)

    def release(self, items: Sequence[Due]) -> None:
        gen_jobs.record_looks(
            self.database, [Looked(item.job_id, 0.0, attention=item.attention) for item in items]
        )
        self.counts["polled"] -= len(items)

    def after(self, force: bool) -> None:
        """Nothing is left to do after a commit."""

    def _look(self, item: Due, outcome: ReadOutcome) -> Looked:
        """Decide what one look leaves behind: the mark for people and the next look."""
        finding, attention = None, item.attention
        state = outcome.state
        if outcome.action == "state" and state:
            finding = "found"
            if attention == "job_not_found":
                attention = None
            if state.reported is None:
                telemetry.warn("unknown_status", job=item.job_id, word=state.word)
        elif outcome.action == "missing":
            finding = "missing"
            if item.missing_reads + 1 >= MISSING_READS:
                attention = "job_not_found"
        elif outcome.action != "result" and item.status == "completed" and not outcome.stop:
            finding = "no_result"
            if item.result_reads + 1 >= RESULT_READS:
                attention = "result_missing"
        if item.status != "completed" and item.age > self.settings.in_flight_deadline:
            attention = attention or "overdue"
        if attention and attention != item.attention:
            telemetry.alarm("job_needs_attention", job=item.job_id, reason=attention)
        return Looked(
            item.job_id,
            delay=self._delay(item, outcome, attention),
            finding=finding,
            attention=attention,
            webhook_status=state.webhook_status if state else None,
            result=outcome.result,
            error_code=state.error_code if state else None,
            error=state.error_json if state else None,
        )

    @staticmethod
    def _delay(item: Due, outcome: ReadOutcome, attention: str | None) -> float:
        chance = random.random()
        if item.status == "completed" and not attention:
            wait = backoff.after_failure(item.result_reads + 1, chance)
        else:
            wait = backoff.next_poll(item.age, attention is not None, chance)
        return max(wait, backoff.spread(outcome.retry_after or 0.0, chance))

    def _signals(self, decided: list[tuple[Done[Due], ReadOutcome]]) -> Signals:
        signals = Signals()
        if any(done.probe and not outcome.stop for done, outcome in decided):
            gates.reopen(self.database, "reads")
        for done, outcome in decided:
            if outcome.action == "failed":
                telemetry.warn(
                    "read_failed",
                    job=done.item.job_id,
                    status=outcome.http_status,
                    reason=outcome.reason,
                    request_id=outcome.error.request_id,
                )
            if outcome.stop:
                signals.stop = True
                reason = outcome.error.code or f"http_{outcome.http_status}"
                if outcome.http_status == 401 and key_was_rotated(self.runtime, self.client):
                    gen_jobs.look_soon(self.database, done.item.job_id)
                elif outcome.stop == "account":
                    gates.stop_account(self.runtime, reason, outcome.http_status)
                else:
                    wait = outcome.retry_after or backoff.DEFAULT_RETRY_AFTER
                    gates.close(self.database, "reads", reason, wait, outcome.http_status)
        if self._streak.note(
            (done.item.job_id, outcome.action == "failed")
            for done, outcome in decided
            if not outcome.stop
        ):
            signals.stop = True
        return signals


def _wish(item: Due, outcome: ReadOutcome) -> Wish | None:
    state = outcome.state
    if outcome.action != "state" or state is None or state.reported is None:
        return None
    status = state.reported.status
    if status == "queued":
        return None
    return Wish(
        item.job_id,
        status,
        state.error_code if status in TERMINAL else None,
        state.error_json if status in TERMINAL else None,
        outcome.error.request_id,
    )


def _ask_to_cancel(runtime: Runtime, client: SumeClient, left: TimeLeft) -> None:
    """Ask Sume to cancel what people want canceled; only what Sume reports is written."""
    settings, database = runtime.settings, runtime.database
    budget = pace(settings.writes_per_minute)
    for _ in range(CANCELS_AT_ONCE):
        if left.seconds() <= settings.sume_timeout + RECORD_SECONDS:
            return
        jobs = gen_jobs.claim_cancels(database, 1, CANCEL_AGAIN)
        if not jobs:
            return
        if not pace_store.take(database, "writes", budget):
            # No token or a closed gate: it is due again when its lease is over.
            return
        _ask_one(runtime, client, jobs[0])


def _ask_one(runtime: Runtime, client: SumeClient, job_id: str) -> None:
    outcome = outcomes.decide_cancel(client.cancel(job_id), job_id, time.time())
    reason = outcome.error.code or f"http_{outcome.http_status}"
    if outcome.stop == "account":
        gates.stop_account(runtime, reason, outcome.http_status)
    elif outcome.stop == "backoff":
        wait = outcome.retry_after or backoff.DEFAULT_RETRY_AFTER
        gates.close(runtime.database, "writes", reason, wait, outcome.http_status)
    state = outcome.state
    if outcome.action == "state" and state and state.reported and state.reported.status in TERMINAL:
        wish = Wish(job_id, state.reported.status, state.error_code)
        gen_jobs.apply(runtime.database, [wish], by="cancel")
    again = CANCEL_AGAIN if outcome.action == "failed" else None
    gen_jobs.cancel_asked(runtime.database, job_id, again)
    telemetry.event("cancel_asked", job=job_id, outcome=outcome.action, status=outcome.http_status)
