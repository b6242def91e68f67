"""The program as a whole: its database, its errors, its exit status, how quickly it starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from local import running
from local.command_line.app import COMMANDS
from local.command_line.commands import name_of
from tests.command_line.conftest import Ran
from tests.support.postgres import Database

Run = Callable[..., Ran]


def test_every_command_explains_itself(run_anywhere: Run) -> None:
    names = [name_of(function) for _, functions in COMMANDS for function in functions]
    overview = run_anywhere("--help").output
    for name in names:
        assert f" {name} " in overview
        ran = run_anywhere(name, "--help")
        assert ran.status == 0
        assert "--json" in ran.output
        assert "--database-url" in ran.output


def test_an_empty_database_is_migrated(run_anywhere: Run, empty_database: Database) -> None:
    url = ("--database-url", empty_database.url)
    first = run_anywhere("migrate", *url)
    assert first.status == 0
    assert first.output.startswith("Applied 0001_queue, ")
    again = run_anywhere(*url, "migrate", "--json")
    assert again.document["applied"] == []
    assert again.document["version"] >= 3


def test_without_a_database_it_says_how_to_get_one(run_anywhere: Run) -> None:
    ran = run_anywhere("migrate")
    assert ran.status == 2
    assert ran.output == ""
    assert "./sume-jobs up" in ran.said
    assert "DATABASE_URL" in ran.said


def test_a_database_that_is_down_is_told_without_its_password(run_anywhere: Run) -> None:
    ran = run_anywhere("migrate", "--database-url", "postgresql://me:geheim@127.0.0.1:1/x")
    assert ran.status == 1
    assert "cannot be reached" in ran.said
    assert "geheim" not in ran.said


def test_a_url_that_is_none_is_told_without_repeating_it(run_anywhere: Run) -> None:
    ran = run_anywhere("migrate", "--database-url", "postgre://me:geheim@host/x")
    assert ran.status == 2
    assert "DATABASE_URL is not a connection string" in ran.said
    assert "geheim" not in ran.said


@pytest.mark.parametrize("held", [True, False])
def test_the_bundle_that_runs_here_is_found(
    run_anywhere: Run, database: Database, tmp_path: Path, held: bool
) -> None:
    import fcntl

    with (tmp_path / "lock").open("a") as lock:
        if held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        running.write(tmp_path, {"DATABASE_URL": database.url})
        ran = run_anywhere("migrate", "--json")
    assert ran.status == (0 if held else 2)


def test_the_script_runs_from_anywhere_and_starts_lightly(root: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONPROFILEIMPORTTIME": "1"}
    ran = subprocess.run(
        [str(root / "sume-jobs"), "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "migrate" in ran.stdout
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "local.command_line.app" in loaded
    assert not loaded & {"psycopg", "requests", "boto3", "yaml", "aiohttp", "pydantic"}
