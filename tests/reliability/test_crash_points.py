"""Some points of every scenario, killed or cut, before or after, as a seed has it.

`python -m tests.reliability.crash_points` strikes every point in all four ways.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.reliability import stage as stages
from tests.reliability.crash_points import explore
from tests.reliability.scenarios import SCENARIOS
from tests.reliability.stage import Scenario, Stage
from tests.support.postgres import Server

SEED = 2026
# Of one scenario, so that a run of all tests stays short.
MOST = 3


@pytest.fixture(scope="module")
def stage(postgres: Server) -> Iterator[Stage]:
    with stages.stage(postgres) as stage:
        yield stage


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.title)
def test_no_crash_breaks_a_promise(stage: Stage, scenario: Scenario) -> None:
    chance = random.Random(f"{SEED} {scenario.title}")
    struck = explore(stage, scenario, chance=chance, most=MOST)
    assert struck > 0
