"""The arithmetic of the shared budget.

A token bucket sends at most `capacity + rate * seconds` requests in any window. Tokens are
taken in Postgres, requests are counted at Sume, and the way between the two may differ by
`WAY` seconds from one request to the next; so the bucket holds `budget` for a window that
much longer than a minute. What the bucket keeps for bursts is taken from the rate.
Of a budget of 120 a minute it so uses 117.8 on average, which no full minute shows as
less than 117.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

WINDOW: Final = 60.0
WAY: Final = 0.5
SHARE_FOR_RATE: Final = 0.99
# With so many tokens in the bucket, a claim that comes a moment late loses none.
CAPACITY_WANTED: Final = 2.0
# What the bucket may hold beyond the budget: less than the one request that would pass it.
UNSEEN: Final = 0.9

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
    capacity + rate * (60 + WAY) < budget + 1. Small budgets, whose share for bursts is less than
    two requests, use that last part of a request; large ones leave it to the rounding of instants.
    """
    refilled = SHARE_FOR_RATE * per_minute
    kept = per_minute - refilled
    capacity = max(1.0, kept, min(CAPACITY_WANTED, kept + UNSEEN))
    return Pace(rate=refilled / (WINDOW + WAY), capacity=capacity)
