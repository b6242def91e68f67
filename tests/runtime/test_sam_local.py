"""Every function by `sam local`, in containers, with its sample event: run by `make sam-local`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from local import sign_events
from local.fake_sume import FakeSume
from local.sign_events import CASES, EVENTS, SAMPLE_SECRET, raw_body
from tests.runtime.sam_local import Forwarder, SamLocal, bridge
from tests.support.postgres import Database, url_of

pytestmark = [
    pytest.mark.sam,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        os.environ.get("RUN_SAM_LOCAL") != "1", reason="NOT RUN: needs Docker: make sam-local"
    ),
]
COUNTS = {
    "submit": {"claimed", "submitted", "requeued", "failed", "stopped"},
    "reap": {"reaped", "expired"},
    "poll": {"polled", "changed", "results"},
    "dispatch": {"dispatched", "failed"},
}


def load(path: Path) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return event


@pytest.fixture
def outside() -> Iterator[FakeSume]:
    """A fake Sume that containers can reach."""
    host = bridge()
    assert host is not None, "Docker's bridge has no address: set SAM_LOCAL_HOST"
    with FakeSume(auto_advance=False, host=host, webhook_secret=SAMPLE_SECRET) as server:
        yield server


@pytest.fixture
def sam(database: Database, outside: FakeSume, tmp_path: Path) -> Iterator[SamLocal]:
    host = bridge()
    assert host is not None
    parts = database.server.parts(dbname=database.name, user="sume_app")
    with Forwarder(host, (str(parts["host"]), int(parts["port"]))) as forwarder:
        parts.update(host=host, port=forwarder.port, sslmode="disable")
        variables = {
            "DATABASE_URL": url_of(**parts),
            "SUME_API_KEY": "sume_local",
            "SUME_API_KEY_SECRET_ARN": "",
            "SUME_WEBHOOK_SECRETS": SAMPLE_SECRET,
            "SUME_BASE_URL": outside.url,
        }
        yield SamLocal(tmp_path, variables)


def test_each_function_takes_its_event(
    sam: SamLocal, database: Database, outside: FakeSume, tmp_path: Path
) -> None:
    row = database.insert("a lighthouse")
    assert sam.invoke("migrate", load(EVENTS / "migrate.json")) == {"applied": []}
    for function, fields in COUNTS.items():
        answer = sam.invoke(function, load(EVENTS / f"{function}.json"))
        assert fields <= set(answer), (function, answer)
    job = database.row(row)["sume_job_id"]
    assert job, "submit, in its container, reached Sume and the database"
    assert outside.billed == 1
    answer = sam.invoke("archive", load(EVENTS / "archive.json"))
    assert "batchItemFailures" in answer, answer
    answer = sam.invoke("api", load(EVENTS / "api.json"))
    assert answer["statusCode"] == 200, answer
    database.execute((EVENTS / "jobs.sql").read_text(encoding="utf-8"))
    assert sign_events.main(["--into", str(tmp_path)]) == 0
    answer = sam.invoke("webhook", load(tmp_path / "webhook_applied.json"))
    assert json.loads(answer["body"]) == {"outcome": "applied"}


def test_signed_deliveries_come_in_by_http(
    sam: SamLocal, database: Database, tmp_path: Path
) -> None:
    database.execute((EVENTS / "jobs.sql").read_text(encoding="utf-8"))
    with sam.start_api() as url:
        assert sign_events.main(["--into", str(tmp_path)]) == 0
        answered, expected = {}, {}
        for name, case in CASES.items():
            event = load(tmp_path / name)
            if event.get("version") != "2.0":
                continue  # what a REST API would make of a request; this is an HTTP API
            names = ("x-sume", "content-type")
            headers = {k: v for k, v in event["headers"].items() if k.lower().startswith(names)}
            answer = requests.post(
                f"{url}/webhooks/sume", data=raw_body(event), headers=headers, timeout=120
            )
            outcome = answer.json().get("outcome") if answer.status_code == 200 else None
            answered[name] = (answer.status_code, outcome)
            expected[name] = (case.status, case.outcome)
        assert answered == expected
        assert requests.get(f"{url}/jobs/1", timeout=120).status_code == 200
    ends = {job["job_id"][-1]: job["status"] for job in database.jobs()}
    assert ends["1"] == "completed"
    assert ends["2"] == "failed"
