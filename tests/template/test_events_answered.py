"""Each sample event, through the real handler and a real database, is answered as its case says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from local import sign_events
from local.sign_events import CASES, EVENTS, SAMPLE_SECRET

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bundle import Bundle

FIELDS = {
    "submit": {"claimed", "submitted", "requeued", "failed", "stopped"},
    "reap": {"reaped", "expired"},
    "poll": {"polled", "changed", "results"},
}


def load(path: Path) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return event


def test_webhook_events_are_answered_as_listed(bundle: Bundle, tmp_path: Path) -> None:
    bundle.set(SUME_WEBHOOK_SECRETS=SAMPLE_SECRET)
    jobs = (EVENTS / "jobs.sql").read_text(encoding="utf-8")
    for _ in range(2):  # safe to repeat
        bundle.database.execute(jobs)
    assert len(bundle.database.jobs()) == 4
    assert sign_events.main(["--into", str(tmp_path)]) == 0
    webhook = bundle.warm("webhook")
    answered = {}
    for name in CASES:
        answer = webhook.invoke("webhook", load(tmp_path / name))
        outcome = json.loads(answer["body"]).get("outcome") if answer["statusCode"] == 200 else None
        answered[name] = (answer["statusCode"], outcome)
    assert answered == {name: (case.status, case.outcome) for name, case in CASES.items()}
    ends = {job["job_id"][-1]: job["status"] for job in bundle.database.jobs()}
    assert ends == {"1": "completed", "2": "failed", "3": "completed", "4": "completed"}


@pytest.mark.parametrize("function", FIELDS)
def test_ticks_are_answered_with_counts(bundle: Bundle, function: str) -> None:
    answer = bundle.warm(function).invoke(function, load(EVENTS / f"{function}.json"))
    assert FIELDS[function] <= set(answer)
    assert {type(answer[field]) for field in FIELDS[function]} == {int}


def test_migrate_takes_its_event_twice(bundle: Bundle) -> None:
    for _ in range(2):
        answer = bundle.warm("migrate").invoke("migrate", load(EVENTS / "migrate.json"))
        json.dumps(answer)
