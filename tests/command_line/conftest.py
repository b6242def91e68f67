"""The program as a person runs it, against a database of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from local.command_line.app import app
from tests.support.postgres import Database

DATABASE_VARIABLES = ("DATABASE_URL", "DATABASE_SECRET_ARN", "DATABASE_HOST", "NO_COLOR")


@dataclass(frozen=True)
class Ran:
    """What came of a command."""

    status: int
    output: str
    said: str

    @property
    def document(self) -> Any:
        """The one JSON document on the standard output."""
        return json.loads(self.output)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DATABASE_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run_anywhere(tmp_path: Path) -> Callable[..., Ran]:
    """Run the program with no database named: `run_anywhere("status")`."""

    def run(*arguments: str, typed: str | None = None) -> Ran:
        result = CliRunner().invoke(app, ["--folder", str(tmp_path), *arguments], input=typed)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def run(run_anywhere: Callable[..., Ran], database: Database) -> Callable[..., Ran]:
    """Run the program on the test's database: `run("list", "--json")`."""
    return lambda *arguments, typed=None: run_anywhere(
        "--database-url", database.url, *arguments, typed=typed
    )
