"""The token bucket: never more than the budget in any minute, nearly all of it over ten."""

from __future__ import annotations

import math
import random
from bisect import bisect_left

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sume_jobs.decisions.pacing import (
    LONGEST_WAIT,
    SHORTEST_WAIT,
    WAY,
    WINDOW,
    Pace,
    pace,
)

from tests.support.examples import examples

budgets = st.integers(1, 10**6) | st.integers(1, 200)


class Bucket:
    """The bucket as the database keeps it: one instant until which it has been spent."""

    def __init__(self, rate: Pace) -> None:
        self.rate = rate
        self.spent_until = float("-inf")

    def debt(self, now: float) -> float:
        return max(0.0, self.spent_until - now)

    def take(self, now: float, wanted: int) -> int:
        taken = min(wanted, self.rate.available(self.debt(now)))
        if taken:
            self.spent_until = max(self.spent_until, now) + taken / self.rate.rate
        return taken


def most_in_a_window(arrivals: list[tuple[float, int]]) -> int:
    """The largest number of arrivals (instant, count) in any closed window of a minute."""
    arrivals.sort()
    instants = [instant for instant, _ in arrivals]
    sums = [0]
    for _, count in arrivals:
        sums.append(sums[-1] + count)
    return max(
        sums[index + 1] - sums[bisect_left(instants, instant - WINDOW)]
        for index, instant in enumerate(instants)
    )


@given(budgets)
def test_the_arithmetic_leaves_room_for_the_way(budget: int) -> None:
    rate = pace(budget)
    assert rate.capacity >= 1.0
    assert rate.capacity + rate.rate * (WINDOW + WAY) < budget + 1
    assert rate.rate * WINDOW >= 0.98 * budget
    if budget <= 10_000:
        # The database rounds each instant to a microsecond, here always the wrong way.
        rounded = budget * 0.5e-6 * rate.rate
        assert rate.capacity + rate.rate * (WINDOW + WAY) + rounded < budget + 1


@settings(max_examples=examples(100))
@given(
    budget=budgets,
    seed=st.integers(0, 2**32),
    gap=st.sampled_from([0.01, 0.3, 2.0, 30.0]),
    size=st.floats(0.001, 3.0),
)
@example(budget=1, seed=0, gap=0.01, size=1.0)
@example(budget=120, seed=1, gap=0.01, size=3.0)
def test_never_more_than_the_budget_in_any_minute(
    budget: int, seed: int, gap: float, size: float
) -> None:
    chance = random.Random(seed)
    bucket, now = Bucket(pace(budget)), 0.0
    arrivals: list[tuple[float, int]] = []
    for _ in range(400):
        now += chance.choice([0.0, chance.uniform(0.0, gap), chance.expovariate(1.0 / gap)])
        taken = bucket.take(now, max(1, int(budget * size * chance.random())))
        # The way to Sume: up to half a second longer for some than for others.
        parts = min(taken, 3)
        for part in range(parts):
            count = taken // parts + (part < taken % parts)
            arrivals.append((now + chance.choice([0.0, WAY, chance.uniform(0.0, WAY)]), count))
    if arrivals:
        assert most_in_a_window(arrivals) <= budget


@settings(max_examples=examples(40))
@given(budget=st.integers(40, 10**6) | st.integers(40, 1000), width=st.integers(1, 200))
@example(budget=40, width=1)
@example(budget=49, width=16)
@example(budget=120, width=16)
def test_a_busy_run_uses_nearly_all_of_the_budget(budget: int, width: int) -> None:
    """Ten minutes of a run that waits as it is told, with calls that take no time."""
    rate = pace(budget)
    width = max(width, budget // 600)
    bucket, now, sent = Bucket(rate), 0.0, 0
    while now < 600.0:
        taken = bucket.take(now, width)
        sent += taken
        if taken < width:
            now += rate.wait_for_token(bucket.debt(now), width - taken)
        else:
            now += SHORTEST_WAIT
    assert sent >= 0.97 * 10 * budget


@given(budgets, st.floats(0.0, 1e9), st.integers(1, 1000))
def test_a_wait_for_tokens_is_in_bounds(budget: int, debt: float, wanted: int) -> None:
    assert SHORTEST_WAIT <= pace(budget).wait_for_token(debt, wanted) <= LONGEST_WAIT


def test_a_wait_is_for_the_tokens_that_are_wanted_up_to_half_a_bucket() -> None:
    rate = Pace(rate=10.0, capacity=10.0)
    # The bucket is empty, a token comes every tenth of a second.
    for wanted, tokens in ((1, 1), (3, 3), (5, 5), (6, 5), (100, 5)):
        assert rate.wait_for_token(1.0, wanted) == pytest.approx(tokens / 10)
    assert Pace(rate=1.0, capacity=1.0).wait_for_token(1.0, 1) == pytest.approx(1.0)
    assert rate.wait_for_token(0.0, 1) == SHORTEST_WAIT, "there are tokens"


@given(budgets, st.floats(-1e6, 1e9))
def test_tokens_are_never_negative_nor_more_than_the_bucket_holds(budget: int, debt: float) -> None:
    rate = pace(budget)
    assert 0 <= rate.available(debt) <= rate.capacity + 1e-6


def test_a_full_bucket_has_its_capacity() -> None:
    assert pace(120).available(0.0) == 2
    assert pace(1).available(0.0) == 1
    assert pace(300).available(0.0) == 3
    assert pace(6000).available(0.0) == 60


@given(st.integers(120, 10**6) | st.integers(120, 1000), st.floats(0.0, 60.0))
def test_every_full_minute_of_a_steady_run_uses_97_percent(budget: int, begun: float) -> None:
    """Whole requests of a bucket that is emptied as it fills, in any minute."""
    rate = pace(budget)
    in_minute = math.floor(rate.rate * (begun + WINDOW)) - math.floor(rate.rate * begun)
    assert in_minute >= 0.97 * budget
