"""doctor: each finding is provoked once, on a real database and over real HTTP."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import pytest
from sume_jobs.decisions import signature
from sume_jobs.settings import Settings
from sume_jobs.store import health

from local.command_line.doctor_database import (
    compare_clocks,
    judge_server,
    judge_table,
    judge_transactions,
)
from local.command_line.doctor_finding import Finding, Limits, duration
from local.command_line.doctor_rounds import examine
from local.command_line.doctor_settings import known_variables
from local.fake_sume import FakeSume
from local.fake_sume.behaviour import Behaviour
from tests.command_line.conftest import Ran
from tests.support.bundle import API_KEY, SECRET
from tests.support.postgres import (
    APP_ROLE,
    PASSWORD_GROUP,
    Database,
    Server,
    drop_database,
)

Run = Callable[..., Ran]
HEALTHY = health.Server(
    database="sume",
    role="app",
    version="16.8",
    version_number=160008,
    encoding="UTF8",
    is_read_only=False,
    isolation="read committed",
    is_encrypted=True,
    is_remote=True,
    has_autovacuum=True,
    most_connections=100,
    connections=3,
    oldest_transaction=1000,
    lock_timeout=2000,
    statement_timeout=20000,
    idle_in_transaction_session_timeout=10000,
)
TABLE = health.Table("render_jobs", False, (), (), (), False, 10, 0)


@pytest.fixture(autouse=True)
def fast_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No AWS: what asks for it finds out at once."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def environment(database: Database, fake: FakeSume) -> dict[str, str]:
    """What a healthy bundle runs with."""
    return {
        "DATABASE_URL": database.url,
        "SUME_BASE_URL": fake.url,
        "SUME_API_KEY": API_KEY,
        "SUME_WEBHOOK_SECRETS": SECRET,
        "SUME_WEBHOOK_URL": "https://hooks.example/webhooks/sume",
    }


@pytest.fixture
def look(environment: dict[str, str]) -> Callable[..., list[Finding]]:
    """Examine with changed variables (None takes one away) and limits."""

    def look(limits: Limits | None = None, **changes: str | None) -> list[Finding]:
        changed = {k: v for k, v in {**environment, **changes}.items() if v is not None}
        return list(examine(changed, limits))

    return look


Look = Callable[..., list[Finding]]


def faults(findings: Iterator[Finding] | list[Finding]) -> list[tuple[str, str]]:
    """(check, level) of what is not ok; each of them says what to do."""
    found = [each for each in findings if each.level != "ok"]
    assert all(each.advice for each in found)
    return [(each.check, each.level) for each in found]


def said(findings: list[Finding], check: str) -> str:
    return "\n".join(
        f"{each.sentence} {each.advice or ''}" for each in findings if each.check == check
    )


# ---------------------------------------------------------------------------- the command


def test_a_healthy_bundle_has_nothing_wrong(look: Look, fake: FakeSume) -> None:
    findings = look()
    assert faults(findings) == []
    assert {each.check for each in findings} == {
        "settings", "budget", "secrets", "webhook signature", "database", "time limits", "schema",
        "transactions", "clocks", "gates", "queue", "follow-ups", "sume", "balance",
    }  # fmt: skip
    assert [request.method for request in fake.requests] == ["GET", "GET"]
    assert fake.billed == 0


def test_the_command_tells_it_and_shows_no_secret(
    run: Run, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        if name != "DATABASE_URL":
            monkeypatch.setenv(name, value)
    ran = run("doctor", "--json")
    assert ran.document["healthy"], ran.output
    assert ran.status == 0
    assert {"check", "level", "sentence", "advice"} == set(ran.document["findings"][0])
    monkeypatch.setenv("MAX_ATTEMPTS", "many")
    ran = run("doctor")
    assert ran.status == 1
    assert "MAX_ATTEMPTS must be a whole number" in ran.output
    for text in (ran.output, ran.said):
        assert API_KEY not in text
        assert SECRET not in text


def test_without_a_database_all_else_is_looked_at(run_anywhere: Run) -> None:
    ran = run_anywhere("doctor", "--json")
    assert ran.status == 1
    assert "no database" in ran.document["findings"][0]["sentence"]
    assert "./sume-jobs up" in ran.said


@pytest.mark.parametrize("command", ["doctor", "status"])
def test_what_the_layer_logs_is_no_result(
    run_anywhere: Run, database: Database, postgres: Server, fake: FakeSume, command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A password that was refused is logged, and read anew, before it is told."""
    monkeypatch.setenv("SUME_BASE_URL", fake.url)
    role = f"sume_locked_out_{os.getpid()}"
    with postgres.connect() as admin:
        admin.execute(f"create role {role} login password 'right' in role {PASSWORD_GROUP}")
    try:
        url = database.url.replace(f"{APP_ROLE}@", f"{role}:wrong@")
        ran = run_anywhere(command, "--json", "--database-url", url)
    finally:
        with postgres.connect() as admin:
            admin.execute(f"drop role {role}")
    assert ran.status == 1
    assert "database_credentials_refused" in ran.said
    assert "database_credentials_refused" not in ran.output
    assert "password authentication failed" in ran.output + ran.said
    assert "wrong" not in ran.output.replace("wrong settings", "")


