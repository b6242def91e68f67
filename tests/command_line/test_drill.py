"""drill: each scenario holds, and one whose guard was taken away is found out."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local.bundle import BundleError
from local.command_line import drill_gates, drill_run, drill_submit, drill_webhooks
from local.command_line.drill_run import SCENARIOS, Outcome, Scenario, name_of, title_of
from local.command_line.drill_world import World, open_world
from tests.command_line.conftest import Ran
from tests.support.folders import temporary_folder

PROMISES = ["billed once", "nothing lost", "forward only", "follow-up once"]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world() as world:
        yield world


def run_one(world: World, scenario: Scenario) -> Outcome:
    (outcome,) = drill_run.run(world, [scenario])
    return outcome


def broken(outcome: Outcome) -> list[str]:
    return [f"{each.name}: {each.seen}" for each in outcome.promises if not each.held]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name_of)
def test_every_scenario_holds(world: World, scenario: Scenario) -> None:
    outcome = run_one(world, scenario)
    assert broken(outcome) == []
    assert outcome.held
    assert [each.name for each in outcome.promises[-4:]] == PROMISES
    # Besides the four, each proves what it is about; and it says what it did.
    assert len(outcome.promises) > len(PROMISES)
    assert outcome.did
    assert title_of(scenario).endswith(".")
    assert outcome.outside["submits"] >= 1


def test_what_raises_is_told_and_the_next_one_runs(world: World) -> None:
    def falls_over(world: World) -> None:
        """It falls over."""
        world.enqueue()
        raise LookupError("as it should")

    first, second = drill_run.run(world, [falls_over, drill_submit.lost_answer])
    assert broken(first) == ["it ran to its end: LookupError: as it should"]
    assert second.held
    assert second.outside["jobs_billed"] == 1


# The real code with a guard less: what is replaced, by what, and which scenario must notice.
UNGUARDED = [
    (
        "shared/sume_jobs/sume_client.py",
        'request.headers["Idempotency-Key"] = key',
        'request.headers["Idempotency-Key"] = f"{key}-{time.monotonic_ns()}"',
        drill_submit.killed_after_accept,
        "billed once",
    ),
    (
        "shared/sume_jobs/decisions/signature.py",
        "return genuine and abs(now - int(timestamp)) <= tolerance",
        "return True",
        drill_webhooks.forged_webhook,
        "both were refused",
    ),
    (
        "shared/sume_jobs/store/gen_jobs.py",
        "l.status in ('queued', 'processing')\n           and (w.status",
        "true\n           and (w.status",
        drill_webhooks.contradicting_ends,
        "forward only",
    ),
    (
        "shared/sume_jobs/flows/gates.py",
        "if pace.close(database, [name], wait, reason):",
        "if False:",
        drill_gates.gate_closed_by_429,
        "nothing left while it was closed",
    ),
]


def test_without_their_guards_scenarios_fail(root: Path) -> None:
    """All are taken away at once: each scenario is about its own."""
    with temporary_folder() as folder:
        for name in ("functions", "shared"):
            shutil.copytree(
                root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        for path, guarded, unguarded, _, _ in UNGUARDED:
            text = (folder / path).read_text()
            assert text.count(guarded) == 1, f"{path} has changed: name its guard anew"
            (folder / path).write_text(text.replace(guarded, unguarded))
        with open_world(folder) as world:
            for _, _, _, scenario, promise in UNGUARDED:
                outcome = run_one(world, scenario)
                assert not outcome.held
                assert promise in [each.name for each in outcome.promises if not each.held], (
                    name_of(scenario),
                    broken(outcome),
                )


# ---------------------------------------------------------------------------- the command


def test_scenarios_are_listed(run_anywhere: Callable[..., Ran]) -> None:
    listed = run_anywhere("drill", "--list", "--json").document
    assert listed == {name_of(each): title_of(each) for each in SCENARIOS}
    assert "killed-after-accept" in run_anywhere("drill", "--list").output


def test_the_page_tells_every_scenario(root: Path) -> None:
    page = (root / "docs" / "command-line.md").read_text(encoding="utf-8")
    section = page.split("### `drill")[1].split("\n## ")[0]
    told = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \|$", section, re.MULTILINE))
    assert told == {name_of(each): title_of(each) for each in SCENARIOS}


def test_an_unknown_scenario_is_named(run_anywhere: Callable[..., Ran]) -> None:
    ran = run_anywhere("drill", "lost-answer", "meteor")
    assert ran.status == 2
    assert "meteor" in ran.said
    assert "--list" in ran.said


def test_no_other_database_is_ever_drilled(run: Callable[..., Ran]) -> None:
    ran = run("drill", "lost-answer")
    assert ran.status == 2
    assert "leave out --database-url" in ran.said


def test_nothing_of_the_environment_is_touched(
    run_anywhere: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A database and a Sume that are named are not even asked whether they are there."""
    for name, value in {
        "DATABASE_URL": "postgresql://127.0.0.1:1/production",
        "SUME_BASE_URL": "http://127.0.0.1:1",
        "SUME_API_KEY": "sume_live_x",
        "IDEMPOTENCY_PREFIX": "production",
        "MAX_ATTEMPTS": "1",
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
    }.items():
        monkeypatch.setenv(name, value)
    ran = run_anywhere("drill", "--json", "lost-answer", "key-collision")
    assert ran.status == 0, ran.output
    assert ran.document["held"]
    assert [each["name"] for each in ran.document["scenarios"]] == ["lost-answer", "key-collision"]
    assert list(tmp_path.iterdir()) == []


def test_the_world_makes_sure_that_it_is_its_own(world: World) -> None:
    real = world.bundle
    for changes in (
        {"DATABASE_URL": "postgresql:///production"},
        {"SUME_BASE_URL": "https://api.sume.com"},
    ):
        environment = {**real.runner.environment, **changes}
        bundle: Any = SimpleNamespace(
            runner=SimpleNamespace(environment=environment), server=real.server
        )
        with pytest.raises(BundleError, match="of its own"):
            World(bundle, world.fake)


def test_a_broken_promise_is_told_and_ends_with_1(
    run_anywhere: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_on_purpose(world: World) -> None:
        """A promise is broken on purpose."""
        world.enqueue()
        world.holds("the moon is a cheese", False, "rock")

    monkeypatch.setattr(drill_run, "SCENARIOS", (broken_on_purpose,))
    ran = run_anywhere("drill")
    assert ran.status == 1
    assert "BROKEN   the moon is a cheese: rock" in ran.output
    assert "0 of 1 scenarios held; broken: broken-on-purpose." in ran.output
