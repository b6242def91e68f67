"""The words of `why`: every move has some, in order, and the next step is the right one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sume_jobs.decisions.status import ORDER

from local.command_line import story

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
OPEN = {"state": "open", "reason": None, "advice": None}
ADVICE = {"reason": "It broke.", "action": "Mend it."}
STATUSES = ("pending", "submitting", "submitted", "failed", "canceled")


def at(minute: float, zone: timedelta = timedelta()) -> str:
    """An instant as Postgres writes it into JSON, in the session's zone."""
    from datetime import timezone

    return (BEGIN + timedelta(minutes=minute)).astimezone(timezone(zone)).isoformat()


def a_row(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": 1, "generation": 1, "submission_status": "pending", "job_status": None,
        "submission_error_code": None, "sume_job_id": None, "idempotency_key": None,
        "submission_request_id": None, "request_id": None, "cancel_requested_at": None,
        "unknown_since": None, "run_after": at(0), "claimed_at": None, "next_poll_at": None,
        "result": None, "attempts": 0, "sends": 0, "reaps": 0, "advice": None,
        "sume_may_have_the_job": False,
        "history": [], "jobs": [], "webhook_events": [], "follow_ups": [], "conflicts": [],
    }  # fmt: skip
    return {**row, **changes}


def a_move(minute: float, old: str | None, new: str, by: str = "submit", **more: Any) -> Any:
    move = {"at": at(minute), "machine": "submission", "job_id": None, "by": by}
    return {**move, "from": old, "to": new, **more}


def texts(row: dict[str, Any]) -> list[str]:
    return [moment.text for moment in story.timeline(row)]


@pytest.mark.parametrize("by", ["submit", "reap", "cancel", "operator"])
@pytest.mark.parametrize("old", STATUSES)
@pytest.mark.parametrize("new", STATUSES)
def test_every_move_of_the_submission_has_words(by: str, old: str, new: str) -> None:
    (text,) = texts(a_row(history=[a_move(1, old, new, by)]))
    assert text.endswith(".")


@pytest.mark.parametrize("by", ["webhook", "poll", "cancel", "submit", "somebody"])
@pytest.mark.parametrize("new", ORDER)
def test_every_move_of_the_generation_has_words(by: str, new: str) -> None:
    move = a_move(1, "queued", new, by, machine="generation", job_id="job_1")
    (text,) = texts(a_row(history=[move]))
    assert "its job" in text
    assert text.endswith(".")


@pytest.mark.parametrize(
    ("generation", "moves", "expected"),
    [
        (1, [("failed", "operator")], ["under its own key"]),
        (2, [("failed", "operator")], ["a new generation"]),
        (2, [("submitted", "reap")], ["a new generation"]),
        (3, [("canceled", "operator"), ("failed", "operator")], ["a new generation"] * 2),
        # Two restarts, of which one was a new generation: which one cannot be told.
        (2, [("failed", "operator"), ("failed", "operator")], ["once more"] * 2),
        (2, [("submitted", "operator"), ("failed", "operator")], ["a new generation", "once more"]),
    ],
)
def test_a_new_generation_is_told_from_the_same_key(
    generation: int, moves: list[tuple[str, str]], expected: list[str]
) -> None:
    history = [a_move(n, old, "pending", by) for n, (old, by) in enumerate(moves)]
    told = texts(a_row(generation=generation, history=history))
    for text, part in zip(told, expected, strict=True):
        assert part in text