def test_a_warning_alone_is_no_failure(
    run: Run, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        if name != "DATABASE_URL":
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("SUME_WRITES_PER_MINUTE", "301")
    ran = run("doctor", "--json")
    assert (ran.status, ran.document["warnings"], ran.document["problems"]) == (0, 1, 0)


# ---------------------------------------------------------------------------- settings, secrets


@pytest.mark.parametrize(
    ("name", "value", "check", "level"),
    [
        ("SUBMIT_CONCURRENCY", "0", "settings", "problem"),
        ("SUME_API_KEYS", "x", "settings", "warning"),
        ("sume_webhook_url", "x", "settings", "warning"),
        ("CLAIM_TIMEOUT", "x", "settings", "warning"),
        ("SUME_WEBHOOK_URL", "http://hooks.example/x", "settings", "warning"),
        ("SUME_WRITES_PER_MINUTE", "300", "budget", "warning"),
        ("SUME_API_KEY", None, "secrets", "problem"),
        ("SUME_API_KEY_SECRET_ARN", "arn:aws:secretsmanager:x", "secrets", "problem"),
        ("SUME_WEBHOOK_SECRETS_ARN", "arn:aws:secretsmanager:x", "webhook signature", "problem"),
        ("SUME_WEBHOOK_SECRETS", None, "webhook signature", "problem"),
    ],
)
def test_settings_and_secrets(
    look: Look, name: str, value: str | None, check: str, level: str
) -> None:
    findings = look(**{name: value})
    assert faults(findings) == [(check, level)]
    assert name in said(findings, check) or check == "secrets" or "SECRETS" in name


def test_an_unknown_variable_is_named_with_the_one_that_was_meant(look: Look) -> None:
    assert "did you mean SUME_API_KEY?" in said(look(SUME_API_KEYS="x"), "settings")
    assert faults(look(PATH="/bin", LANG="C", DATABASE_ENGINE="django", MAX_WORKERS="3")) == []


def test_every_variable_of_the_settings_is_known() -> None:
    assert len(known_variables()) >= len(Settings._fields) - 1


def test_an_open_address_is_a_problem(look: Look) -> None:
    findings = look(SUME_BASE_URL="http://api.invalid")
    assert faults(findings) == [("settings", "problem"), ("sume", "problem")]


def test_the_secret_of_the_database_is_read(look: Look) -> None:
    findings = look(DATABASE_URL=None, DATABASE_SECRET_ARN="arn:aws:secretsmanager:x")
    assert faults(findings) == [("secrets", "problem"), ("database", "problem")]


def test_no_webhook_needs_no_secret(look: Look) -> None:
    assert faults(look(SUME_WEBHOOK_URL=None, SUME_WEBHOOK_SECRETS=None)) == []
    assert faults(look(SUME_WEBHOOK_SECRETS=None, WEBHOOK_VERIFICATION="reread")) == []


@pytest.mark.parametrize("verdict", [True, False])
def test_a_verifier_that_takes_all_or_nothing_is_found_out(
    look: Look, monkeypatch: pytest.MonkeyPatch, verdict: bool
) -> None:
    monkeypatch.setattr(signature, "verify", lambda *_: verdict)
    assert faults(look(SUME_WEBHOOK_SECRETS="one,two")) == [("webhook signature", "problem")]


# ---------------------------------------------------------------------------- the server


def test_a_database_that_cannot_be_reached(look: Look) -> None:
    findings = look(DATABASE_URL="postgresql://me:geheim@127.0.0.1:1/x")
    assert faults(findings) == [("database", "problem")]
    assert "refused" in said(findings, "database")
    assert "geheim" not in repr(findings)
    assert {"sume", "balance"} <= {each.check for each in findings}


def test_it_tells_which_database_without_the_password(look: Look, database: Database) -> None:
    told = said(look(), "database")
    assert f"database {database.name} as {APP_ROLE} on 127.0.0.1:" in told


def test_a_read_only_server(look: Look, database: Database) -> None:
    database.execute(f"alter database {database.name} set default_transaction_read_only = on")
    assert ("database", "problem") in faults(look())


def test_time_limits_of_the_role(look: Look, database: Database) -> None:
    database.execute(f"alter role {APP_ROLE} in database {database.name} reset lock_timeout")
    findings = look()
    assert faults(findings) == [("time limits", "warning")]
    advice = said(findings, "time limits")
    assert f"in database {database.name} set lock_timeout = '2s'" in advice
    assert "statement_timeout" not in advice


def test_another_encoding(look: Look, postgres: Server) -> None:
    name = f"sume_latin_{os.getpid()}"
    with postgres.connect() as admin:
        admin.execute(
            f"create database {name} template template0 encoding 'LATIN1'"
            " lc_collate 'C' lc_ctype 'C'"
        )
    try:
        findings = look(DATABASE_URL=postgres.url(name, APP_ROLE))
        assert "LATIN1" in said(findings, "database")
    finally:
        drop_database(postgres, name)


@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        ({"version_number": 120005}, "database", "problem"),
        ({"encoding": "SQL_ASCII"}, "database", "problem"),
        ({"is_read_only": True}, "database", "problem"),
        ({"isolation": "serializable"}, "database", "warning"),
        ({"is_encrypted": False}, "database", "warning"),
        ({"connections": 80}, "database", "warning"),
        ({"has_autovacuum": False}, "autovacuum", "problem"),
        ({"oldest_transaction": 1_600_000_000}, "autovacuum", "problem"),
        ({"statement_timeout": 0}, "time limits", "warning"),
        ({"idle_in_transaction_session_timeout": 60_000}, "time limits", "warning"),
    ],
)
def test_what_the_server_says_of_itself(change: dict[str, Any], check: str, level: str) -> None:
    assert faults(judge_server(HEALTHY, Limits())) == []
    changed = dataclasses.replace(HEALTHY, **change)
    assert faults(judge_server(changed, Limits())) == [(check, level)]


