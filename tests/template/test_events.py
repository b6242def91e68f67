"""The sample events: signed as they say, in the shapes that AWS sends."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from sume_jobs.decisions.signature import verify

from local import sign_events
from local.sign_events import CASES, EVENTS, SAMPLE_SECRET
from tests.template.deployment import source

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCE = 300.0


def load(name: str, folder: Path = EVENTS) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return event


def verifies(event: dict[str, Any], now: float) -> bool:
    timestamp = sign_events.header(event, "x-sume-timestamp")
    signature = sign_events.header(event, "x-sume-signature")
    raw = sign_events.raw_body(event)
    return verify(raw, timestamp, signature, [SAMPLE_SECRET], now, TOLERANCE)


def test_every_function_has_an_event_and_every_event_a_case() -> None:
    files = {path.name for path in EVENTS.glob("*.json")}
    assert {name for name in files if name.startswith("webhook_")} == set(CASES)
    for name, resource in source()["Resources"].items():
        if resource["Type"] == "AWS::Serverless::Function":
            function = name.removesuffix("Function").lower()
            assert f"{function}.json" in files or function == "webhook"


def test_the_committed_signatures_fit() -> None:
    assert sign_events.main(["--check"]) == 0


@pytest.mark.parametrize("name", CASES)
def test_signed_anew_an_event_verifies_or_not_as_its_case_says(name: str, tmp_path: Path) -> None:
    before = load(name)
    assert sign_events.main(["--into", str(tmp_path)]) == 0
    assert load(name) == before
    event = load(name, tmp_path)
    now = time.time()
    assert verifies(event, now) == (CASES[name].status != 401)
    if CASES[name].age:
        assert verifies(event, now - CASES[name].age)


def test_a_secret_of_ones_own_signs_all_but_the_forged(tmp_path: Path) -> None:
    sign_events.main(["--into", str(tmp_path), "--secret", "mine"])
    for name, case in CASES.items():
        event = load(name, tmp_path)
        genuine = verify(
            sign_events.raw_body(event),
            sign_events.header(event, "x-sume-timestamp"),
            sign_events.header(event, "x-sume-signature"),
            ["mine"],
            time.time(),
            TOLERANCE,
        )
        assert genuine == (case.status != 401)


def test_a_changed_body_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sign_events.main(["--into", str(tmp_path)])
    event = load("webhook_applied.json", tmp_path)
    event["body"] = event["body"].replace("completed", "canceled")
    (tmp_path / "webhook_applied.json").write_text(json.dumps(event), encoding="utf-8")
    monkeypatch.setattr(sign_events, "EVENTS", tmp_path)
    assert sign_events.main(["--check"]) == 1
    assert "events/webhook_applied.json: the signature does not fit" in capsys.readouterr().out


@pytest.mark.parametrize("name", CASES)
def test_webhook_events_have_the_shape_of_their_format(name: str) -> None:
    event = load(name)
    if name == "webhook_rest_api.json":
        assert "version" not in event
        assert event["httpMethod"] == "POST"
        assert event["path"] == "/webhooks/sume"
        assert {key: [value] for key, value in event["headers"].items()} == (
            event["multiValueHeaders"]
        )
        signed = [key for key in event["headers"] if key.lower().startswith("x-sume")]
        assert all(key != key.lower() for key in signed)
    else:
        assert event["version"] == "2.0"
        assert event["rawPath"] == "/webhooks/sume"
        assert event["requestContext"]["http"]["method"] == "POST"
        assert all(key == key.lower() for key in event["headers"])
    assert len(sign_events.raw_body(event)) == int(
        sign_events.header(event, "content-length") or len(sign_events.raw_body(event))
    )
    assert event["isBase64Encoded"] == (name == "webhook_base64.json")


def test_the_base64_event_holds_more_than_ascii() -> None:
    assert not sign_events.raw_body(load("webhook_base64.json")).isascii()


def test_the_duplicate_is_the_applied_event_byte_for_byte() -> None:
    first, second = load("webhook_applied.json"), load("webhook_duplicate.json")
    assert sign_events.raw_body(first) == sign_events.raw_body(second)


@pytest.mark.parametrize("function", ["submit", "reap", "poll"])
def test_ticks_have_the_shape_of_the_scheduler(function: str) -> None:
    event = load(f"{function}.json")
    assert event["source"] == "aws.scheduler"
    assert event["detail-type"] == "Scheduled Event"
    assert event["detail"] == "{}"
    assert f"{function.title()}FunctionEveryMinute" in event["resources"][0]


def test_the_readme_lists_the_cases_in_order() -> None:
    text = (EVENTS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+\.json)` \| .* \| (\d+)(?: `(\w+)`)? \|$", text, re.MULTILINE)
    assert listed == [(name, str(case.status), case.outcome or "") for name, case in CASES.items()]
    assert SAMPLE_SECRET in text
