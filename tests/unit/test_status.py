"""The generation machine's words and its order."""

from __future__ import annotations

import itertools

import pytest
from sume_jobs.decisions.status import ORDER, TERMINAL, Reported, may_move, parse_status

ALLOWED = {
    ("queued", "processing"),
    ("queued", "completed"),
    ("queued", "failed"),
    ("queued", "canceled"),
    ("processing", "completed"),
    ("processing", "failed"),
    ("processing", "canceled"),
}


@pytest.mark.parametrize(("current", "new"), list(itertools.product(ORDER, ORDER)))
def test_moves(current: str, new: str) -> None:
    assert may_move(current, new) == ((current, new) in ALLOWED)  # type: ignore[arg-type]


def test_the_five_statuses() -> None:
    assert set(ORDER) == {status for move in ALLOWED for status in move}


def test_the_ends() -> None:
    assert {"completed", "failed", "canceled"} == TERMINAL


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("queued", "QUEUED", " queued ", "pending", "in_queue"), "queued"),
        (("processing", "Processing", "running", "in_progress"), "processing"),
        (("completed", "COMPLETED", "complete", "succeeded", "success"), "completed"),
        (("failed", "FAILED", "error", "errored"), "failed"),
        (("canceled", "CANCELED", "cancelled"), "canceled"),
    ],
)
def test_words(words: tuple[str, ...], status: str) -> None:
    for word in words:
        assert parse_status(word) == Reported(status)  # type: ignore[arg-type]


def test_expired_is_failed_with_a_code() -> None:
    assert parse_status("Expired") == Reported("failed", "expired")


@pytest.mark.parametrize("word", ["", "done", "queued2", "cancel", None, 3, True, [], {}])
def test_a_word_nobody_knows_is_none(word: object) -> None:
    assert parse_status(word) is None
