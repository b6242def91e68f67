"""Some points of every scenario, killed or cut, before or after, as a seed has it.

`python -m tests.reliability.crash_points` strikes every point in all four ways.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.reliability.crash_points import SCENARIOS, Scenario, Stage, explore
from tests.support.container import Nursery
from tests.support.postgres import Server

SEED = 2026
# Of one scenario, so that a run of all tests stays short.
MOST = 4


@pytest.fixture(scope="module")
def stage(postgres: Server, nursery: Nursery) -> Iterator[Stage]:
    stage = Stage(postgres, nursery)
    yield stage
    stage.close()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.title)
def test_no_crash_breaks_a_promise(stage: Stage, scenario: Scenario) -> None:
    chance = random.Random(f"{SEED} {scenario.title}")
    struck = explore(stage, scenario, chance=chance, most=MOST)
    assert struck > 0
