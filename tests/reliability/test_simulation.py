"""Some hundred seeds of the simulation, and that a seed replays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability.simulation import Ground, fingerprint, report, run_seeds
from tests.support.postgres import Server

# What a run of all tests spends on seeds, in seconds; the command line has no such bound.
BUDGET = 20.0
SEEDS = range(1, 301)


@pytest.fixture(scope="module")
def ground(postgres: Server) -> Iterator[Ground]:
    ground = Ground(postgres)
    yield ground
    ground.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_promises_hold_for_every_seed(ground: Ground) -> None:
    figures = run_seeds(ground, SEEDS, BUDGET, least=30)
    print(report(figures))
    assert not figures.violations
    # That much happens at least, or the simulation shows nothing.
    assert figures.billed > figures.seeds
    assert sum(figures.faults.values()) > 5 * figures.seeds


def test_a_seed_replays(ground: Ground) -> None:
    first = fingerprint(ground.run(7)[0])
    assert fingerprint(ground.run(7)[0]) == first
