"""The built handlers under Lambda's Runtime Interface Emulator: cold, warm, and killed in time."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from local import sign_events
from local.fake_sume import FakeSume
from local.sign_events import EVENTS, SAMPLE_SECRET
from tests.runtime import emulator
from tests.runtime.emulator import Emulator
from tests.support.postgres import Database
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    emulator.missing() is not None, reason=f"NOT RUN: {emulator.missing()}"
)

RUN: dict[str, Any] = json.loads((EVENTS / "submit.json").read_text(encoding="utf-8"))


@pytest.fixture
def start(
    database: Database, fake: FakeSume, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Emulator]]:
    """Start functions under the emulator, with the settings of this test."""
    started: list[Emulator] = []

    def start(function: str, timeout: int = 60, **settings: str) -> Emulator:
        environment = {
            "DATABASE_URL": database.url,
            "SUME_BASE_URL": fake.url,
            "SUME_API_KEY": "sume_test",
            "SUME_WEBHOOK_SECRETS": SAMPLE_SECRET,
            **settings,
        }
        started.append(Emulator(function, environment, tmp_path, timeout).__enter__())
        return started[-1]

    yield start
    for one in started:
        print(one.log[-5000:])
        one.__exit__()


def sessions(database: Database) -> set[int]:
    """The backends that the product's role has."""
    return {
        row["pid"]
        for row in database.query(
            "select pid from pg_stat_activity where application_name = 'sume-jobs'"
            " and datname = current_database()"
        )
    }


def test_it_is_the_python_that_the_layer_was_built_for() -> None:
    shown = subprocess.run([emulator.PYTHON, "--version"], capture_output=True, check=True)
    assert shown.stdout.startswith(b"Python 3.13.")


@pytest.mark.parametrize(
    ("function", "fields"),
    [
        ("submit", {"claimed", "submitted", "requeued", "failed", "stopped"}),
        ("reap", {"reaped", "expired"}),
        ("poll", {"polled", "changed", "results"}),
        ("dispatch", {"dispatched", "failed"}),
        ("migrate", {"applied"}),
    ],
)
def test_a_function_starts_and_stays_warm(
    start: Callable[..., Emulator], database: Database, function: str, fields: set[str]
) -> None:
    running = start(function)
    event = json.loads((EVENTS / f"{function}.json").read_text(encoding="utf-8"))
    first = running.invoke(event)
    assert fields <= set(first.body), first.body
    opened = sessions(database)
    assert len(opened) == 1
    second = running.invoke(event)
    assert fields <= set(second.body)
    assert sessions(database) == opened  # the same process, and the same connection
    assert second.seconds < first.seconds
    assert running.log.count("INIT START") <= 1


def test_a_row_goes_all_the_way(
    start: Callable[..., Emulator], database: Database, fake: FakeSume, tmp_path: Path
) -> None:
    row = database.insert("a lighthouse")
    assert start("submit").invoke(RUN).body["submitted"] == 1
    job = database.row(row)["sume_job_id"]
    fake.set_status(job, "completed")
    event = json.loads((EVENTS / "webhook_applied.json").read_text(encoding="utf-8"))
    event["body"] = fake.webhook_body(job).decode()
    sign_events.resign(event, int(time.time()), sign_events.Case(200, "applied"))
    webhook = start("webhook")
    for outcome in ("applied", "duplicate"):
        answer = webhook.invoke(event).body
        assert answer["statusCode"] == 200
        assert json.loads(answer["body"]) == {"outcome": outcome}
    assert database.state(row) == "done"


def test_killed_in_the_middle_of_a_batch_each_row_is_billed_once(
    start: Callable[..., Emulator], database: Database, fake: FakeSume
) -> None:
    """Sume has accepted, and Lambda kills the function before it can write that down."""
    submit = start("submit", timeout=9, SUME_TIMEOUT_SECONDS="2", CLAIM_TIMEOUT_SECONDS="60")
    assert submit.invoke(RUN).body["claimed"] == 0  # warm from here on
    database.insert_many(12, "a lighthouse")
    database.sleep_at_commit("gen_job", "insert", 60)
    killed = submit.invoke(RUN)
    assert killed.timed_out, killed
    assert 8 < killed.seconds < 20
    assert fake.billed > 0
    assert database.statuses().get("submitted", 0) == 0
    assert database.statuses()["submitting"] == fake.billed
    database.terminate_sessions()  # Postgres itself would only notice at the end of the statement
    wait_until(lambda: not sessions(database), "the killed function's session to end")
    database.stop_sleeping("gen_job", "insert")

    database.age("11 minutes")
    assert start("reap").invoke(RUN).body["reaped"] == fake.billed
    database.age("11 minutes")
    # The emulator starts the runtime anew after it killed it, as Lambda does.
    for _ in range(4):
        assert not submit.invoke(RUN).timed_out
        database.age("11 minutes")
    assert database.statuses() == {"submitted": 12}
    assert fake.billed == 12
    assert set(fake.billed_by_key.values()) == {1}


def test_a_function_knows_how_much_time_it_has(
    start: Callable[..., Emulator], database: Database, fake: FakeSume
) -> None:
    """Too little for one call: it claims nothing and says so, instead of being killed."""
    database.insert("a lighthouse")
    answer = start("submit", timeout=5).invoke(RUN)
    assert answer.body["claimed"] == 0
    assert fake.billed == 0
    assert answer.seconds < 10


def test_a_missing_setting_is_named(start: Callable[..., Emulator]) -> None:
    answer = start("submit", SUME_TIMEOUT_SECONDS="soon").invoke(RUN)
    assert answer.body["errorType"] == "SettingsError"
    assert re.search("SUME_TIMEOUT_SECONDS must be", answer.body["errorMessage"])


def test_metrics_carry_the_name_of_the_stack(start: Callable[..., Emulator]) -> None:
    """The alarms of a stack look at its own metrics, not at those of another stage."""
    reap = start("reap", POWERTOOLS_SERVICE_NAME="shop-prod")
    assert "reaped" in reap.invoke(RUN).body
    lines = [json.loads(line) for line in reap.log.splitlines() if line.startswith('{"_aws"')]
    (told,) = [line for line in lines if "PendingDepth" in line]
    assert told["service"] == "shop-prod"
    assert told["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "SumeJobs"
    assert told["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["service"]]
