"""The pure parts: which artifacts are taken, their names, the event, and what a refusal does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from sume_jobs import runtime, targets
from sume_jobs.decisions import artifact_rules, follow_up_event
from sume_jobs.decisions.artifact_rules import ArtifactRefused
from sume_jobs.decisions.follow_up_event import Message
from sume_jobs.flows import dispatch
from sume_jobs.flows.time_left import TimeLeft
from sume_jobs.secrets import Secrets
from sume_jobs.settings import Settings

from tests.support.postgres import Database

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "follow_up_event.schema.json").read_text())

# Artifacts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://media.sume.com/artifacts/a.png?sig=x", None),
        ("https://8.8.8.8/a", None),
        ("https://[2606:4700::1111]/a", None),
        ("http://media.sume.com/a.png", "url_not_https"),
        ("ftp://media.sume.com/a", "url_not_https"),
        ("file:///etc/passwd", "url_malformed"),
        ("https://user:secret@media.sume.com/a", "url_malformed"),
        ("https://", "url_malformed"),
        ("https://host:99999/", "url_malformed"),
        ("https://[::1", "url_malformed"),
        ("", "url_malformed"),
        ("https://a\r\nHost: b/", "url_malformed"),
        ("http://127.0.0.1:9001/2018-06-01/runtime/invocation/next", "address_not_public"),
        ("https://127.0.0.1/", "address_not_public"),
        ("https://169.254.169.254/latest/meta-data", "address_not_public"),
        ("https://10.1.2.3/", "address_not_public"),
        ("https://100.64.0.1/", "address_not_public"),
        ("https://0.0.0.0/", "address_not_public"),
        ("https://224.0.0.1/", "address_not_public"),
        ("https://[::1]/", "address_not_public"),
        ("https://[fd00:ec2::254]/", "address_not_public"),
        ("https://[::ffff:10.0.0.1]/", "address_not_public"),
        ("https://[64:ff9b::a9fe:a9fe]/", "address_not_public"),
        ("https://[2002:0a00:0001::]/", "address_not_public"),
        ("http://localhost:8000/a", "url_not_https"),
    ],
)
def test_urls(url: str, code: str | None) -> None:
    if code is None:
        artifact_rules.check_url(url, may_be_local=False)
    else:
        with pytest.raises(ArtifactRefused) as caught:
            artifact_rules.check_url(url, may_be_local=False)
        assert caught.value.code == code


def test_this_machine_only_where_sume_is_on_it() -> None:
    for url in ("http://127.0.0.1:8000/a", "http://localhost/a", "http://[::1]/a"):
        artifact_rules.check_url(url, may_be_local=True)
    for url in ("http://10.0.0.1/a", "http://media.sume.com/a"):
        with pytest.raises(ArtifactRefused):
            artifact_rules.check_url(url, may_be_local=True)


@pytest.mark.parametrize(
    ("declared", "answered", "kept"),
    [
        ("image/png", "image/png", "image/png"),
        ("image/png", "image/webp; q=1", "image/webp"),
        ("image/png", "application/octet-stream", "image/png"),
        ("image/png", None, "image/png"),
        (None, "video/mp4", "video/mp4"),
        (None, None, "application/octet-stream"),
        ("text/vtt", "text/plain; charset=utf-8", "text/plain"),
        ("image/png", "text/html", None),
        ("image/png", "application/json", None),
        ("image/png", "video/mp4", None),
        ("text/vtt", "text/html", None),
        (None, "text/html; charset=utf-8", None),
        (7, "application/xml", None),
    ],
)
def test_types(declared: object, answered: object, kept: str | None) -> None:
    if kept is not None:
        assert artifact_rules.check_type(declared, answered) == kept
        return
    with pytest.raises(ArtifactRefused) as caught:
        artifact_rules.check_type(declared, answered)
    assert caught.value.is_dead, "a fresh URL may help"


@pytest.mark.parametrize(
    ("beginning", "content_type", "is_taken"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png", True),
        (b"\xff\xd8\xff\xe0", "image/jpeg", True),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", True),
        (b"<?xml version='1.0'?><svg/>", "image/svg+xml", True),
        (b'{"cues": []}', "application/json", True),
        (b"", "image/png", False),
        (b"\n  <!DOCTYPE html>", "image/png", False),
        (b"<html>", "image/svg+xml", False),
        (b"\xef\xbb\xbf<?xml version='1.0'?><Error>", "application/octet-stream", False),
        (b'{"error": {"code": "expired"}}', "image/png", False),
    ],
)
def test_beginnings(beginning: bytes, content_type: str, is_taken: bool) -> None:
    if is_taken:
        artifact_rules.check_beginning(beginning, content_type)
    else:
        with pytest.raises(ArtifactRefused):
            artifact_rules.check_beginning(beginning, content_type)


def test_names_do_not_depend_on_the_url_of_the_day() -> None:
    first = {"url": "https://a.example/x/out.png?sig=1", "content_type": "image/png"}
    later = {"url": "https://b.example/y/else?sig=2", "content_type": "image/png; v=1"}
    assert artifact_rules.object_name("job_1", 0, first) == "sume-jobs/job_1/1.png"
    assert artifact_rules.object_name("job_1", 0, later) == "sume-jobs/job_1/1.png"
    plain = {"url": "https://a.example/a.WEBP?x=1"}
    assert artifact_rules.object_name("job_1", 1, plain) == "sume-jobs/job_1/2.webp"
    assert artifact_rules.object_name("job_1", 2, {"url": "https://a/x.php"}) == "sume-jobs/job_1/3"
    assert artifact_rules.object_name("..", 0, {}) == "sume-jobs/%2E%2E/1"
    assert artifact_rules.manifest_name("job_a&b") == "sume-jobs/job_a%26b/manifest.json"


# The event -------------------------------------------------------------------------------------


def an_event(**changes: Any) -> Message:
    values: dict[str, Any] = {
        "kind": "job.completed",
        "job_id": "job_1",
        "idempotency_key": "render-job-1",
        "render_job_id": 2**63 - 1,
        "reference": None,
        "status": "completed",
        "error_code": None,
        "occurred_at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    }
    return follow_up_event.message(**{**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "kind": "job.failed",
            "status": "failed",
            "error_code": "x",
            "reference": "größe \U0001f98a",
        },
        {"kind": "job.canceled", "status": "canceled", "render_job_id": None},
        {"kind": "submission.failed", "job_id": None, "status": "failed"},
    ],
)
def test_what_is_sent_fits_the_schema(changes: dict[str, Any]) -> None:
    message = an_event(**changes)
    event = json.loads(message.body)
    jsonschema.validate(event, SCHEMA, format_checker=jsonschema.FormatChecker())
    assert follow_up_event.parse(message.body) == event
    assert event["occurred_at"] == "2026-01-02T03:04:05.000006Z"
    assert set(event) == set(SCHEMA["required"])


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"render_job_id": 42},
        {"prompt": "a fox"},
        {"occurred_at": "yesterday"},
        {"kind": "job.completed", "job_id": None},
    ],
)
def test_the_schema_refuses_what_is_no_event(changes: dict[str, Any]) -> None:
    event = {**json.loads(an_event().body), **changes}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(event, SCHEMA, format_checker=jsonschema.FormatChecker())


def test_the_page_shows_the_schemas_version_and_an_event_that_fits() -> None:
    page = (ROOT / "docs" / "follow-ups.md").read_text()
    example = json.loads(page.split("```json")[1].split("```")[0])
    jsonschema.validate(example, SCHEMA, format_checker=jsonschema.FormatChecker())
    for name in SCHEMA["required"]:
        assert f"| `{name}` |" in page
    assert SCHEMA["properties"]["version"] == {"const": follow_up_event.VERSION}


def test_ids_for_a_fifo_queue() -> None:
    assert follow_up_event.queue_id("job_1:job.completed") == "job_1:job.completed"
    for odd in ("a key with spaces", "x" * 129, "\u00e9"):
        made = follow_up_event.queue_id(odd)
        assert made == follow_up_event.queue_id(odd)
        assert made.startswith("sha256:")
        assert len(made) <= 128


# Refusals --------------------------------------------------------------------------------------


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "…"}}, "SendMessageBatch")


class Sqs:
    """Answers SendMessageBatch as a test says."""

    def __init__(self, poison: str = "", whole: str = "", entry: str = "") -> None:
        self.poison, self.whole, self.entry = poison, whole, entry
        self.sent: list[str] = []
        self.calls = 0

    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls += 1
        ids = [entry["MessageAttributes"]["deduplication_id"]["StringValue"] for entry in Entries]
        bad = [self.poison and self.poison in each for each in ids]
        if self.whole and (any(bad) or not self.poison):
            raise client_error(self.whole)
        answer: dict[str, Any] = {"Successful": [], "Failed": []}
        for entry, each, is_bad in zip(Entries, ids, bad, strict=True):
            if is_bad:
                answer["Failed"].append({"Id": entry["Id"], "Code": self.entry})
            else:
                self.sent.append(each)
                answer["Successful"].append({"Id": entry["Id"]})
        return answer


def messages(count: int) -> list[Message]:
    return [an_event(job_id=f"job_{number}") for number in range(count)]


def test_an_entry_that_is_refused_is_named_alone() -> None:
    sqs = Sqs(poison="job_3:", entry="InternalError")
    assert targets.Queue(sqs, "url").send(messages(10)) == {"job_3:job.completed": "InternalError"}
    assert len(sqs.sent) == 9


def test_a_message_that_spoils_its_request_is_found_by_sending_one_by_one() -> None:
    sqs = Sqs(poison="job_3:", whole="InvalidMessageContents")
    refused = targets.Queue(sqs, "url").send(messages(10))
    assert refused == {"job_3:job.completed": "InvalidMessageContents"}
    assert len(sqs.sent) == 9
    assert sqs.calls == 11


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidParameterValue"])
def test_a_target_that_refuses_everything_is_unavailable(code: str) -> None:
    with pytest.raises(targets.TargetUnavailable, match=code):
        targets.Queue(Sqs(whole=code), "url").send(messages(2))


def test_an_entry_the_answer_does_not_mention_counts_as_refused() -> None:
    class Silent:
        def send_message_batch(self, **_: Any) -> dict[str, Any]:
            return {}

        def put_events(self, **_: Any) -> dict[str, Any]:
            return {"Entries": [{"EventId": "1"}, {"ErrorCode": "ThrottlingException"}]}

    assert len(targets.Queue(Silent(), "url").send(messages(3))) == 3
    assert targets.Bus(Silent(), "bus").send(messages(3)) == {
        "job_1:job.completed": "ThrottlingException",
        "job_2:job.completed": "unknown",
    }


def test_a_target_out_of_reach_is_unavailable_and_its_address_not_told() -> None:
    class Away:
        def put_events(self, **_: Any) -> dict[str, Any]:
            raise EndpointConnectionError(endpoint_url="https://secret.example")

    with pytest.raises(targets.TargetUnavailable) as caught:
        targets.Bus(Away(), "bus").send(messages(1))
    assert str(caught.value) == "EndpointConnectionError"


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/name", "eu-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/name", "cn-north-1"),
        ("http://127.0.0.1:5000/123456789012/name", None),
    ],
)
def test_a_queue_may_be_in_another_region(url: str, region: str | None) -> None:
    assert targets._region_of_url(url) == region


# The flow, with targets of the test's own -------------------------------------------------------


class Stub:
    """A target that refuses some messages, or is away."""

    def __init__(self, name: str, refuse: tuple[str, ...] = (), away: bool = False) -> None:
        self.name, self.refuse, self.away = name, refuse, away
        self.got: list[str] = []

    def send(self, messages: list[Message]) -> dict[str, str]:
        if self.away:
            raise targets.TargetUnavailable("AccessDenied")
        self.got += [each.id for each in messages if each.group not in self.refuse]
        return {each.id: "Bad" for each in messages if each.group in self.refuse}


@pytest.fixture
def current(database: Database) -> Iterator[runtime.Runtime]:
    settings = Settings(database_url=database.url, follow_up_queue_url="q", follow_up_event_bus="b")
    made = runtime.Runtime(settings, Secrets(settings))
    yield made
    made.close()


def fill(database: Database, count: int) -> None:
    database.execute(
        "with job as (insert into gen_job (job_id, idempotency_key, status, next_poll_at)"
        " select 'job_' || n, 'key-' || n, 'completed', null from generate_series(1, %s::int) n"
        " returning job_id)"
        " insert into follow_up (job_id, kind) select job_id, 'job.completed' from job",
        count,
    )


def run(current: runtime.Runtime, monkeypatch: pytest.MonkeyPatch, *stubs: Stub) -> dict[str, int]:
    monkeypatch.setattr(targets, "open_targets", lambda settings: list(stubs))
    return dispatch.run(current, TimeLeft(None))


def test_p66_poison_stops_at_its_cap_and_holds_nobody_up(
    current: runtime.Runtime, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database, 20)
    database.execute("delete from gen_job where job_id = 'job_3'")
    queue, bus = Stub("sqs", refuse=("job_1",)), Stub("eventbridge")
    assert run(current, monkeypatch, queue, bus) == {"dispatched": 18, "failed": 2, "backlog": 1}
    for _ in range(30):
        database.age("20 minutes")
        run(current, monkeypatch, queue, bus)
    rows = {row["job_id"]: row for row in database.query("select * from follow_up")}
    assert rows["job_1"]["dead_reason"] == "attempts_exhausted: sqs Bad"
    assert rows["job_1"]["attempts"] == dispatch.MAX_ATTEMPTS
    assert rows["job_1"]["sent_to"] == ["eventbridge"]
    assert rows["job_3"]["dead_reason"] == "job_is_gone"
    good = sorted(f"job_{number}:job.completed" for number in range(1, 21) if number not in (1, 3))
    assert sorted(queue.got) == good
    assert sorted(bus.got) == sorted([*good, "job_1:job.completed"]), "each once"


def test_failures_back_off(
    current: runtime.Runtime, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database, 1)
    stub = Stub("sqs", refuse=("job_1",))
    waits = []
    for _ in range(9):
        assert run(current, monkeypatch, stub)["failed"] == 1
        waits.append(
            database.one("select extract(epoch from run_after - now())::float8 from follow_up")
        )
        assert run(current, monkeypatch, stub)["failed"] == 0
        database.age("20 minutes")
    for number, wait in enumerate(waits):
        least = min(5 * 2**number, 900)
        assert least - 1 <= wait <= least * 1.25


def test_p66_a_late_mark_of_a_slow_worker_changes_nothing(
    current: runtime.Runtime, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first one sends, its lease ends and another sends and marks."""
    fill(database, 1)
    other_settings = current.settings
    other = runtime.Runtime(other_settings, Secrets(other_settings))
    second = Stub("sqs")

    class Slow(Stub):
        def send(self, messages: list[Message]) -> dict[str, str]:
            database.age("5 minutes")
            assert run(other, monkeypatch, second)["dispatched"] == 1
            return {each.id: "TooLate" for each in messages}

    assert run(current, monkeypatch, Slow("sqs"))["failed"] == 0
    other.close()
    (row,) = database.query("select * from follow_up")
    assert row["dispatched_at"]
    assert row["last_error"] is None
    assert row["attempts"] == 2
    assert second.got == ["job_1:job.completed"]


def test_one_target_away_does_not_starve_the_other(
    current: runtime.Runtime, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database, 3)
    away, well = Stub("sqs", away=True), Stub("eventbridge")
    assert run(current, monkeypatch, away, well)["dispatched"] == 0
    assert len(well.got) == 3
    away.away = False
    database.age("1 minute")
    assert run(current, monkeypatch, away, well)["dispatched"] == 3
    assert len(well.got) == len(away.got) == 3
    assert database.one("select sum(attempts)::int from follow_up") == 3
