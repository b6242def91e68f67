"""What is deployed is what was tested."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_deployed_postgres_is_one_the_tests_run_on() -> None:
    """`make test-postgres` takes the template's major version unless another is asked for."""
    engine = re.search(
        r'EngineVersion: "(\d+)\.', (ROOT / "template-database.yaml").read_text(encoding="utf-8")
    )
    tested = re.search(r"(?m)^POSTGRES \?= (\d+)$", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert engine is not None
    assert tested is not None
    assert engine[1] == tested[1]
    assert 'section "PG as used" test-postgres' in (ROOT / ".ci" / "run").read_text("utf-8")
