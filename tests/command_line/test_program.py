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


def test_an_option_that_is_wrong_is_told_in_words(run_anywhere: Run) -> None:
    for arguments in (("list", "--state", "foo"), ("gate", "open", "foo")):
        ran = run_anywhere(*arguments)
        assert ran.status == 2
        assert "'foo' is not one of" in ran.said
        assert "Value error" not in ran.said


def test_an_empty_database_is_migrated(run_anywhere: Run, empty_database: Database) -> None:
    url = ("--database-url", empty_database.url)
    first = run_anywhere("migrate", *url)
    assert first.status == 0
    assert first.output.startswith("Applied 0001_queue, ")
    again = run_anywhere(*url, "migrate", "--json")
    assert again.document["applied"] == []
    assert again.document["version"] >= 3


def test_a_database_without_the_schema_is_told(run_anywhere: Run, empty_database: Database) -> None:
    url = ("--database-url", empty_database.url)
    ran = run_anywhere("list", *url)
    assert ran.status == 1
    assert "The database has no schema yet" in ran.said
    assert "./sume-jobs migrate" in ran.said


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        # Also one that is not the newest.
        ("delete from sume_jobs_migration where version = 3", 1, "lacks 0003_history: run `./sume"),
        (
            "insert into sume_jobs_migration (version, name, sha256) values (9999, 'new', '')",
            0,
            "is at migration 9999, newer than this program",
        ),
    ],
)
def test_a_database_of_another_version_is_told(
    run: Run, database: Database, change: str, status: int, said: str
) -> None:
    database.execute(change)
    ran = run("list")
    assert ran.status == status
    assert said in ran.said


def test_a_row_that_another_session_holds_is_told(run: Run, database: Database) -> None:
    (row,) = database.insert_many(1)
    with database.session() as other:
        other.execute("begin")
        other.execute("select from render_jobs where id = %s for update", [row])
        ran = run("cancel", str(row))
    assert ran.status == 1
    assert "being changed by another session" in ran.said


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["demo"], []),
        (["demo", "--calm", "mine.csv"], ["--calm", "mine.csv"]),
        (["up"], []),
    ],
)
def test_demo_and_up_are_those_of_make(
    run_anywhere: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    passed: list[str],
) -> None:
    import importlib

    calls = []
    program = importlib.import_module(f"local.{arguments[0]}")
    monkeypatch.setattr(program, "main", lambda given: calls.append(given) or 7)
    assert run_anywhere(*arguments).status == 7
    assert calls == [["--folder", str(tmp_path), *passed]]


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
