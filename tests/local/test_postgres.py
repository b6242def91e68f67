"""The embedded Postgres: durable, private, recovered after a kill, and replaceable."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time

import psutil
import psycopg
import pytest

from local import postgres
from local.postgres import EmbeddedPostgres, PostgresError, database
from local.runner import PROJECT
from tests.support.folders import temporary_folder


@pytest.fixture(scope="module")
def folder():
    with temporary_folder() as folder:
        yield folder


def one(url, query):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)
        while cursor.nextset():
            pass
        return cursor.fetchone()[0]


def servers(folder):
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        command = process.info["cmdline"] or []
        if process.info["name"] == "postgres" and str(folder.resolve() / "data") in command:
            found.append(process.pid)
    return found


def test_it_is_durable_private_and_owned_by_a_plain_role(folder):
    with EmbeddedPostgres(folder) as server:
        assert one(server.url, "show fsync") == "on"
        assert one(server.url, "show synchronous_commit") == "on"
        assert one(server.url, "show listen_addresses") == ""
        assert one(server.url, "show server_encoding") == "UTF8"
        assert one(server.url, "show timezone") == "UTC"
        assert one(server.url, "select usesuper from pg_user where usename = current_user") is False
        assert one(server.superuser_url, "show is_superuser") == "on"
        socket = folder / ".s.PGSQL.5432"
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        assert one(server.url, "create table kept (n int); select 1") == 1
        assert postgres.psql().exists()
    assert servers(folder) == []


def test_data_outlives_the_server(folder):
    with EmbeddedPostgres(folder) as server:
        assert one(server.url, "select count(*) from kept") == 0


def test_stopping_twice_is_harmless(folder):
    server = EmbeddedPostgres(folder)
    server.start()
    server.stop()
    server.stop()


OWNER = """
import sys, time
from pathlib import Path
import psycopg
from local.postgres import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]))
with psycopg.connect(server.start(), autocommit=True) as connection:
    connection.execute("insert into kept values (1)")
print("ready", flush=True)
time.sleep(60)
"""


def test_a_killed_owner_leaves_no_server_and_loses_nothing(folder):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], cwd=PROJECT, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout.readline() == b"ready\n"
        assert len(servers(folder)) == 1
        owner.kill()
        owner.wait()
        # At once, while the old server may still be shutting down.
        with EmbeddedPostgres(folder) as server:
            assert one(server.url, "select count(*) from kept where n = 1") == 1
            assert len(servers(folder)) == 1


def test_everything_killed_with_sigkill_is_recovered(folder):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], cwd=PROJECT, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout.readline() == b"ready\n"
        everything = psutil.Process(owner.pid).children(recursive=True)
        owner.kill()
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everything, 10)
    with EmbeddedPostgres(folder) as server:
        assert one(server.url, "select count(*) from kept where n = 1") == 2


def test_an_interrupted_first_start_is_started_over(tmp_path):
    for name in ("data", "data.unfinished"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("")
    with EmbeddedPostgres(tmp_path) as server:
        assert one(server.url, "select 1") == 1


def test_a_path_too_long_for_a_socket(tmp_path):
    folder = tmp_path / ("long" * 30)
    with EmbeddedPostgres(folder) as server:
        assert one(server.url, "select 1") == 1
        assert "long" not in server.url


def test_a_server_that_cannot_start_says_why(folder):
    with pytest.raises(PostgresError, match=r"(?s)stopped at once.*shared_buffers"):
        EmbeddedPostgres(folder, {"shared_buffers": "nonsense"}).start()
    assert servers(folder) == []


def test_data_of_an_unknown_version_is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("9.6\n")
    with pytest.raises(PostgresError, match=r"made by Postgres 9\.6, and the wheel holds 18"):
        EmbeddedPostgres(tmp_path).start()


def test_a_missing_wheel_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(postgres.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PostgresError, match="set DATABASE_URL"):
        EmbeddedPostgres(tmp_path).start()


def test_database_url_takes_its_place(folder, tmp_path, monkeypatch):
    with EmbeddedPostgres(folder) as server:
        monkeypatch.setenv("DATABASE_URL", server.url)
        with database(tmp_path / "unused") as url:
            assert url == server.url
        assert not (tmp_path / "unused").exists()
    monkeypatch.setenv("DATABASE_URL", "  ")
    with database(folder) as url:
        assert one(url, "select 1") == 1


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:hunter2@127.0.0.1:1/x", "hunter2", "postgresql://u:hunter2@[bad"],
)
def test_a_database_url_that_does_not_work_is_refused_without_its_password(
    tmp_path, monkeypatch, url
):
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(PostgresError, match="cannot be used") as caught, database(tmp_path):
        pass
    assert "hunter2" not in str(caught.value)


def test_the_guard_passes_on_how_the_command_ended(tmp_path):
    from local.guard import guarded

    with (tmp_path / "log").open("wb") as output:
        for command, code in ((["sh", "-c", "exit 3"], 3), (["sh", "-c", "kill -9 $$"], 137)):
            guard = guarded(
                command,
                stop_signal=signal.SIGTERM,
                grace_seconds=1,
                output=output,
                directory=tmp_path,
            )
            assert guard.wait(10) == code
            guard.stdin.close()


def test_the_guard_kills_what_does_not_stop(tmp_path):
    from local.guard import guarded

    with (tmp_path / "log").open("wb") as output:
        guard = guarded(
            ["sh", "-c", "trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done"],
            stop_signal=signal.SIGTERM,
            grace_seconds=0.3,
            output=output,
            directory=tmp_path,
        )
        deadline = time.monotonic() + 10
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pid = int((tmp_path / "pid").read_text())
        guard.stdin.close()
        guard.wait(10)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
