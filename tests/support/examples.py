"""How many examples Hypothesis tries: few in CI, many when EXAMPLES says by how much more."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# `EXAMPLES=50 make test ARGS=tests/property` tries fifty times as many.
FACTOR = int(os.environ.get("EXAMPLES", "1"))


def load_profile() -> None:
    """No deadlines, because the machine may be busy; the same examples in every CI run."""
    settings.register_profile(
        "project",
        deadline=None,
        derandomize=FACTOR == 1,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.load_profile("project")


def examples(few: int) -> int:
    """`few`, or as many times more as the environment variable EXAMPLES says."""
    return few * FACTOR
