"""The generation machine: which statuses there are and which moves are allowed.

The same order is enforced where it counts, in the guarded update of `store.gen_jobs`;
a test proves that the two agree on every pair.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

JobStatus = Literal["queued", "processing", "completed", "failed", "canceled"]

# The ends share one rank, so that none of them leads to another.
ORDER: Final[dict[JobStatus, int]] = {
    "queued": 0,
    "processing": 1,
    "completed": 2,
    "failed": 2,
    "canceled": 2,
}
TERMINAL: Final[frozenset[JobStatus]] = frozenset({"completed", "failed", "canceled"})

# Words other than Sume's five that public sources show for the same thing (sume-api 2.7).
_WORDS: Final[dict[str, JobStatus]] = {
    "queued": "queued",
    "pending": "queued",
    "in_queue": "queued",
    "processing": "processing",
    "running": "processing",
    "in_progress": "processing",
    "completed": "completed",
    "complete": "completed",
    "succeeded": "completed",
    "success": "completed",
    "failed": "failed",
    "error": "failed",
    "errored": "failed",
    "canceled": "canceled",
    "cancelled": "canceled",
}


class Reported(NamedTuple):
    """A status as Sume reported it: the status to write, and an error code the word implies."""

    status: JobStatus
    error_code: str | None = None


def parse_status(word: object) -> Reported | None:
    """Read Sume's word for a status; None for a word nobody knows, which must never be written."""
    if not isinstance(word, str):
        return None
    word = word.strip().lower()
    if word == "expired":
        return Reported("failed", "expired")
    status = _WORDS.get(word)
    return Reported(status) if status else None


def may_move(current: JobStatus, new: JobStatus) -> bool:
    """Tell whether the machine allows the move: forward only, terminal statuses are sticky."""
    return ORDER[new] > ORDER[current]
