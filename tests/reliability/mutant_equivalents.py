"""Mutants that nobody can tell from the original, each with the reason.

By file, then by the mutant's description as `--list` prints it. `test_mutants.py` keeps the list to
mutants that there are.
"""

from __future__ import annotations

EQUIVALENT: dict[str, dict[str, str]] = {}
