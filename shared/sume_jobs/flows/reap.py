"""reap: takes back claims that ended without a word, tells the levels, keeps house."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sume_jobs import telemetry
from sume_jobs.flows import gates
from sume_jobs.store import gen_jobs, levels, render_jobs, retention, webhook_events

if TYPE_CHECKING:
    from sume_jobs.flows.time_left import TimeLeft
    from sume_jobs.runtime import Runtime

HELD_DAYS: Final = 7
REGENERATION_BATCH: Final = 200
# A batch of anything takes far less than this; seconds.
BATCH_SECONDS: Final = 5.0


def run(runtime: Runtime, left: TimeLeft) -> dict[str, int]:
    """Reap every stale claim. Gives counts: reaped, expired.

    expired counts the reaped rows that ended instead of going back: their key is too old to be
    sent again, or their attempts are used up. Raises DatabaseUnavailable.
    """
    settings, database = runtime.settings, runtime.database
    reaped = expired = 0
    while left.seconds() > BATCH_SECONDS:
        fates = render_jobs.reap(
            database,
            settings.claim_timeout,
            settings.idempotency_retention,
            settings.max_attempts,
            settings.idempotency_prefix,
        )
        if not fates:
            break
        reaped += sum(fates.values())
        expired += fates.get("expired", 0) + fates.get("exhausted", 0)
        telemetry.warn("claims_reaped", **fates)
    telemetry.count("Reaped", reaped)
    # A submit run that was killed before it could close the gate has left its entry all the same.
    gates.guard(runtime)
    _regenerate(runtime, left)
    if left.seconds() > BATCH_SECONDS:
        _tell_levels(runtime)
    _keep_house(runtime, left)
    telemetry.event("reap_ran", reaped=reaped, expired=expired)
    return {"reaped": reaped, "expired": expired}


def _regenerate(runtime: Runtime, left: TimeLeft) -> None:
    """Judge failed jobs: another generation only where allowed, and where the error says so."""
    database, most = runtime.database, runtime.settings.max_generations
    while left.seconds() > BATCH_SECONDS:
        failed = gen_jobs.open_regenerations(database, REGENERATION_BATCH)
        if not failed:
            return
        from sume_jobs.decisions.answers import error_is_retryable

        again = [
            (job_id, row_id)
            for job_id, row_id, error in failed
            if most > 1 and row_id is not None and error_is_retryable(error)
        ]
        if again:
            rows = render_jobs.regenerate(database, again, most)
            telemetry.warn("rows_regenerated", rows=rows)
        gen_jobs.close_regenerations(database, [job_id for job_id, _, _ in failed])


def _tell_levels(runtime: Runtime) -> None:
    now = levels.read(runtime.database)
    telemetry.gauge("PendingDepth", now.pending)
    telemetry.seconds("OldestPendingSeconds", now.oldest_pending_seconds)
    telemetry.gauge("InFlight", now.in_flight)
    telemetry.seconds("OldestInFlightSeconds", now.oldest_in_flight_seconds)
    telemetry.gauge("NeedsAttention", now.needs_attention)
    telemetry.gauge("SentToday", now.sent_today)
    telemetry.gauge("AnomalyStop", int(now.waits_for_person))
    if runtime.settings.has_target:
        # Without a target they wait for ever, which is no lag.
        telemetry.seconds("OldestFollowUpSeconds", now.oldest_follow_up_seconds)


def _keep_house(runtime: Runtime, left: TimeLeft) -> None:
    settings, database = runtime.settings, runtime.database
    while left.seconds() > BATCH_SECONDS and webhook_events.purge_held(database, HELD_DAYS):
        pass
    while left.seconds() > BATCH_SECONDS and webhook_events.purge_old(
        database, settings.retention_days
    ):
        pass
    for purge in (retention.purge, retention.purge_strays):
        purge(
            database,
            settings.retention_days,
            settings.idempotency_retention,
            may_go_on=lambda: left.seconds() > BATCH_SECONDS,
        )