def test_everything_stands_in_the_order_in_which_it_happened() -> None:
    row = a_row(
        submission_status="submitted",
        cancel_requested_at=at(6),
        unknown_since=at(2),
        history=[
            a_move(0, None, "pending", "enqueue"),
            a_move(1, "pending", "submitting"),
            a_move(3, "submitting", "pending", "reap"),
            a_move(5, "submitting", "submitted"),
            a_move(8, "queued", "failed", "poll", machine="generation", job_id="job_1"),
        ],
        jobs=[
            {"job_id": "job_1", "created_at": at(5), "error_code": "too_dark"},
            {"job_id": "job_0", "created_at": at(0.5), "error_code": None},
        ],
        # Written in another zone, which sorts otherwise as a text.
        webhook_events=[
            {"received_at": at(4, timedelta(hours=-5)), "outcome": "held", "job_status": None},
            {"received_at": at(7), "outcome": "noop", "job_status": "queued"},
            {"received_at": at(7.5), "outcome": "applied", "job_status": "failed"},
        ],
        conflicts=[{"seen_at": at(9), "job_id": "job_2", "reason": "second_job"}],
        follow_ups=[
            {"kind": "job.failed", "dispatched_at": at(10)},
            {"kind": "job.other", "dispatched_at": None},
        ],
    )
    assert texts(row) == [
        "It was enqueued.",
        "Sume's job job_0 was recorded.",
        "A run claimed it and sends it to Sume.",
        "A request left whose outcome was not learned.",
        "The run that had claimed it ended without a word; it went back to wait.",
        "A webhook came before the job was recorded, and is held for it.",
        "Sume accepted it as job_1.",
        "Somebody asked to cancel it.",
        "A webhook came that changed nothing (the job was that far already), reporting queued.",
        "A poll found that its job failed (too_dark).",
        "Sume named another job, job_2 (second_job); it was not taken.",
        "The follow-up job.failed was handed on.",
    ]


def test_the_wish_to_cancel_is_told_before_what_it_moved() -> None:
    coming = a_move(0, None, "pending", "enqueue")
    row = a_row(
        history=[coming, a_move(2, "pending", "canceled", "cancel")], cancel_requested_at=at(2)
    )
    told = ["It was enqueued.", "Somebody asked to cancel it.", "It was canceled before it left."]
    assert texts(row) == told
    row = a_row(
        history=[coming, a_move(0, "pending", "canceled", "cancel")], cancel_requested_at=at(0)
    )
    assert texts(row) == told


def test_only_the_last_end_carries_the_error_of_the_row() -> None:
    row = a_row(
        submission_error_code="attempts_exhausted",
        generation=2,
        history=[
            a_move(1, "submitting", "failed"),
            a_move(2, "failed", "pending", "operator"),
            a_move(3, "submitting", "failed"),
        ],
    )
    first, _, last = texts(row)
    assert first == "It was given up."
    assert last == "It was given up (attempts_exhausted)."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "next run of submit"),
        ({"run_after": at(9)}, "until 2026-01-01 00:09:00Z, as it was asked for"),
        ({"run_after": at(9), "attempts": 1}, "after a failed attempt"),
        ({"run_after": at(9), "sends": 1, "unknown_since": at(1)}, "Sume bills it once"),
        ({"reaps": 2}, "sent alone"),
        ({"submission_status": "submitting", "claimed_at": at(1)}, "out since 2026-01-01 00:01"),
        (
            {"submission_status": "submitted", "job_status": "queued", "next_poll_at": at(7)},
            "a poll asks at 2026-01-01 00:07:00Z",
        ),
        (
            {
                "submission_status": "submitted",
                "job_status": "processing",
                "cancel_requested_at": at(1),
            },
            "Sume was asked to cancel it",
        ),
        (
            {"submission_status": "submitted", "job_status": "completed", "next_poll_at": at(7)},
            "reads its result at 2026-01-01 00:07:00Z",
        ),
        ({"submission_status": "submitted", "job_status": "completed", "result": {}}, "Nothing"),
        (
            {"advice": ADVICE, "submission_status": "failed"},
            "It broke. Mend it. To make it once more: ./sume-jobs retry 1",
        ),
        (
            {
                "advice": ADVICE,
                "submission_status": "failed",
                "submission_error_code": "attempts_exhausted",
                "sume_may_have_the_job": True,
            },
            "./sume-jobs retry 1 --same-key",
        ),
        (
            {"advice": ADVICE, "submission_status": "submitted", "job_status": "queued"},
            "./sume-jobs cancel 1",
        ),
        (
            {"advice": ADVICE, "submission_status": "submitted", "job_status": "completed"},
            "It broke. Mend it.",
        ),
    ],
)
def test_what_happens_next(changes: dict[str, Any], expected: str) -> None:
    now = BEGIN + timedelta(minutes=5)
    assert expected in story.next_step(a_row(**changes), OPEN, now)


def test_a_closed_gate_is_what_a_due_row_waits_for() -> None:
    closed = {"state": "closed", "reason": "unauthorized", "advice": "Check the key."}
    now = BEGIN + timedelta(minutes=5)
    assert "Check the key." in story.next_step(a_row(), closed, now)
    assert "Check the key." not in story.next_step(a_row(run_after=at(9)), closed, now)
