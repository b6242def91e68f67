"""What the doctor finds, and from where on it calls something a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is, in one sentence, and what to do about it.

    A problem breaks something or soon will; a warning is worth a look. Neither ever holds a
    secret, a password or a prompt.
    """

    check: str
    level: Level
    sentence: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on the doctor warns. All times are in seconds."""

    # Clocks: the timestamp of a webhook is judged by this machine's, all else by the database's.
    skew: float = 5.0
    # A schedule ticks once a minute: what is this much late was not done by the last ticks.
    late: float = 180.0
    oldest_pending: float = 900.0
    oldest_held: float = 3600.0
    open_transaction: float = 60.0
    # Dead row versions of a table; autovacuum of the bundle's tables begins at 5,000.
    dead_rows: int = 100_000
    share_of_connections: float = 0.8
    # A wraparound stops all writes at 2,000,000,000.
    oldest_transaction: int = 1_500_000_000
    conflict_days: int = 30


def ok(check: str, sentence: str) -> Finding:
    """Make a finding that needs nothing."""
    return Finding(check, "ok", sentence)


def warning(check: str, sentence: str, advice: str) -> Finding:
    """Make a finding that is worth a look."""
    return Finding(check, "warning", sentence, advice)


def problem(check: str, sentence: str, advice: str) -> Finding:
    """Make a finding that somebody has to do something about."""
    return Finding(check, "problem", sentence, advice)


def number(count: int, one: str, many: str | None = None) -> str:
    """Say how many: `1 row`, `2 rows`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """Say a time in the largest fitting unit: `3 s`, `12 min`, `5 h`, `2 days`."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
