"""No secret, prompt, key, signature or URL query in any log line, metric or error message.

Everything that could leak carries a mark, and the flows run through good and bad weather.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from local.fake_sume import Behaviour, FakeSume
from tests.support.bundle import Bundle, event_body
from tests.support.container import HandlerRaised
from tests.support.postgres import Database, free_port

MARKS = {
    "prompt": "mark-prompt",
    "API key": "mark-api-key",
    "signing secret": "mark-signing-secret",
    "database password": "mark-password",
    "query of a URL": "mark-query",
    "answer of Sume": "mark-message",
    "body of a delivery": "mark-body",
    "signature": "mark-signature",
}


@pytest.fixture
def marked(make_bundle: Any, database: Database, fake: FakeSume) -> Iterator[Bundle]:
    bundle: Bundle = make_bundle(database, fake)
    bundle.set(
        SUME_API_KEY=MARKS["API key"],
        SUME_WEBHOOK_SECRETS=MARKS["signing secret"],
        SUME_WEBHOOK_URL=f"https://example.com/hook?token={MARKS['query of a URL']}",
        SUME_TIMEOUT_SECONDS="1",
    )
    fake.options.webhook_secret = MARKS["signing secret"]
    yield bundle
    for container in bundle._all:
        for line in container.output().splitlines():
            found = [name for name, mark in MARKS.items() if mark in line]
            assert not found, f"{found} in: {line}"


def insert(database: Database, count: int = 1) -> None:
    database.insert_many(count, MARKS["prompt"])


ANSWERS = [
    Behaviour(status=400, json={"error": {"code": "bad", "message": MARKS["answer of Sume"]}}),
    Behaviour(status=400, json={"error": MARKS["answer of Sume"]}),
    Behaviour(status=500, body=MARKS["answer of Sume"].encode()),
    Behaviour(status=302, headers={"Location": f"/x?t={MARKS['query of a URL']}"}),
    Behaviour(status=404, json={"detail": MARKS["answer of Sume"]}),
    Behaviour(status=409, json={"error": {"message": MARKS["answer of Sume"]}}),
    Behaviour(status=202, json={"data": {"x": MARKS["answer of Sume"]}}),
    Behaviour(drop="before"),
    Behaviour(drop="after"),
    Behaviour(drop="mid_body"),
    Behaviour(status=401, json={"error": {"message": MARKS["answer of Sume"]}}),
    Behaviour(status=429, headers={"Retry-After": "5"}),
]


def test_submit_in_bad_weather(marked: Bundle, database: Database, fake: FakeSume) -> None:
    insert(database, len(ANSWERS))
    for behaviour in ANSWERS:
        fake.on_submit(behaviour)
        database.age("30 minutes")
        marked.D()
    database.age("30 minutes")
    marked.D()
    marked.R()
    assert marked.log_lines()
    assert "row_not_submitted" in marked.output()


def test_sume_and_the_database_out_of_reach(marked: Bundle, database: Database) -> None:
    insert(database)
    port = free_port()
    marked.set(SUME_BASE_URL=f"http://127.0.0.1:{port}/{MARKS['query of a URL']}")
    marked.D()
    marked.set(DATABASE_URL=f"postgresql://app:{MARKS['database password']}@127.0.0.1:{port}/app")
    for name in ("submit", "poll", "reap", "migrate"):
        with pytest.raises(HandlerRaised) as caught:
            marked.start(name).result()
        assert not [mark for mark in MARKS.values() if mark in str(caught.value)]
    marked.storage_down = True
    assert marked.W(event_body("job_1"), secret=MARKS["signing secret"]).status == 503


@pytest.mark.parametrize(
    "settings",
    [
        {"DATABASE_URL": "mark-password is no connection string"},
        {"SUME_API_KEY": "mark-api-key\u00e9"},
        {"SUME_BASE_URL": "mark-query"},
        {"SUME_WEBHOOK_URL": "mark-query"},
    ],
)
def test_wrong_settings_are_named_and_not_shown(marked: Bundle, settings: dict[str, str]) -> None:
    marked.set(**settings)
    with pytest.raises(HandlerRaised) as caught:
        marked.start("submit").result()
    (name,) = settings
    assert name in str(caught.value)
    assert "mark-" not in str(caught.value)


def test_webhooks_good_and_bad(marked: Bundle, database: Database) -> None:
    insert(database)
    marked.D()
    job = database.jobs()[0]["job_id"]
    secret, body_mark = MARKS["signing secret"], MARKS["body of a delivery"]
    wrong = {"X-Sume-Signature": f"v1={MARKS['signature']}"}
    marked.W(event_body(job, "processing", note=body_mark), secret="other")
    marked.W(event_body(job, "processing", note=body_mark), headers=wrong)
    marked.W(event_body(job, "processing", note=body_mark), timestamp=int(time.time()) - 9999)
    marked.W(body_mark.encode(), secret=secret)
    marked.W(json.dumps({"note": body_mark}).encode(), secret=secret)
    marked.W(b"x" * 300_000 + body_mark.encode(), secret=secret)
    marked.W(event_body("job_early", note=body_mark), secret=secret)
    error = {"code": "policy", "message": MARKS["answer of Sume"]}
    assert marked.W(event_body(job, "failed", error=error), secret=secret).outcome == "applied"
    assert marked.W(event_body(job, "completed"), secret=secret).outcome == "noop"
    assert "contradicting_end" in marked.output()


def test_poll_in_bad_weather(marked: Bundle, database: Database, fake: FakeSume) -> None:
    insert(database, 3)
    marked.D()
    for behaviour in (
        Behaviour(status=500, body=MARKS["answer of Sume"].encode()),
        Behaviour(status=404, json={"error": {"message": MARKS["answer of Sume"]}}),
        Behaviour(json={"data": {"job": {"status": MARKS["answer of Sume"][:4], "id": None}}}),
        Behaviour(drop="before"),
    ):
        fake.on_read(behaviour)
        marked.poll_now()
    for job in fake.jobs.values():
        fake.set_status(job.id, "failed", {"code": "c", "message": MARKS["answer of Sume"]})
    marked.poll_now()
    marked.R()
    assert {job["status"] for job in database.jobs()} == {"failed"}
