"""The README is held to what it says: commands, variables, SQL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sume_jobs.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def variables_read() -> set[str]:
    """Every variable that the settings ask the environment for."""
    asked: set[str] = set()

    class Environment(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return super().get(name, default)

    Settings.from_environment(Environment(DATABASE_URL="postgresql:///x"))
    return asked


def test_the_table_of_variables_is_complete_and_true() -> None:
    table = README.split("## Configure")[1].split("## Operate")[0]
    listed = set(re.findall(r"`([A-Z][A-Z_]+)`", table))
    assert listed == variables_read()


def test_the_defaults_in_the_table_are_those_of_the_settings() -> None:
    table = README.split("## Configure")[1].split("## Operate")[0]
    settings = Settings.from_environment({"DATABASE_URL": "postgresql:///x"})
    shown = {
        names[0]: cells[1].strip()
        for line in table.splitlines()
        if line.startswith("| `")
        and (cells := line.strip("| ").split("|"))
        and (names := re.findall(r"`([A-Z_]+)`", cells[0]))
    }
    assert shown["SUME_BASE_URL"] == settings.sume_base_url
    assert shown["SUME_SUBMIT_PATH"] == settings.sume_submit_path
    assert shown["IDEMPOTENCY_PREFIX"] == settings.idempotency_prefix
    assert shown["WEBHOOK_VERIFICATION"] == settings.webhook_verification
    for name, value in {
        "SUME_TIMEOUT_SECONDS": settings.sume_timeout,
        "WEBHOOK_TOLERANCE_SECONDS": settings.webhook_tolerance,
        "IDEMPOTENCY_RETENTION_SECONDS": settings.idempotency_retention,
        "SUME_WRITES_PER_MINUTE": settings.writes_per_minute,
        "SUBMIT_CONCURRENCY": settings.submit_concurrency,
        "SUBMIT_DAILY_LIMIT": settings.daily_limit,
        "ANOMALY_LIMIT": settings.anomaly_limit,
        "LINGER_SECONDS": settings.linger,
        "CLAIM_TIMEOUT_SECONDS": settings.claim_timeout,
        "MAX_ATTEMPTS": settings.max_attempts,
        "MAX_GENERATIONS": settings.max_generations,
        "IN_FLIGHT_DEADLINE_SECONDS": settings.in_flight_deadline,
        "RETENTION_DAYS": settings.retention_days,
    }.items():
        assert float(shown[name]) == float(value), name


@pytest.mark.parametrize(
    "target", sorted(set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE)))
)
def test_every_make_target_that_is_named_exists(target: str) -> None:
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), (
        f"make {target} is not in the Makefile"
    )


def test_every_file_that_is_linked_exists() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_statement_runs(database: Any) -> None:
    database.execute("insert into render_jobs (prompt) values ('a first row')")
    blocks = re.findall(r"```sql\n(.*?)```", README, re.DOTALL)
    inline = re.findall(r"`((?:select|update|insert)\s[^`]*)`", README)
    assert len(blocks) >= 2
    assert len(inline) >= 5
    statements = [part for block in blocks for part in block.split(";") if part.strip()]
    for statement in [*statements, *inline]:
        if statement.startswith("insert …"):
            continue
        text = re.sub(r"--.*", "", statement).replace("where id = …", "where id = 1")
        database.execute(text)
        # A new generation is only for a row that has ended.
        database.execute("update render_jobs set status = 'canceled' where status = 'pending'")