# ---------------------------------------------------------------------------- the schema


def test_a_database_without_the_schema(look: Look, empty_database: Database) -> None:
    findings = look(DATABASE_URL=empty_database.url)
    assert ("schema", "problem") in faults(findings)
    assert "./sume-jobs migrate" in said(findings, "schema")
    assert "0001_queue" in said(findings, "schema")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("delete from sume_jobs_migration where version > 1", "0002_follow_up_delivery"),
        ("update sume_jobs_migration set version = 9999 where version = 1", "only knows"),
        ("update sume_jobs_migration set sha256 = 'x' where version = 1", "is not the file"),
        ("drop table job_conflict cascade", "table job_conflict is not there"),
        ("revoke delete on webhook_event from sume_app", "may not DELETE on webhook_event"),
        ("alter table render_jobs disable trigger render_jobs_frozen", "render_jobs_frozen"),
        (
            "update pg_index set indisvalid = false where indexrelid = 'gen_job_poll'::regclass",
            "index gen_job_poll of gen_job is not valid",
        ),
    ],
)
def test_a_schema_that_is_not_the_codes(
    look: Look, database: Database, change: str, words: str
) -> None:
    with database.connection.transaction():
        database.execute("set local allow_system_table_mods = on")
        database.execute(change)
    findings = look()
    assert ("schema", "problem") in faults(findings)
    assert words in said(findings, "schema")


