"""A row's time line and what happens next, in plain words. Pure: no database, no clock.

`row` is the JSON of the support view (`store.job_views.support`), instants as ISO 8601 texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened: an instant and a sentence."""

    at: datetime
    text: str


_SUBMISSION = {
    ("pending", "submitting"): "A run claimed it and sends it to Sume.",
    ("submitting", "submitted"): "Sume accepted it.",
    ("submitting", "pending"): "The attempt brought no job; it went back to wait.",
    ("submitting", "failed"): "It was given up.",
    ("pending", "failed"): "It was given up without being sent again.",
    ("pending", "canceled"): "It was canceled before it left.",
    ("submitting", "canceled"): "It was canceled; it had not left.",
    ("failed", "submitted"): "Sume had it all the same: its job was recorded late.",
    ("canceled", "submitted"): "Sume had it all the same: its job was recorded late.",
}
_NEW_GENERATION = "It was made once more: a new generation, with a new key, billed anew."
_SAME_KEY = "It was put back by hand, to be sent again under its own key."
_EITHER = "It was put back by hand, to be sent once more."
_REAPED = {
    "pending": "The run that had claimed it ended without a word; it went back to wait.",
    "failed": "The run that had claimed it ended without a word, and it was given up.",
    "canceled": "The run that had claimed it ended without a word, and it was canceled.",
}
_GENERATION = {
    "queued": "its job is queued",
    "processing": "its job is being worked on",
    "completed": "its job is completed",
    "failed": "its job failed",
    "canceled": "its job was canceled",
}
_TOLD_BY = {
    "webhook": "Sume's webhook told that",
    "poll": "A poll found that",
    "cancel": "Sume's answer to the wish to cancel told that",
    "submit": "Sume's answer to the submit told that",
}
_EVENTS = {
    "noop": "A webhook came that changed nothing (the job was that far already)",
    "held": "A webhook came before the job was recorded, and is held for it",
    "ignored": "A webhook came that says nothing this bundle knows",
}


def timeline(row: Mapping[str, Any]) -> list[Moment]:
    """Everything that happened to a row, oldest first."""
    moments = [*_moves(row), *_jobs(row), *_webhooks(row)]
    if row["cancel_requested_at"]:
        asked = _moment(row["cancel_requested_at"], "Somebody asked to cancel it.")
        # What it moved has the same instant and is told after it, but never its coming.
        moments.insert(sum(move["from"] is None for move in row["history"]), asked)
    if row["unknown_since"]:
        text = "A request left whose outcome was not learned."
        moments.append(_moment(row["unknown_since"], text))
    for each in row["conflicts"]:
        text = f"Sume named another job, {each['job_id']} ({each['reason']}); it was not taken."
        moments.append(_moment(each["seen_at"], text))
    for each in row["follow_ups"]:
        if each["dispatched_at"]:
            text = f"The follow-up {each['kind']} was handed on."
            moments.append(_moment(each["dispatched_at"], text))
    return sorted(moments, key=lambda moment: moment.at)


def _moment(at: str, text: str) -> Moment:
    return Moment(_instant(at), text)


def _instant(text: str) -> datetime:
    from sume_jobs.decisions.instants import instant

    return instant(text)


def _moves(row: Mapping[str, Any]) -> list[Moment]:
    moves = row["history"]
    given_up = [
        each for each in moves if each["machine"] == "submission" and each["to"] == "failed"
    ]
    jobs = {job["job_id"]: job for job in row["jobs"]}
    accepted = {job["created_at"]: job["job_id"] for job in row["jobs"]}
    restarts = [each for each in moves if _is_restart(each)]
    told = []
    for move in moves:
        text = _sentence(move)
        if move in restarts:
            text = _restart(move, len(restarts), row["generation"])
        elif move["machine"] == "generation" and move["to"] == "failed":
            code = jobs.get(move["job_id"], {}).get("error_code")
            text = text.rstrip(".") + (f" ({code})." if code else ".")
        elif given_up and move is given_up[-1] and row["submission_error_code"]:
            text = f"{text.rstrip('.')} ({row['submission_error_code']})."
        elif move["to"] == "submitted" and move["at"] in accepted:
            text = f"{text.rstrip('.')} as {accepted[move['at']]}."
        told.append(_moment(move["at"], text))
    return told


def _jobs(row: Mapping[str, Any]) -> list[Moment]:
    """Jobs whose recording is no move of the history, such as those that were there before it."""
    told = {each["at"] for each in row["history"] if each["to"] == "submitted"}
    return [
        _moment(job["created_at"], f"Sume's job {job['job_id']} was recorded.")
        for job in row["jobs"]
        if job["created_at"] not in told
    ]


