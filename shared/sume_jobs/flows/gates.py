"""Closing and opening the gates, with the words that go with it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from sume_jobs import telemetry
from sume_jobs.decisions import backoff
from sume_jobs.decisions.advice import advise_gate
from sume_jobs.store import pace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sume_jobs.connection import Database
    from sume_jobs.runtime import Runtime

OUTAGE_PAUSE: Final = backoff.DEFAULT_RETRY_AFTER

# Reasons in job_conflict: money that was spent twice or behind our back, and what looks like it.
PROOFS: Final = ("second_job_for_row", "job_without_send")
SIGNS: Final = ("idempotency_key_collision", "job_of_another_row")
ANOMALY_WINDOW: Final = 3600.0


def close(
    database: Database, name: pace.Name, reason: str, seconds: float, status: int | None = None
) -> None:
    """Close one gate for everybody for `seconds` or a little longer, and say so."""
    wait = backoff.spread(seconds, random.random())
    if pace.close(database, [name], wait, reason):
        telemetry.count("GateClosed")
        telemetry.warn(
            "gate_closed",
            gate=name,
            reason=telemetry.word(reason),
            seconds=round(wait),
            status=status,
        )


def stop_account(runtime: Runtime, reason: str, status: int | None) -> None:
    """Stop writes and reads: every row would meet the same answer, and a person must look."""
    if pace.close(
        runtime.database, ["writes", "reads"], backoff.ACCOUNT_STOP, reason, doubling=True
    ):
        telemetry.count("GateClosed")
        telemetry.alarm(
            "queue_stopped",
            reason=telemetry.word(reason),
            status=status,
            advice=advise_gate(reason, status),
        )


def guard(runtime: Runtime) -> bool:
    """Close the gate of writes, until a person opens it, on what job_conflict tells.

    Tells whether this call closed it. Webhooks, poll, cancels and dispatch go on.
    """
    limit = runtime.settings.anomaly_limit
    if not limit:
        return False
    closed = pace.guard(runtime.database, PROOFS, SIGNS, limit, ANOMALY_WINDOW)
    if closed is None:
        return False
    telemetry.count("GateClosed")
    telemetry.alarm(
        "gate_closed_until_opened",
        gate="writes",
        reason=closed["reason"],
        row=closed["row_id"],
        job=closed["job_id"],
        advice=advise_gate(closed["reason"]),
    )
    return True


def reopen(database: Database, name: pace.Name) -> None:
    """Open a half-open gate, because its probe was answered by something else than a stop."""
    if pace.reopen(database, name):
        telemetry.event("gate_opened", gate=name)


class Streak:
    """Follows the ambiguous answers in a row, across all workers, for one gate."""

    def __init__(self, database: Database, name: pace.Name) -> None:
        self._database = database
        self._name: pace.Name = name
        # Whether the database remembers any, as the last claim saw it.
        self.is_open = False

    def note(self, answers: Iterable[tuple[str, bool | None]]) -> bool:
        """Take answers in order: (row or job id, True ambiguous, False clear, None neither).

        Tells whether they now make an outage; then the gate was closed.
        """
        cleared = False
        ambiguous: list[str] = []
        for identity, is_ambiguous in answers:
            if is_ambiguous:
                ambiguous.append(identity)
            elif is_ambiguous is False:
                cleared, ambiguous = True, []
        if not ambiguous and not (cleared and self.is_open):
            return False
        self.is_open = bool(ambiguous)
        if not pace.note_ambiguous(self._database, self._name, cleared, ambiguous):
            return False
        close(self._database, self._name, "outage", OUTAGE_PAUSE)
        return True