def test_a_table_that_is_never_vacuumed(look: Look, database: Database) -> None:
    database.execute("alter table gen_job set (autovacuum_enabled = false)")
    assert faults(look()) == [("autovacuum", "problem")]


def test_dead_rows(database: Database) -> None:
    bloated = dataclasses.replace(TABLE, dead=200_000)
    assert faults(judge_table(TABLE, Limits())) == []
    assert faults(judge_table(bloated, Limits())) == [("autovacuum", "warning")]


# ---------------------------------------------------------------------------- in the way


def test_a_session_that_is_idle_in_a_transaction(look: Look, database: Database) -> None:
    with database.session() as session:
        session.execute("set idle_in_transaction_session_timeout = 0")
        session.execute("select from render_jobs")
        findings = look(Limits(open_transaction=0.0))
        pid = session.info.backend_pid
    assert ("transactions", "warning") in faults(findings)
    told = said(findings, "transactions")
    assert f"session {pid} of {APP_ROLE}" in told
    assert "is idle in a transaction" in told


def test_sessions_of_others_are_counted_where_they_cannot_be_seen(
    look: Look, database: Database
) -> None:
    database.query("select 1 as one")  # the superuser's session
    assert "session of other roles could not be looked at" in said(look(), "transactions")


def test_long_reports_and_forgotten_transactions() -> None:
    report = health.Session(7, "analyst", "", False, 4000.0, 3.0)
    found = health.Transactions([report], 0, [("prepared transaction x", 90.0), ("slot y", None)])
    findings = list(judge_transactions(found, Limits()))
    assert faults(findings) == [("transactions", "warning")] * 3
    assert "has had a transaction open for 67 min" in findings[0].sentence


@pytest.mark.parametrize(
    ("skew", "doubt", "level", "words"),
    [
        (4.0, 0.0, "ok", "agree within"),
        (5.5, 1.0, "ok", "agree within"),
        (90.0, 0.5, "warning", "90 s behind"),
        (-90.0, 0.5, "warning", "90 s ahead of"),
    ],
)
def test_clocks(skew: float, doubt: float, level: str, words: str) -> None:
    finding = compare_clocks("database", skew, doubt, Limits())
    assert finding.level == level
    assert words in finding.sentence


def test_times_are_told_in_the_largest_fitting_unit() -> None:
    told = [duration(each) for each in (0.25, 42, 600, 9000, 200_000)]
    assert told == ["0.2 s", "42 s", "10 min", "2 h", "2 days"]


# ---------------------------------------------------------------------------- the queue


OLD = "now() - interval '2 hours'"
JOB = "insert into gen_job (job_id, idempotency_key, next_poll_at) values ('job_1', 'k', null)"


@pytest.mark.parametrize(
    ("statement", "check", "level", "words"),
    [
        (
            "update pace_gate set closed_until = now() + interval '1 minute', reason = 'outage'"
            " where name = 'writes'",
            "gates",
            "warning",
            "outage",
        ),
        (
            "update pace_gate set closed_until = 'infinity', reason = 'key_collision',"
            " detail = 'row 7' where name = 'writes'",
            "gates",
            "problem",
            "until a person opens it: key_collision (row 7)",
        ),
        (
            f"insert into render_jobs (prompt, run_after) values ('p', {OLD})",
            "queue",
            "warning",
            "1 row could be sent, the oldest for 2 h",
        ),
        (
            "insert into render_jobs (prompt, status, claimed_at, claim_token)"
            f" values ('p', 'submitting', {OLD}, gen_random_uuid())",
            "claims",
            "problem",
            "reap does not run",
        ),
        ("insert into render_jobs (prompt, reaps) values ('p', 2)", "claims", "warning", "alone"),
        (
            f"{JOB}; insert into webhook_event (event_id, job_id, body, outcome)"
            " values ('e', 'job_1', '{}', 'held')",
            "held events",
            "warning",
            "jobs that are known by now",
        ),
        (
            "insert into webhook_event (event_id, job_id, body, outcome, received_at)"
            f" values ('e', 'job_9', '{{}}', 'held', {OLD})",
            "held events",
            "warning",
            "jobs that nobody knows",
        ),
        (f"{JOB}; update gen_job set next_poll_at = {OLD}", "polls", "warning", "poll does not"),
        (f"{JOB}; update gen_job set attention = 'overdue'", "attention", "warning", "1 job"),
        (
            "insert into follow_up (job_id, kind, dead_reason) values ('j', 'job.failed', 'gone')",
            "follow-ups",
            "problem",
            "one because of gone",
        ),
        (
            "insert into job_conflict (job_id, reason) values ('job_1', 'second_job_for_row')",
            "conflicts",
            "problem",
            "1 conflict of kind second_job_for_row",
        ),
    ],
)
def test_what_does_not_move_on(
    look: Look, database: Database, statement: str, check: str, level: str, words: str
) -> None:
    for part in statement.split("; "):
        database.execute(part)
    findings = look()
    assert faults(findings) == [(check, level)]
    assert words in said(findings, check)


