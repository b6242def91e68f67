"""When to come back: after a failure, after a refusal, and for the next look at a job.

All results are seconds. `chance` is a random number in [0, 1), passed in so that the
arithmetic can be tested; jitter only ever makes a wait longer than asked.
"""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

FIRST_DELAY: Final = 5.0
LONGEST_DELAY: Final = 900.0
JITTER: Final = 0.25
DEFAULT_RETRY_AFTER: Final = 30.0
ACCOUNT_STOP: Final = 300.0

# A job is looked at often while it is young and seldom when it is old.
POLL_FIRST: Final = 5.0
POLL_LONGEST: Final = 300.0
POLL_WITH_ATTENTION: Final = 3600.0
POLL_SELDOM: Final = 86400.0


def spread(seconds: float, chance: float) -> float:
    """Add the jitter: between `seconds` and a quarter more."""
    return seconds * (1.0 + JITTER * chance)


def after_failure(attempts: int, chance: float) -> float:
    """Wait after the `attempts`-th failed attempt (1, 2, …): 5 s doubling, capped at 15 minutes."""
    exponent = min(max(attempts - 1, 0), 20)
    return spread(min(FIRST_DELAY * 2.0**exponent, LONGEST_DELAY), chance)


def account_stop(closures: int) -> float:
    """Wait after the `closures`-th stop in a row for the account: 5 minutes, doubling to 15."""
    return min(ACCOUNT_STOP * 2.0 ** min(max(closures - 1, 0), 10), LONGEST_DELAY)


def parse_retry_after(value: str | None, sent_at: str | None, now: float) -> float | None:
    """Read a Retry-After header: whole seconds or an HTTP date, else None (as if absent).

    A date is measured against the answer's own Date header (`sent_at`), so that a wrong
    process clock changes nothing; only without one against `now` (seconds since the epoch).
    Zero, the past and nonsense count as absent; the longest wait is 15 minutes.
    """
    if value is None:
        return None
    value = value.strip()
    if re.fullmatch(r"[0-9]+", value, re.ASCII):
        seconds = float(value) if len(value) < 10 else LONGEST_DELAY
    else:
        due, base = _http_date(value), _http_date(sent_at or "")
        if due is None:
            return None
        seconds = due - (base if base is not None else now)
    return min(seconds, LONGEST_DELAY) if seconds > 0 else None


def _http_date(value: str) -> float | None:
    try:
        date = parsedate_to_datetime(value)
        # Without a zone it would be taken for the machine's own.
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None


def next_poll(age: float, attention: bool, chance: float) -> float:
    """Wait before the next look at a job `age` seconds old: a tenth of its age, in bounds."""
    shortest, longest = (
        (POLL_WITH_ATTENTION, POLL_SELDOM) if attention else (POLL_FIRST, POLL_LONGEST)
    )
    return spread(min(max(age / 10.0, shortest), longest), chance)
