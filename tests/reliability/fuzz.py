"""A longer fuzzing run: `python -m tests.reliability.fuzz --seconds 600`.

With `--engine atheris` (a package that is no dependency of this project: `pip install atheris`)
inputs are guided by the branches that they reach in the parsers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "shared")]

ROUND = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long, all targets together"
    )
    parser.add_argument("--inputs", type=int, help="stop each target after so many inputs")
    parser.add_argument("--target", action="append", help="one or more targets; default: all")
    parser.add_argument(
        "--neighbours", type=int, default=25, help="how many inputs near each one of Hypothesis"
    )
    parser.add_argument("--seed", type=int, help="the first seed; a random one by default")
    parser.add_argument("--engine", choices=("hypothesis", "atheris"), default="hypothesis")
    options = parser.parse_args()
    if options.engine == "atheris":
        import atheris  # type: ignore[import-not-found, unused-ignore]

        with atheris.instrument_imports(include=["sume_jobs", "local.prompts"]):
            import sume_jobs.decisions.outcomes
            import sume_jobs.flows.webhook  # noqa: F401

    from tests.reliability.fuzz_targets import TARGETS, Bench, own_database

    chosen = options.target or list(TARGETS)
    unknown = set(chosen) - set(TARGETS)
    if unknown:
        parser.error(f"unknown target {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    seed = random.randrange(10**9) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(Bench(stack.enter_context(own_database())))
        if options.engine == "atheris":
            return _guided(bench, chosen, options, stack)
        return _random(bench, chosen, options, seed)


def _random(bench: Any, chosen: list[str], options: argparse.Namespace, seed: int) -> int:
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    from tests.reliability.fuzz_targets import SEEDS, TARGETS

    inputs = options.inputs
    share = options.seconds / len(chosen)
    for name in chosen:
        target = TARGETS[name]
        began = time.monotonic()
        while True:
            examples = ROUND if inputs is None or inputs > bench.tried[name] else 0
            left = share - (time.monotonic() - began)
            if examples <= 0 or left <= 0:
                break

            attempt = given(target.strategy, SEEDS)(_attempt(bench, target, options.neighbours))
            wanted = settings(
                max_examples=examples,
                database=None,
                deadline=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            )
            seeded(seed)(wanted(attempt))()
            seed += 1
        took = time.monotonic() - began
        print(f"{name}: {bench.tried[name]:,} inputs in {took:.0f} s, no failure", flush=True)
    _summary(bench)
    return 0


def _attempt(bench: Any, target: Any, neighbours: int) -> Any:
    def attempt(value: Any, seed: int) -> None:
        target.try_all(bench, value, seed, neighbours)

    return attempt


def _guided(
    bench: Any, chosen: list[str], options: argparse.Namespace, stack: contextlib.ExitStack
) -> int:
    import atheris  # type: ignore[import-not-found, unused-ignore]
    from hypothesis import HealthCheck, given, settings

    from tests.reliability.fuzz_targets import TARGETS

    if len(chosen) != 1:
        raise SystemExit("name one --target for the guided engine")
    (name,) = chosen

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(TARGETS[name].strategy)
    def attempt(value: Any) -> None:
        TARGETS[name].check(bench, value)

    began = time.monotonic()

    def one(data: bytes) -> None:
        attempt.hypothesis.fuzz_one_input(data)
        inputs = options.inputs
        if time.monotonic() - began > options.seconds or (inputs and bench.tried[name] >= inputs):
            print(f"{name}: {bench.tried[name]:,} guided inputs, no failure", flush=True)
            _summary(bench)
            stack.close()
            sys.stdout.flush()
            # libFuzzer takes any other end for a crash.
            os._exit(0)

    found = f"-artifact_prefix={tempfile.gettempdir()}/"
    atheris.Setup([sys.argv[0], "-max_len=4096", "-verbosity=0", found], one)
    atheris.Fuzz()
    return 0


def _summary(bench: Any) -> None:
    print(f"inputs: {sum(bench.tried.values()):,}")
    for name, count in sorted(bench.seen.items()):
        print(f"  {name}: {count:,}")


if __name__ == "__main__":
    sys.exit(main())
