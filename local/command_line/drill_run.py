"""Runs scenarios one after the other, and tells what each came to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from local.command_line import drill_gates, drill_promises, drill_submit, drill_webhooks
from local.command_line.drill_world import Promise, World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Scenario = Callable[[World], None]

SCENARIOS: Final[tuple[Scenario, ...]] = (
    drill_submit.killed_after_accept,
    drill_submit.lost_answer,
    drill_submit.cut_answer,
    drill_submit.double_reap,
    drill_submit.overlapping_workers,
    drill_submit.key_collision,
    drill_submit.poison_row,
    drill_submit.new_generation,
    drill_webhooks.early_webhook,
    drill_webhooks.duplicated_webhook,
    drill_webhooks.lost_webhook,
    drill_webhooks.forged_webhook,
    drill_webhooks.contradicting_ends,
    drill_webhooks.unknown_job,
    drill_gates.gate_closed_by_429,
    drill_gates.credits_used_up,
    drill_gates.database_restart,
)


def name_of(scenario: Scenario) -> str:
    """The scenario's name, as people type it."""
    return scenario.__name__.replace("_", "-")


def title_of(scenario: Scenario) -> str:
    """What happens in it, in one sentence."""
    return (scenario.__doc__ or "").strip().splitlines()[0]


@dataclass(frozen=True)
class Outcome:
    """What a scenario came to. `outside` counts what came to Sume, and what Sume sent."""

    name: str
    title: str
    held: bool
    seconds: float
    did: list[str]
    outside: dict[str, int]
    promises: list[Promise]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def run(world: World, scenarios: Iterable[Scenario]) -> Iterator[Outcome]:
    """Run each in a world as new, let everything come to its end, and check the promises."""
    for scenario in scenarios:
        begun = time.monotonic()
        world.begin()
        try:
            scenario(world)
            world.settle()
            drill_promises.check(world)
        except Exception as error:
            # A guard that is gone may show as any fault at all: it is told, and the next one runs.
            world.holds("it ran to its end", False, f"{type(error).__name__}: {error}")
        promises = world.notes.promises
        yield Outcome(
            name_of(scenario),
            title_of(scenario),
            all(promise.held for promise in promises),
            round(time.monotonic() - begun, 2),
            world.notes.steps,
            world.outside(),
            promises,
        )
