"""The arithmetic of the shared budget.

A token bucket sends at most `capacity + rate * seconds` requests in any window. Tokens are
taken in Postgres, requests are counted at Sume, and the way between the two may differ by
`WAY` seconds from one request to the next; so the bucket holds `budget` for a window that
much longer than a minute. What the bucket keeps for bursts is taken from the rate.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

WINDOW: Final = 60.0
WAY: Final = 0.5
SHARE_FOR_RATE: Final = 0.98

# A token that was taken longer ago than this is not used: its row goes back unsent.
TOKEN_LIFE: Final = 0.5
# Two claims of a busy run are at least this far apart when only tokens are lacking.
SHORTEST_WAIT: Final = 0.02
LONGEST_WAIT: Final = 5.0


class Pace(NamedTuple):
    """A token bucket: `rate` in requests a second, `capacity` in requests."""

    rate: float
    capacity: float

    def available(self, debt: float) -> int:
        """Count the whole tokens there are when the bucket is full again in `debt` seconds."""
        return max(0, math.floor(self.capacity - self.rate * max(0.0, debt) + 1e-9))

    def wait_for_token(self, debt: float, wanted: int) -> float:
        """Tell how long until it pays to claim again, in seconds.

        Waits for as many tokens as are `wanted` but never for more than half a bucket, so that
        a busy run claims in batches without ever letting the bucket run over.
        """
        tokens = max(1.0, min(float(wanted), math.floor(self.capacity / 2.0)))
        missing = tokens - (self.capacity - self.rate * max(0.0, debt))
        return min(max(missing / self.rate, SHORTEST_WAIT), LONGEST_WAIT)


def pace(per_minute: int) -> Pace:
    """Make the bucket for a budget of `per_minute` requests in any 60 seconds (1 or more).

    Requests are whole, so a window holds floor(capacity + rate * 60) of them. That is never
    more than the budget, also when the way to Sume differs by `WAY` between two requests:
    capacity + rate * (60 + WAY) < budget + 1.
    """
    refilled = SHARE_FOR_RATE * per_minute
    return Pace(rate=refilled / (WINDOW + WAY), capacity=max(1.0, per_minute - refilled))