def _webhooks(row: Mapping[str, Any]) -> list[Moment]:
    """Events that moved nothing; one that moved the job is in the history."""
    return [
        _moment(
            event["received_at"],
            _EVENTS[event["outcome"]]
            + (f", reporting {event['job_status']}." if event["job_status"] else "."),
        )
        for event in row["webhook_events"]
        if event["outcome"] in _EVENTS
    ]


def _is_restart(move: Mapping[str, Any]) -> bool:
    return move["to"] == "pending" and move["from"] in ("failed", "canceled", "submitted")


def _restart(move: Mapping[str, Any], restarts: int, generation: int) -> str:
    """The history does not tell a new generation from a repetition, but their number does."""
    if restarts == generation - 1 or move["from"] != "failed":
        return _NEW_GENERATION
    return _SAME_KEY if generation == 1 else _EITHER


def _sentence(move: Mapping[str, Any]) -> str:
    old, new, by = move["from"], move["to"], move["by"]
    if old is None:
        return "It was enqueued."
    if move["machine"] == "generation":
        return f"{_TOLD_BY.get(by, f'By {by} it was recorded that')} {_GENERATION[new]}."
    if by == "reap" and old == "submitting" and new in _REAPED:
        return _REAPED[new]
    return _SUBMISSION.get((old, new), f"It moved from {old} to {new}, by {by}.")


def request_ids(row: Mapping[str, Any]) -> dict[str, str]:
    """What Sume's support asks for, by what it is."""
    found = {
        "job": row["sume_job_id"],
        "idempotency key": row["idempotency_key"],
        "request id of the submit": row["submission_request_id"],
        "request id of the job": row["request_id"],
    }
    return {name: value for name, value in found.items() if value}


def next_step(row: Mapping[str, Any], writes: Mapping[str, Any], now: datetime) -> str:
    """What happens next, by itself or not. `writes` is its gate as in /stats."""
    advice = row["advice"]
    if advice is not None:
        return f"{advice['reason']} {advice['action']}{_command(row)}"
    if row["submission_status"] == "pending":
        return _waits(row, writes, now)
    if row["submission_status"] == "submitting":
        return (
            f"A request has been out since {_shown(row['claimed_at'])}. If its run ended without a "
            "word, it goes back to wait after CLAIM_TIMEOUT_SECONDS, and is sent again under its "
            "own key."
        )
    if row["job_status"] in ("queued", "processing"):
        poll = f", or a poll asks at {_shown(row['next_poll_at'])}" if row["next_poll_at"] else ""
        wish = " Sume was asked to cancel it." if row["cancel_requested_at"] else ""
        return f"Sume works on it. A webhook tells its end{poll}.{wish}"
    if row["result"] is None:
        when = f" at {_shown(row['next_poll_at'])}" if row["next_poll_at"] else ""
        return f"It is completed; a poll reads its result{when}."
    waiting = [each["kind"] for each in row["follow_ups"] if not each["dispatched_at"]]
    if waiting:
        return (
            f"Nothing: it is done. (Its follow-up {waiting[0]} waits for dispatch to hand it on.)"
        )
    return "Nothing: it is done."


def _command(row: Mapping[str, Any]) -> str:
    """The command that does what is advised, where there is one."""
    if row["job_status"] in ("queued", "processing"):
        return f" To cancel: ./sume-jobs cancel {row['id']}"
    if row["submission_error_code"] == "attempts_exhausted" and row["sume_may_have_the_job"]:
        return f" To send it again: ./sume-jobs retry {row['id']} --same-key"
    if row["submission_status"] in ("failed", "canceled") or row["job_status"] in (
        "failed",
        "canceled",
    ):
        return f" To make it once more: ./sume-jobs retry {row['id']}"
    return ""


def _waits(row: Mapping[str, Any], writes: Mapping[str, Any], now: datetime) -> str:
    if _instant(row["run_after"]) > now:
        why = "after a failed attempt" if row["attempts"] or row["sends"] else "as it was asked for"
        text = f"It waits until {_shown(row['run_after'])}, {why}."
    elif writes["state"] == "closed":
        text = f"It waits, as all do, for the gate of writes ({writes['reason']}): "
        text += str(writes["advice"])
    elif row["reaps"] >= 2:
        text = "It ended two runs or more without a word, so it is sent alone, after all others."
    else:
        text = "It is sent by the next run of submit, as soon as the budget allows."
    if row["unknown_since"]:
        text += " It goes under its own key, so Sume bills it once."
    return text


def _shown(at: str) -> str:
    return _instant(at).strftime("%Y-%m-%d %H:%M:%SZ")
