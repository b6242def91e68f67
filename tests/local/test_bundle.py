"""The bundle as a whole: limits like the template's, one at a time, no mixed-up databases."""

import os
import stat
import subprocess
import sys

import psycopg
import pytest
import yaml

from local.bundle import (
    LIMITS,
    ROUTES,
    SCHEDULE_SECONDS,
    Bundle,
    BundleError,
    Setup,
    State,
    prefix_of,
    sume_address,
)
from local.postgres import EmbeddedPostgres
from local.runner import PROJECT
from tests.support.folders import temporary_folder


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("DATABASE_URL", "SUME_BASE_URL", "SUME_API_KEY"):
        monkeypatch.delenv(name, raising=False)


class Template(yaml.SafeLoader):
    """Reads a template; what the short forms of functions say does not matter here."""


Template.add_multi_constructor("!", lambda loader, tag, node: None)


def test_limits_and_schedules_are_those_of_the_template():
    template = yaml.load((PROJECT / "template.yaml").read_text(), Template)
    functions = {
        name.removesuffix("Function").lower(): resource["Properties"]
        for name, resource in template["Resources"].items()
        if resource["Type"] == "AWS::Serverless::Function" and name != "ArchiveFunction"  # needs S3
    }
    timeouts = {name: function.timeout_seconds for name, function in LIMITS.items()}
    memory = {name: function.memory_megabytes for name, function in LIMITS.items()}
    assert timeouts == {name: found["Timeout"] for name, found in functions.items()}
    assert memory == {name: found["MemorySize"] for name, found in functions.items()}
    seconds = {}
    for name, found in functions.items():
        for event in found.get("Events", {}).values():
            if event["Type"] == "ScheduleV2":
                assert event["Properties"]["ScheduleExpression"] == "rate(1 minute)"
                seconds[name] = 60
    assert seconds == SCHEDULE_SECONDS
    paths = template["Resources"]["HttpApi"]["Properties"]["DefinitionBody"]["paths"]
    assert {(route.method, route.path) for route in ROUTES} == {
        (method.upper(), path) for path, methods in paths.items() for method in methods
    }
    assert {route.path: route.function for route in ROUTES} == {
        path: "webhook" if path.startswith("/webhooks/") else "api" for path in paths
    }


@pytest.fixture(scope="module")
def started():
    with temporary_folder() as folder, Bundle(Setup(folder=folder)) as bundle:
        yield bundle


def test_the_schema_is_there_and_the_fake_answers(started):
    with psycopg.connect(started.database_url) as connection:
        assert connection.execute("select count(*) from job_customer").fetchone() == (0,)
    assert started.fake.stats()["billed"] == 0
    assert started.prefix.startswith("local-")
    assert started.runner.environment["SUME_WEBHOOK_URL"].endswith("/webhooks/sume")


def test_only_one_bundle_at_a_time_in_a_folder(started):
    with pytest.raises(BundleError, match=rf"already running .*process {os.getpid()}"):
        Bundle(Setup(folder=started.folder)).__enter__()
    started.check()


def test_secrets_are_made_once_and_kept_private(tmp_path):
    path = tmp_path / "state.json"
    first = State(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = State(path)
    assert (again.webhook_secret, again.api_key) == (first.webhook_secret, first.api_key)
    assert State(tmp_path / "other.json").webhook_secret != first.webhook_secret
    path.write_text("{")
    with pytest.raises(BundleError, match="damaged: remove it"):
        State(path)


def test_a_table_made_anew_gets_another_prefix(tmp_path):
    with EmbeddedPostgres(tmp_path) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create table render_jobs ()")
            first = prefix_of(server.url)
            assert prefix_of(server.url) == first
            connection.execute("drop table render_jobs")
            connection.execute("create table render_jobs ()")
        assert prefix_of(server.url) != first


def test_the_fake_keeps_away_from_a_database_with_rows_of_others(tmp_path, monkeypatch):
    with EmbeddedPostgres(tmp_path / "theirs") as server:
        monkeypatch.setenv("DATABASE_URL", server.url)
        setup = Setup(folder=tmp_path / "ours")
        with Bundle(setup) as bundle:
            assert bundle.database_url == server.url
        # It was empty when it was first used: from now on it is the fake's.
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("insert into render_jobs (prompt) values ('ours')")
        with Bundle(setup):
            pass
        with pytest.raises(BundleError, match="holds 1 rows that are not finished"):
            Bundle(Setup(folder=tmp_path / "another")).__enter__()


def test_an_address_without_a_key_is_refused(monkeypatch):
    assert sume_address() is None
    monkeypatch.setenv("SUME_API_KEY", "sume_live_x")
    assert sume_address() is None
    monkeypatch.setenv("SUME_BASE_URL", "https://api.sume.com")
    assert sume_address() == "https://api.sume.com"
    monkeypatch.setenv("SUME_API_KEY", " ")
    with pytest.raises(BundleError, match="SUME_API_KEY is not"):
        sume_address()


def test_settings_of_the_environment_win(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBMIT_CONCURRENCY", "3")
    monkeypatch.setenv("MAX_ATTEMPTS", "")
    setup = Setup(folder=tmp_path, environment={"SUBMIT_CONCURRENCY": "9", "MAX_ATTEMPTS": "5"})
    with Bundle(setup) as bundle:
        assert bundle.runner.environment["SUBMIT_CONCURRENCY"] == "3"
        assert bundle.runner.environment["MAX_ATTEMPTS"] == "5"


def test_a_schema_that_cannot_be_applied_is_a_clear_error(tmp_path):
    with (
        EmbeddedPostgres(tmp_path / "postgres") as server,
        psycopg.connect(server.url, autocommit=True) as connection,
    ):
        connection.execute("create table render_jobs (mine int)")
    with pytest.raises(BundleError, match=r"schema could not be applied: .*render_jobs"):
        Bundle(Setup(folder=tmp_path)).__enter__()


def test_a_database_of_newer_code_tells_how_to_begin_anew(tmp_path):
    with (
        Bundle(Setup(folder=tmp_path)) as bundle,
        psycopg.connect(bundle.database_url) as connection,
    ):
        connection.execute(
            "insert into sume_jobs_migration (version, name, sha256) values (9999, 'later', '')"
        )
    with pytest.raises(BundleError, match=r"begin anew with an empty one: rm -r .*/postgres$"):
        Bundle(Setup(folder=tmp_path)).__enter__()


def test_a_fake_that_cannot_start_is_a_clear_error(tmp_path):
    with pytest.raises(BundleError, match=r"(?s)fake Sume did not start.*unknown weather"):
        Bundle(Setup(folder=tmp_path, fake_arguments=("--weather=hail=1",))).__enter__()


@pytest.mark.parametrize("module", ["demo", "up"])
def test_what_cannot_run_is_said_in_one_line(tmp_path, module):
    environment = {**os.environ, "DATABASE_URL": "postgresql://x:hunter2@127.0.0.1:1/x"}
    done = subprocess.run(
        [sys.executable, "-m", f"local.{module}", "--folder", str(tmp_path)],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout.startswith("Cannot run: the database in DATABASE_URL cannot be used")
    assert "hunter2" not in done.stdout
    assert done.stderr == ""