def test_a_half_open_gate_is_told(look: Look, database: Database) -> None:
    database.execute(f"update pace_gate set closed_until = {OLD}, reason = 'http_503'")
    findings = look()
    assert faults(findings) == []
    assert "half open after http_503" in said(findings, "gates")


def test_the_jobs_of_the_day(look: Look, database: Database) -> None:
    database.execute(
        "update pace_budget set day_sent = 5, day_ends = now() + interval '1 hour'"
        " where name = 'writes'"
    )
    assert "5 of 6 jobs sent this UTC day" in said(look(SUBMIT_DAILY_LIMIT="6"), "budget")
    findings = look(SUBMIT_DAILY_LIMIT="5")
    assert faults(findings) == [("budget", "warning")]
    assert "SUBMIT_DAILY_LIMIT" in said(findings, "budget")


def test_follow_ups_that_are_not_handed_on(look: Look, database: Database) -> None:
    database.execute(
        f"insert into follow_up (job_id, kind, created_at) values ('j', 'job.failed', {OLD})"
    )
    assert faults(look()) == []
    assert faults(look(FOLLOW_UP_EVENT_BUS="bus")) == [("follow-ups", "warning")]


# ---------------------------------------------------------------------------- Sume


@pytest.mark.parametrize(
    ("status", "level", "words"),
    [
        (401, "problem", "refuses the API key (401)"),
        (402, "problem", "no credits"),
        (403, "problem", "lacks access"),
        (404, "problem", "has no list of jobs"),
        (302, "problem", "is SUME_BASE_URL the address"),
        (429, "warning", "asks for patience"),
        (503, "warning", "asks for patience"),
        (500, "warning", "answers 500"),
    ],
)
def test_what_sume_answers(look: Look, fake: FakeSume, status: int, level: str, words: str) -> None:
    fake.on_list(Behaviour(status=status))
    findings = look()
    assert faults(findings) == [("sume", level)]
    assert words in said(findings, "sume")


def test_sume_is_away(look: Look, fake: FakeSume) -> None:
    fake.stop()
    findings = look()
    assert faults(findings) == [("sume", "problem")]
    assert "does not answer" in said(findings, "sume")


def test_sumes_clock(look: Look, fake: FakeSume) -> None:
    fake.on_list(Behaviour(headers={"Date": formatdate(time.time() + 600, usegmt=True)}))
    findings = look()
    assert faults(findings) == [("clocks", "warning")]
    assert "10 min behind the Sume server" in said(findings, "clocks")


def test_the_budget_against_the_keys_limit(look: Look, fake: FakeSume) -> None:
    fake.options.reads_per_minute = 60
    findings = look()
    assert faults(findings) == [("budget", "warning")]
    assert "Sume allows this key 60" in said(findings, "budget")
    assert faults(look(SUME_READS_PER_MINUTE="60")) == []


def test_an_empty_balance(look: Look, fake: FakeSume) -> None:
    fake.options.credits = 0
    assert faults(look()) == [("balance", "problem")]


def test_the_reads_are_taken_from_the_shared_budget(look: Look, database: Database) -> None:
    look(SUME_READS_PER_MINUTE="60")
    is_spent = database.one(
        "select spent_until > now() + interval '0.5 seconds' from pace_budget where name = 'reads'"
    )
    assert is_spent
