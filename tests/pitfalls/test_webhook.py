"""Pitfalls of the webhook receiver: signatures, shapes, order, duplicates, size, secrets."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest

from local.fake_sume import Behaviour, FakeSume
from tests.support.bundle import (
    SECRET,
    Answer,
    Bundle,
    event_body,
    key_of,
    sign,
    signature,
    webhook_event,
)
from tests.support.container import ContainerDied
from tests.support.postgres import Database
from tests.support.secrets_manager import SecretsManager
from tests.support.waiting import slack, wait_until

NOWHERE = "postgresql://nobody@127.0.0.1:9/none"

# ------------------------------------------------------------------------------------------- P01


@pytest.mark.parametrize("status", ["completed", "failed", "canceled"])
def test_p01_webhook_before_the_submit_response(
    bundle: Bundle, database: Database, fake: FakeSume, status: str
) -> None:
    row = database.insert()
    answers: list[Answer] = []

    def early(job: Any) -> None:
        fake.set_status(job.id, status)
        answers.append(bundle.W(fake.webhook_body(job.id, status)))

    fake.on_submit(Behaviour(call=early))
    bundle.D()
    assert not fake.errors
    (answer,) = answers
    assert (answer.status, answer.outcome) == (200, "held")
    job = fake.job_for(key_of(row)).id
    after = database.row(row)
    assert (after["status"], after["sume_job_id"]) == ("submitted", job)
    assert database.job(job)["status"] == status
    assert len(database.follow_ups(job)) == 1
    assert len(database.jobs()) == 1


def test_p01_early_twice_and_again_later(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    outcomes = []

    def early(job: Any) -> None:
        body = fake.webhook_body(job.id, "completed")
        outcomes.append(bundle.W(body).outcome)
        outcomes.append(bundle.W(body).outcome)

    fake.on_submit(Behaviour(call=early))
    bundle.D()
    assert outcomes == ["held", "duplicate"]
    job = fake.job_for(key_of(row)).id
    assert database.job(job)["status"] == "completed"
    assert bundle.W(fake.webhook_body(job, "completed")).outcome == "duplicate"
    assert bundle.W(fake.webhook_body(job, "completed", "evt_other")).outcome == "noop"


def test_p01_early_event_and_the_answer_is_lost(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling: the event is held, and the job only becomes known by the replay."""
    row = database.insert()
    fake.on_submit(
        Behaviour(drop="after", call=lambda job: bundle.W(fake.webhook_body(job.id, "completed")))
    )
    bundle.D()
    assert database.row(row)["status"] == "pending"
    bundle.submit_later()
    job = fake.job_for(key_of(row)).id
    assert database.job(job)["status"] == "completed"
    assert len(database.follow_ups(job)) == 1


@pytest.mark.parametrize("status", ["completed", "failed", "canceled", "processing"])
def test_p01_a_replay_may_already_be_at_its_end(
    bundle: Bundle, database: Database, fake: FakeSume, status: str
) -> None:
    row = database.insert()
    fake.on_submit(Behaviour(drop="after"))
    bundle.D()
    job = fake.job_for(key_of(row)).id
    fake.set_status(job, status)
    bundle.submit_later()
    bundle.poll_now()
    assert database.job(job)["status"] == status
    assert len(database.follow_ups(job)) == (0 if status == "processing" else 1)


def test_p01_both_at_once_the_record_commits_last(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """At READ COMMITTED neither sees the other; each looks once more after its own commit."""
    row = database.insert()
    database.sleep_at_commit("gen_job", "insert", 1.0)
    running = bundle.start("submit")
    database.wait_for_sleeper()
    job = fake.job_for(key_of(row)).id
    assert bundle.W(fake.webhook_body(job, "completed")).outcome == "held"
    running.result()
    assert database.job(job)["status"] == "completed"
    assert len(database.follow_ups(job)) == 1


def test_p01_both_at_once_the_event_commits_last(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    database.sleep_at_commit("webhook_event", "insert", 1.0)
    started = []

    def early(job: Any) -> None:
        started.append(bundle.start_W(fake.webhook_body(job.id, "completed")))
        database.wait_for_sleeper()

    fake.on_submit(Behaviour(call=early))
    bundle.D()
    assert not fake.errors
    job = fake.job_for(key_of(row)).id
    assert database.row(row)["sume_job_id"] == job
    answer = started[0].result()
    assert (answer.status, answer.outcome) == (200, "applied")
    assert database.job(job)["status"] == "completed"
    assert len(database.follow_ups(job)) == 1


def test_p01_held_and_then_nobody_looked_again(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling: the worker dies between its record and its second look; one poll repairs it."""
    row = database.insert()
    database.sleep_at_commit("gen_job", "insert", 1.0)
    container = bundle.another()
    running = bundle.start("submit", container=container)
    database.wait_for_sleeper()
    job = fake.job_for(key_of(row)).id
    assert bundle.W(fake.webhook_body(job, "completed")).outcome == "held"
    container.kill()
    assert running.wait().get("died")
    wait_until(lambda: database.jobs(), "the statement of the dead worker commits")
    assert database.job(job)["status"] == "queued"
    bundle.P()
    assert database.job(job)["status"] == "completed"
    assert len(database.follow_ups(job)) == 1


def test_p01_several_early_events(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """The sibling: all that is held is applied in the order of arrival; the first end wins."""
    row = database.insert()

    def early(job: Any) -> None:
        for number, status in enumerate(("processing", "completed", "failed", "processing")):
            answer = bundle.W(event_body(job.id, status, f"evt_{number}"))
            assert answer.outcome == "held", answer

    fake.on_submit(Behaviour(call=early))
    bundle.D()
    assert not fake.errors
    job = database.row(row)["sume_job_id"]
    assert database.job(job)["status"] == "completed"
    assert [f["kind"] for f in database.follow_ups(job)] == ["job.completed"]


def test_p01_an_early_event_that_ends_nothing(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    fake.on_submit(Behaviour(call=lambda job: bundle.W(event_body(job.id, "processing"))))
    bundle.D()
    assert database.job(database.row(row)["sume_job_id"])["status"] == "processing"


# ------------------------------------------------------------------------------------------- P18


def test_p18_an_event_whose_work_failed_is_not_a_duplicate(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, job = bundle.job()
    body = fake.webhook_body(job, "completed", "evt_1")
    bundle.storage_down = True
    with database.session() as other:
        other.execute("select 1 from gen_job where job_id = %s for update", (job,))
        answer = bundle.W(body)
        other.rollback()
    bundle.storage_down = False
    assert answer.status == 503
    assert answer.seconds < 5.0 * slack()
    assert not database.events()
    assert bundle.W(body).outcome == "applied"
    assert database.job(job)["status"] == "completed"
    assert bundle.W(body).outcome == "duplicate"
    assert len(database.follow_ups(job)) == 1


def test_p18_killed_before_the_commit(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """Also P77: nothing unfinished stands in the way of the redelivery."""
    _, job = bundle.job()
    body = fake.webhook_body(job, "completed", "evt_1")
    database.sleep_at_commit("webhook_event", "insert", 5.0)
    call = bundle.start_W(body)
    pid = database.wait_for_sleeper()
    call.container.kill()
    database.query("select pg_terminate_backend(%s)", pid)
    with pytest.raises(ContainerDied):
        call.result()
    database.stop_sleeping("webhook_event", "insert")
    assert not database.events()
    assert bundle.W(body).outcome == "applied"
    assert bundle.W(body).outcome == "duplicate"
    assert len(database.follow_ups(job)) == 1


def test_p18_killed_after_the_commit(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """The process is gone, its statement goes on and commits: then it is applied, whole."""
    _, job = bundle.job()
    body = fake.webhook_body(job, "completed", "evt_1")
    database.sleep_at_commit("webhook_event", "insert", 0.5)
    call = bundle.start_W(body)
    database.wait_for_sleeper()
    call.container.kill()
    with pytest.raises(ContainerDied):
        call.result()
    # The redelivery comes while the first one is still at it.
    answer = bundle.W(body)
    assert (answer.status, answer.outcome) == (200, "duplicate")
    assert database.job(job)["status"] == "completed"
    assert len(database.follow_ups(job)) == 1


def test_p18_the_same_event_twice_at_once(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, job = bundle.job()
    body = fake.webhook_body(job, "completed", "evt_1")
    calls = [bundle.start_W(body, container=bundle.another()) for _ in range(4)]
    outcomes = sorted(str(call.result().outcome) for call in calls)
    assert outcomes == ["applied", "duplicate", "duplicate", "duplicate"]
    assert len(database.follow_ups(job)) == 1


# ------------------------------------------------------------------------------------------- P29


def test_p29_header_names_in_any_case(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    jobs = [job for _, job in bundle.accepted(4)]
    bodies = [fake.webhook_body(job, "completed") for job in jobs]
    assert bundle.W(bodies[0], shape="2.0").outcome == "applied"
    assert bundle.W(bodies[1], shape="1.0").outcome == "applied"
    good = sign(bodies[2])
    odd = {
        "x-SUME-timestamp": good["X-Sume-Timestamp"],
        "x-SUME-signature": good["X-Sume-Signature"],
        "X-Sume-Timestamp": None,
        "X-Sume-Signature": None,
    }
    event = webhook_event(bodies[2], shape="1.0")
    event["headers"] = {name: value for name, value in odd.items() if value}
    event["multiValueHeaders"] = {name: [value] for name, value in odd.items() if value}
    assert bundle.send(event).outcome == "applied"
    assert bundle.W(bodies[3], shape="2.0", lower=False).outcome == "applied"


def test_p29_the_signature_twice_with_different_values(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    cases = list(itertools.product([True, False], [True, False]))
    for (first_is_good, multi), (_, job) in zip(cases, bundle.accepted(4), strict=True):
        body = fake.webhook_body(job, "completed")
        values = [sign(body)["X-Sume-Signature"], "v1=" + "0" * 64]
        if not first_is_good:
            values.reverse()
        event = webhook_event(body, shape="1.0", headers={"X-Sume-Signature": None})
        twice = dict(zip(("X-Sume-Signature", "x-sume-signature"), values, strict=True))
        event["headers"] |= twice
        event["multiValueHeaders"] |= {name: [value] for name, value in twice.items()}
        if not multi:
            event["multiValueHeaders"] = None
        answer = bundle.send(event)
        assert answer.status in (200, 401)
        assert (database.job(job)["status"] == "completed") == (answer.status == 200)


@pytest.mark.parametrize("headers", [None, {}])
@pytest.mark.parametrize("shape", ["1.0", "2.0"])
def test_p29_no_headers_at_all(bundle: Bundle, headers: Any, shape: str) -> None:
    event = webhook_event(b"{}", shape=shape)
    event["headers"] = headers
    event.pop("multiValueHeaders", None)
    assert bundle.send(event).status == 401


def test_p29_gateways_that_send_headers_in_one_place_only(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    (_, one), (_, two) = bundle.accepted(2)
    for name, job in (("headers", one), ("multiValueHeaders", two)):
        event = webhook_event(fake.webhook_body(job, "completed"), shape="1.0")
        event[name] = None
        answer = bundle.send(event)
        assert answer.status in (200, 401)
        assert (database.job(job)["status"] == "completed") == (answer.status == 200)


# ------------------------------------------------------------------------------------------- P30


@pytest.mark.parametrize("shape", ["1.0", "2.0"])
def test_p30_base64_bodies(bundle: Bundle, database: Database, fake: FakeSume, shape: str) -> None:
    (_, one), (_, two) = bundle.accepted(2)
    assert (
        bundle.W(fake.webhook_body(one, "completed"), encoded=True, shape=shape).outcome
        == "applied"
    )
    assert (
        bundle.W(fake.webhook_body(two, "completed"), encoded=False, shape=shape).outcome
        == "applied"
    )


@pytest.mark.parametrize("text", ["%%%", "e30", "e30===", "{}", "é", "e3\n0="])
def test_p30_invalid_base64(bundle: Bundle, text: str) -> None:
    event = webhook_event(b"{}", encoded=True)
    event["body"] = text
    assert bundle.send(event).status in (400, 401)


def test_p30_not_utf8(bundle: Bundle, database: Database) -> None:
    _, job = bundle.job()
    raw = event_body(job).replace(b"image_generation", b"image\xff\xfe")
    answer = bundle.W(raw, encoded=True)
    assert answer.status == 400
    assert database.job(job)["status"] == "queued"
    # No decoding before the signature: the same bytes unsigned are 401.
    assert bundle.W(raw, encoded=True, secret="wrong").status == 401


@pytest.mark.parametrize("shape", ["1.0", "2.0"])
def test_p30_no_body(bundle: Bundle, shape: str) -> None:
    assert bundle.W(None, shape=shape).status in (400, 401)
    event = webhook_event(b"", shape=shape)
    del event["body"]
    assert bundle.send(event).status in (400, 401)
    event = webhook_event(b"", shape=shape)
    del event["body"], event["isBase64Encoded"]
    assert bundle.send(event).status in (400, 401)
    assert bundle.W(b"", shape=shape).status == 400, "signed, and not JSON"


# ------------------------------------------------------------------------------------------- P32


def odd_bodies(job: str) -> dict[str, bytes]:
    return {
        "spaces": b'{"data":  {"object":  {"id":  "%s",  "status":  "completed"}}}' % job.encode(),
        "reverse": b'{"data":{"object":{"status":"completed","id":"%s"}},"type":"t","id":"e"}'
        % job.encode(),
        "escapes": (
            f'{{"note":"\\u00e9 é","data":{{"object":{{"id":"{job}","status":"completed"}}}}}}'
        ).encode(),
        "numbers": b'{"a":1.0,"b":1e2,"c":-0,"data":{"object":{"id":"%s","status":"completed"}}}'
        % job.encode(),
        "newline": b'{"data":{"object":{"id":"%s","status":"completed"}}}\n' % job.encode(),
        "crlf": b'\r\n{"data":{"object":{"id":"%s","status":"completed"}}}\r\n' % job.encode(),
        "escaped id": b'{"data":{"object":{"id":"\\u006a%s","status":"complete\\u0064"}}}'
        % job.encode()[1:],
    }


@pytest.mark.parametrize("kind", odd_bodies("job_"))
def test_p32_the_signature_is_over_the_bytes(bundle: Bundle, database: Database, kind: str) -> None:
    _, job = bundle.job()
    body = odd_bodies(job)[kind]
    tampered = webhook_event(body)
    tampered["body"] = tampered["body"].replace('"status"', ' "status"', 1)
    assert bundle.send(tampered).status == 401
    assert database.job(job)["status"] == "queued"
    answer = bundle.W(body)
    assert (answer.status, answer.outcome) == (200, "applied")
    assert database.job(job)["status"] == "completed"


def test_p32_a_duplicate_key(bundle: Bundle, database: Database) -> None:
    _, job = bundle.job()
    body = b'{"data":{"object":{"id":"%s","status":"failed","status":"completed"}}}' % job.encode()
    assert bundle.W(body).outcome == "applied"
    assert database.job(job)["status"] == "completed", (
        "the last one counts, as for every JSON parser"
    )


def test_p32_a_byte_order_mark(bundle: Bundle, database: Database) -> None:
    _, job = bundle.job()
    answer = bundle.W(b"\xef\xbb\xbf" + event_body(job), encoded=True, good=False)
    assert answer.status in (200, 400)
    assert (database.job(job)["status"] == "completed") == (answer.status == 200)


# ------------------------------------------------------------------------------------------- P33

BAD_SIGNATURES: dict[str, str | None] = {
    "not ASCII": "v1=é" + "0" * 63,
    "not hexadecimal": "v1=" + "z" * 64,
    "empty": "v1=",
    "100 kB": "v1=" + "a" * 100_000,
    "many": ",".join(["v1=" + "a" * 64] * 2000),
    "missing": None,
    "two equal signs": "v1==" + "0" * 64,
    "nothing": "",
    "only the version": "v1",
    "full-width digits": "v1=" + "\uff10" * 64,
    "short": "v1=00",
    "long": "v1=" + "0" * 65,
    "commas": ",,,,",
    "NUL": "v1=\0" + "0" * 63,
    "surrogate": "v1=\ud800",
}


@pytest.mark.parametrize("shape", ["1.0", "2.0"])
def test_p33_a_bad_signature_header_is_401(
    bundle: Bundle, database: Database, fake: FakeSume, shape: str
) -> None:
    """With no database to reach: the signature comes first."""
    bundle.set(DATABASE_URL=NOWHERE)
    body = event_body("job_1")
    for kind, value in BAD_SIGNATURES.items():
        answer = bundle.W(body, shape=shape, headers={"X-Sume-Signature": value})
        assert answer.status == 401, (kind, answer)
    assert not bundle.logs("ERROR")
    assert not bundle.logs("CRITICAL")


def test_p33_one_character_off(bundle: Bundle, database: Database) -> None:
    _, job = bundle.job()
    body = event_body(job)
    now = str(int(time.time()))
    good = signature(body, now)
    for position in (0, 31, 63):
        flipped = "0" if good[position] != "0" else "1"
        bad = good[:position] + flipped + good[position + 1 :]
        answer = bundle.W(body, timestamp=now, headers={"X-Sume-Signature": "v1=" + bad})
        assert answer.status == 401
    assert database.job(job)["status"] == "queued"
    assert not database.events()
    upper = bundle.W(body, timestamp=now, headers={"X-Sume-Signature": "v1=" + good.upper()})
    assert upper.outcome == "applied", "hexadecimal digits compare in any case"


@pytest.mark.parametrize("value", [None, 7, [], ["v1=00"], {}, True])
def test_p33_header_values_that_are_no_text(bundle: Bundle, value: Any) -> None:
    bundle.set(DATABASE_URL=NOWHERE)
    for name in ("x-sume-signature", "x-sume-timestamp"):
        event = webhook_event(event_body("job_1"))
        event["headers"][name] = value
        assert bundle.send(event).status == 401, name


# ------------------------------------------------------------------------------------------- P34

ODD_JSON: dict[str, Any] = {
    "list": [],
    "null": None,
    "number": 42,
    "text": "x",
    "true": True,
    "empty": {},
    "data null": {"data": None},
    "data list": {"data": []},
    "data text": {"data": "job_1"},
    "object list": {"data": {"object": []}},
    "object null": {"data": {"object": None}},
    "id number": {"data": {"object": {"id": 7, "status": "completed"}}},
    "id list": {"data": {"object": {"id": ["job_1"], "status": "completed"}}},
    "id object": {"data": {"object": {"id": {"a": 1}, "status": "completed"}}},
    "id empty": {"data": {"object": {"id": "", "status": "completed"}}},
    "id long": {"data": {"object": {"id": "job_" + "1" * 300, "status": "completed"}}},
    "id very long": {"data": {"object": {"id": "job_" + "1" * 9000, "status": "completed"}}},
    "event id number": {"id": 5, "data": {"object": {"id": "job_1", "status": "completed"}}},
    "event id long": {"id": "e" * 9000, "data": {"object": {"id": "job_1", "status": "completed"}}},
    "event id list": {"id": [], "data": {"object": {"id": "job_1", "status": "completed"}}},
    "event id empty": {"id": "", "data": {"object": {"id": "job_1", "status": "completed"}}},
    "status missing": {"data": {"object": {"id": "job_1"}}},
    "status null": {"data": {"object": {"id": "job_1", "status": None}}},
    "status number": {"data": {"object": {"id": "job_1", "status": 1}}},
    "status list": {"data": {"object": {"id": "job_1", "status": ["completed"]}}},
    "status empty": {"data": {"object": {"id": "job_1", "status": ""}}},
    "type list": {"type": ["a"], "data": {"object": {"id": "job_1", "status": "completed"}}},
    "nested nul": {"data": {"object": {"id": "job_\0", "status": "completed"}}},
}


def test_p34_signed_json_of_any_shape(bundle: Bundle, database: Database) -> None:
    for kind, content in ODD_JSON.items():
        body = json.dumps(content).encode()
        answer = bundle.W(body, good=False)
        assert answer.status in (200, 400), (kind, answer)
        if answer.status == 200:
            assert answer.outcome in ("ignored", "held"), (kind, answer)
        again = bundle.W(body, good=False)
        assert again.status == answer.status, (kind, again)
    assert not database.jobs()


def test_p34_an_error_that_is_text_is_stored(bundle: Bundle, database: Database) -> None:
    _, job = bundle.job()
    assert bundle.W(event_body(job, "failed", error="the model said no")).outcome == "applied"
    after = database.job(job)
    assert after["status"] == "failed"
    assert "the model said no" in json.dumps(after["error"])


def test_p34_an_error_of_any_shape(bundle: Bundle, database: Database) -> None:
    errors: list[Any] = [[], ["a"], 7, True, {}, {"code": 5}, {"code": ["x"]}, {"code": None}]
    for error, (_, job) in zip(errors, bundle.accepted(len(errors)), strict=True):
        assert bundle.W(event_body(job, "failed", error=error)).outcome == "applied", error
        assert database.job(job)["status"] == "failed"


@pytest.mark.parametrize(
    "content",
    [
        {"type": "job.something_new"},
        {"type": "job.updated", "data": {"object": {"status": "throttled"}}},
        {"data": {"object": {"status": None}}},
    ],
)
def test_p34_an_undecidable_event_makes_the_job_read_again(
    bundle: Bundle, database: Database, fake: FakeSume, content: dict[str, Any]
) -> None:
    _, job = bundle.job()
    fake.set_status(job, "completed")
    body = {**content, "data": {"object": {"id": job, **content.get("data", {}).get("object", {})}}}
    answer = bundle.W(json.dumps(body))
    assert (answer.status, answer.outcome) == (200, "ignored")
    assert database.job(job)["status"] == "queued"
    bundle.P()  # at once, no time passes
    assert database.job(job)["status"] == "completed"


def test_p34_the_job_id_in_every_known_place(bundle: Bundle, database: Database) -> None:
    places: dict[str, Any] = {
        "data.object": lambda job: {"data": {"object": {"id": job, "status": "completed"}}},
        "data.job": lambda job: {"data": {"job": {"id": job, "status": "completed"}}},
        "data.request_id": lambda job: {"data": {"request_id": job, "sume_status": "completed"}},
        "job": lambda job: {"job": {"id": job, "status": "completed"}},
        "job_id": lambda job: {"job_id": job, "status": "completed"},
        "request_id": lambda job: {"request_id": job, "status": "completed"},
    }
    for (kind, place), (_, job) in zip(places.items(), bundle.accepted(len(places)), strict=True):
        assert bundle.W(json.dumps(place(job))).outcome == "applied", kind
        assert database.job(job)["status"] == "completed", kind


# ------------------------------------------------------------------------------------------- P35


@pytest.mark.parametrize("kind", ["arrays", "objects"])
def test_p35_deep_nesting(bundle: Bundle, database: Database, kind: str) -> None:
    depths = [500, 1_500, 20_000, 40_000] + ([100_000] if kind == "arrays" else [])
    for depth, (_, job) in zip(depths, bundle.accepted(len(depths)), strict=True):
        if kind == "arrays":
            nest = "[" * depth + "]" * depth
        else:
            nest = '{"a":' * depth + "1" + "}" * depth
        body = f'{{"data":{{"object":{{"id":"{job}","status":"completed","metadata":{nest}}}}}}}'
        answer = bundle.W(body, good=False)
        assert answer.status in (200, 400), (depth, answer)
        assert (database.job(job)["status"] == "completed") == (answer.status == 200)
        after = bundle.W(event_body(job, event_id=f"evt_{depth}"))
        assert after.status == 200, "the process lives"


@pytest.mark.parametrize("depth", [1_500, 20_000, 100_000])
def test_p35_deep_nesting_in_sume_s_answers(
    bundle: Bundle, database: Database, fake: FakeSume, depth: int
) -> None:
    row = database.insert()
    nest = b"[" * depth + b"]" * depth
    fake.on_submit(Behaviour(status=202, body=b'{"data":' + nest + b"}"))
    bundle.D()
    assert database.row(row)["status"] == "pending"
    bundle.submit_later()
    job = database.row(row)["sume_job_id"]
    body = b'{"data":{"job":{"id":"%s","status":"completed","x":%s}}}' % (job.encode(), nest)
    fake.on_read(Behaviour(status=200, body=body))
    fake.set_status(job, "completed")
    fake.on_result(Behaviour(status=200, body=b'{"data":{"result":' + nest + b"}}"))
    for _ in range(3):
        bundle.poll_now()
    assert database.job(job)["status"] == "completed"


# ------------------------------------------------------------------------------------------- P36


NO_TIMESTAMPS = [
    "",
    "abc",
    "12.5",
    "2026-01-01T00:00:00Z",
    "{milliseconds}",
    "-{seconds}",
    "+{seconds}",
    " {seconds}",
    "{seconds} ",
    "{seconds}.0",
    "{seconds}e0",
    "0x{seconds}",
    "1_000",
    "{fullwidth}",
    "9" * 5000,
    "NaN",
    "inf",
    "\u0661\u0662",
]


def test_p36_a_timestamp_that_is_no_number(bundle: Bundle) -> None:
    """Signed rightly for that literal text, and refused all the same; with no database to reach."""
    bundle.set(DATABASE_URL=NOWHERE)
    now = int(time.time())
    body = event_body("job_1")
    for form in NO_TIMESTAMPS:
        text = form.replace("{seconds}", str(now)).replace("{milliseconds}", str(now * 1000))
        text = text.replace("{fullwidth}", "".join(chr(0xFF10 + int(digit)) for digit in str(now)))
        answer = bundle.W(body, timestamp=text)
        assert answer.status == 401, form
        # Nothing tells whether the signature was right.
        wrong = bundle.W(body, timestamp=text, secret="wrong")
        assert (wrong.status, wrong.body) == (answer.status, answer.body), form


def test_p36_a_missing_timestamp(bundle: Bundle) -> None:
    bundle.set(DATABASE_URL=NOWHERE)
    body = event_body("job_1")
    assert bundle.W(body, headers={"X-Sume-Timestamp": None}).status == 401
    empty = {"X-Sume-Timestamp": None, "X-Sume-Signature": "v1=" + signature(body, "")}
    assert bundle.W(body, headers=empty).status == 401


# ------------------------------------------------------------------------------------------- P38


BLANK = [None, "", " ", ",", " , ,", "[]", "{}", '[""]', '{"a": ""}', '[" ", null]', "\n"]
# What a store, or a template, writes for "nothing".
JSON_NOTHING = ["null", '""']


@pytest.mark.parametrize("values", [BLANK, JSON_NOTHING], ids=["blank", "JSON for nothing"])
def test_p38_no_secret_verifies_nothing(
    bundle: Bundle, database: Database, values: list[str | None]
) -> None:
    _, job = bundle.job()
    body = event_body(job)
    for value in values:
        bundle.set(SUME_WEBHOOK_SECRETS=value)
        for secret in ("", " ", "null", "[]", "{}", '""', '[""]', value or "x", SECRET):
            assert bundle.W(body, secret=secret).status == 401, (value, secret)
        assert bundle.W(body, headers={"X-Sume-Signature": None}).status == 401
        said = [line for line in bundle.warm("webhook").output().splitlines() if "ERROR" in line]
        assert said, f"an error line says that no secret is configured: {value!r}"
    assert not database.events()
    assert database.job(job)["status"] == "queued"


def test_p38_a_blank_among_secrets_is_none(bundle: Bundle, database: Database) -> None:
    _, job = bundle.job()
    bundle.set(SUME_WEBHOOK_SECRETS=f" ,{SECRET}, ")
    assert bundle.W(event_body(job), secret="").status == 401
    assert bundle.W(event_body(job), secret=" ").status == 401
    assert bundle.W(event_body(job)).outcome == "applied"


def test_p38_the_secret_store_is_unreachable(bundle: Bundle, database: Database) -> None:
    _, job = bundle.job()
    with SecretsManager() as store:
        store.unreachable = True
        store.secrets["webhook"] = SECRET
        bundle.set(
            SUME_WEBHOOK_SECRETS=None,
            SUME_WEBHOOK_SECRETS_ARN=store.arn("webhook"),
            AWS_ENDPOINT_URL=store.url,
            AWS_MAX_ATTEMPTS="1",
        )
        bundle.storage_down = True
        assert bundle.W(event_body(job), secret="").status == 503
        assert bundle.W(event_body(job)).status == 503
        assert not database.events()
        store.unreachable = False
        bundle.storage_down = False
        assert bundle.W(event_body(job)).outcome == "applied"


def test_p38_reread_mode_trusts_nothing(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    """The sibling: without verification an event is a hint, and only the API is believed."""
    (_, one), (_, two) = bundle.accepted(2)
    bundle.set(WEBHOOK_VERIFICATION="reread", SUME_WEBHOOK_SECRETS=None)
    fake.set_status(two, "completed")
    for job in (one, two):
        answer = bundle.W(event_body(job, "failed"), headers={"X-Sume-Signature": None})
        assert answer.status < 500
    assert database.job(one)["status"] == database.job(two)["status"] == "queued"
    assert not [event for event in database.events() if event["job_id"]]
    bundle.P()  # at once: the hint brought the next read forward
    assert database.job(one)["status"] == "queued"
    assert database.job(two)["status"] == "completed"


@pytest.mark.parametrize("mode", ["none", "off", "", "Signature "])
def test_p38_an_unknown_mode_of_verification_verifies_nothing(
    bundle: Bundle, database: Database, mode: str
) -> None:
    """The sibling: a typing error in the setting must not open the door."""
    _, job = bundle.job()
    bundle.set(WEBHOOK_VERIFICATION=mode)
    event = webhook_event(event_body(job), secret="wrong")
    reply = bundle.start("webhook", event=event).wait()
    assert "error" in reply or reply["result"]["statusCode"] >= 400
    assert database.job(job)["status"] == "queued"
    assert not database.events()
    bundle.set(WEBHOOK_VERIFICATION=None)


# ------------------------------------------------------------------------------------------- P40


@pytest.mark.parametrize(
    "configured", ["new,old", " new , old ", '["new", "old"]', '{"a": "new", "b": "old"}']
)
def test_p40_two_secrets(bundle: Bundle, database: Database, configured: str) -> None:
    jobs = [job for _, job in bundle.accepted(6)]
    bundle.set(SUME_WEBHOOK_SECRETS=configured)
    assert bundle.W(event_body(jobs[0]), secret="old").outcome == "applied"
    assert bundle.W(event_body(jobs[1]), secret="new").outcome == "applied"
    assert bundle.W(event_body(jobs[2]), secret="third").status == 401
    now = str(int(time.time()))

    def headers(job: str, form: str) -> dict[str, str | None]:
        body = event_body(job)
        old, new = signature(body, now, "old"), signature(body, now, "new")
        return {"X-Sume-Signature": form.format(old=old, new=new, bad="0" * 64)}

    forms = ["v1={old}", "v1={bad},v1={new}", "v0={bad}, v1={new}", "v1={new},v1={bad}"]
    for job, form in zip(jobs[2:], forms, strict=True):
        answer = bundle.W(event_body(job), timestamp=now, headers=headers(job, form))
        assert answer.outcome == "applied", form
    refused = ["v2={new}", "v1={bad}", "{new}", "v10={new}", "V1 {new}"]
    for form in refused:
        answer = bundle.W(
            event_body(jobs[0], event_id="evt_x"), timestamp=now, headers=headers(jobs[0], form)
        )
        assert answer.status == 401, form


def test_p40_a_secret_removed_while_the_container_is_warm(
    bundle: Bundle, database: Database
) -> None:
    jobs = [job for _, job in bundle.accepted(4)]
    with SecretsManager() as store:
        store.secrets["webhook"] = '["new", "old"]'
        bundle.set(
            SUME_WEBHOOK_SECRETS=None,
            SUME_WEBHOOK_SECRETS_ARN=store.arn("webhook"),
            AWS_ENDPOINT_URL=store.url,
        )
        assert bundle.W(event_body(jobs[0]), secret="old").outcome == "applied"
        store.secrets["webhook"] = '["new"]'
        reads = store.reads["webhook"]
        # Past the time that a secret may be kept, which is an hour at the very most.
        bundle.warm("webhook").shift_clock(3700)
        later = int(time.time()) + 3700
        assert bundle.W(event_body(jobs[1]), secret="old", timestamp=later).status == 401
        assert bundle.W(event_body(jobs[2]), secret="new", timestamp=later).outcome == "applied"
        assert store.reads["webhook"] > reads


def test_p40_a_secret_added_while_the_container_is_warm(bundle: Bundle, database: Database) -> None:
    """The sibling: the rotation's other half. Strangers cannot make it read the store each time."""
    jobs = [job for _, job in bundle.accepted(2)]
    with SecretsManager() as store:
        store.secrets["webhook"] = "old"
        bundle.set(
            SUME_WEBHOOK_SECRETS=None,
            SUME_WEBHOOK_SECRETS_ARN=store.arn("webhook"),
            AWS_ENDPOINT_URL=store.url,
        )
        assert bundle.W(event_body(jobs[0]), secret="old").outcome == "applied"
        store.secrets["webhook"] = "new,old"
        assert bundle.W(event_body(jobs[1]), secret="new").outcome == "applied"
        reads = store.reads["webhook"]
        for number in range(30):
            assert bundle.W(event_body(f"job_{number}"), secret="stranger").status == 401
        assert store.reads["webhook"] - reads < 10


# ------------------------------------------------------------------------------------------- P41


def test_p41_the_window_is_the_tolerance_both_ways(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    accepted = [-300, -299, 0, 60, 299, 300]
    refused = [-301, -3600, 301, 3600]
    jobs = [job for _, job in bundle.accepted(len(accepted) + len(refused))]
    container = bundle.another()
    now = int(time.time())
    container.freeze_clock(float(now))
    for job, shift in zip(jobs, accepted, strict=False):
        answer = bundle.W(event_body(job), timestamp=now + shift, container=container)
        assert answer.outcome == "applied", shift
    late = jobs[len(accepted) :]
    for job, shift in zip(late, refused, strict=True):
        answer = bundle.W(event_body(job), timestamp=now + shift, container=container)
        assert answer.status == 401, shift
        assert database.job(job)["status"] == "queued"
    # The same bytes an hour later.
    container.freeze_clock(float(now + 3600))
    assert bundle.W(event_body(late[0]), timestamp=now - 301, container=container).status == 401
    # Nothing depends on a refused delivery.
    for job in jobs:
        fake.set_status(job, "completed")
    bundle.poll_now()
    assert {database.job(job)["status"] for job in jobs} == {"completed"}


def test_p41_the_tolerance_is_a_setting(bundle: Bundle, database: Database) -> None:
    (_, one), (_, two) = bundle.accepted(2)
    bundle.set(WEBHOOK_TOLERANCE_SECONDS=30)
    container = bundle.another()
    now = int(time.time())
    container.freeze_clock(float(now))
    assert bundle.W(event_body(one), timestamp=now - 31, container=container).status == 401
    assert bundle.W(event_body(two), timestamp=now - 30, container=container).outcome == "applied"


# ------------------------------------------------------------------------------------------- P11

NASTY_EVENTS = {
    "nul": '{"id":"evt_1","type":"job.failed","data":{"object":{"id":"JOB","status":"failed",'
    '"metadata":{"k\\u0000ey":1},"error":{"code":"x\\u0000y","message":"bad\\u0000prompt"}}}}',
    "lone surrogate": '{"id":"evt_1","data":{"object":{"id":"JOB","status":"failed",'
    '"metadata":{"k\\udc00":1},"error":{"code":"x\\ud800y","message":"bad\\ud800prompt"}}}}',
    "not a number": '{"id":"evt_1","data":{"object":{"id":"JOB","status":"failed",'
    '"error":{"code":"xy","message":"badprompt","details":{"a":NaN,"b":Infinity}}}}}',
    "huge numbers": '{"id":"evt_1","data":{"object":{"id":"JOB","status":"failed",'
    '"error":{"code":"xy","message":"badprompt","details":{"a":1e999999,"b":'
    + "9" * 6000
    + "}}}}}",
    "tiny numbers": '{"id":"evt_1","data":{"object":{"id":"JOB","status":"failed",'
    '"error":{"code":"xy","message":"badprompt","details":{"a":1e-999999,"b":-1e-40000}}}}}',
    "nul in the event id": '{"id":"evt\\u0000_1","data":{"object":{"id":"JOB","status":"failed",'
    '"error":{"code":"xy","message":"badprompt"}}}}',
    "long texts": '{"id":"evt_1","data":{"object":{"id":"JOB","status":"failed",'
    '"error":{"code":"x' + "a" * 5000 + 'y","message":"bad' + "b" * 100_000 + 'prompt"}}}}',
}


def test_p11_text_postgres_refuses_in_an_event(bundle: Bundle, database: Database) -> None:
    for (kind, text), (_, job) in zip(
        NASTY_EVENTS.items(), bundle.accepted(len(NASTY_EVENTS)), strict=True
    ):
        body = text.replace("JOB", job).replace("evt", f"evt_{job}").encode()
        assert b"\0" not in body
        answer = bundle.W(body)
        assert (answer.status, answer.outcome) == (200, "applied"), (kind, answer)
        after = database.job(job)
        assert after["status"] == "failed", kind
        assert after["error_code"].startswith("x"), kind
        if kind != "long texts":
            assert after["error_code"].endswith("y"), kind
            assert "bad" in json.dumps(after["error"]), kind
            assert "prompt" in json.dumps(after["error"]), kind
        assert len(database.follow_ups(job)) == 1
        assert bundle.W(body).outcome == "duplicate", kind


def test_p11_text_postgres_refuses_in_a_read(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    pairs = bundle.accepted(len(NASTY_EVENTS))
    for (_, job), text in zip(pairs, NASTY_EVENTS.values(), strict=True):
        record = text.replace("JOB", job)
        start = record.index('{"id":"' + job)
        body = ('{"data":{"job":' + record[start:-2] + "}}").encode()
        fake.always_on_read(Behaviour(status=200, body=body), job_id=job)
    bundle.poll_now()
    for (_, job), kind in zip(pairs, NASTY_EVENTS, strict=True):
        after = database.job(job)
        assert after["status"] == "failed", kind
        assert after["error_code"].startswith("x"), kind
        assert len(database.follow_ups(job)) == 1


def test_p11_text_postgres_refuses_in_a_result(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, job = bundle.job()
    fake.set_status(job, "completed")
    body = (
        '{"data":{"result":{"artifacts":[{"url":"https://media.example/a.png","no\\u0000te":"a\\u0000b",'
        '"s":"\\ud800","n":NaN,"big":1e999999}]}}}'
    )
    fake.on_result(Behaviour(status=200, body=body.encode()))
    for _ in range(2):
        bundle.poll_now()
    assert "https://media.example/a.png" in json.dumps(database.job(job)["result"])


def test_p11_the_event_id_header_is_kept_but_harmless(bundle: Bundle, database: Database) -> None:
    headers = ["evt\0", "evt_é", "e" * 5000, ""]
    for header, (_, job) in zip(headers, bundle.accepted(len(headers)), strict=True):
        assert bundle.W(event_body(job), event_id=header).outcome == "applied", header


# ------------------------------------------------------------------------------------------- P67

STEPS = ("W completed", "P processing", "P queued", "W completed again")


def test_p67_every_order_ends_completed_once(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    orders = list(itertools.permutations(STEPS))
    pairs = bundle.accepted(len(orders))
    for order, (_, job) in zip(orders, pairs, strict=True):
        done = False
        for step in order:
            if step.startswith("W"):
                answer = bundle.W(event_body(job, "completed", f"evt_{job}"))
                assert answer.status == 200
                assert answer.outcome == ("duplicate" if done else "applied")
                done = True
            else:
                status = step.split()[1]
                fake.on_read(Behaviour(job_status=status), job_id=job)
                # Only this job is due.
                database.execute(
                    "update gen_job set next_poll_at ="
                    " case when job_id = %s then now() - interval '1 second'"
                    " else now() + interval '1 day' end",
                    job,
                )
                before = database.job(job)
                bundle.P()
                after = database.job(job)
                if done:
                    assert after["status"] == "completed"
                    assert after["updated_at"] == before["updated_at"] or after["result"]
        assert database.job(job)["status"] == "completed", order
        assert len(database.follow_ups(job)) == 1


@pytest.mark.parametrize("how", ["W", "P"])
def test_p67_the_first_end_wins(
    bundle: Bundle, database: Database, fake: FakeSume, how: str
) -> None:
    ends = ["failed", "canceled", "completed"]
    cases = list(itertools.product(ends, [*ends, "processing", "queued"]))
    pairs = bundle.accepted(len(cases))
    for (first, second), (_, job) in zip(cases, pairs, strict=True):
        if how == "W":
            assert bundle.W(event_body(job, first, f"{job}_1")).outcome == "applied"
            fake.set_status(job, second)
        else:
            fake.set_status(job, first)
    bundle.poll_now()
    for (first, second), (_, job) in zip(cases, pairs, strict=True):
        answer = bundle.W(event_body(job, second, f"{job}_2"))
        assert answer.status == 200
        assert answer.outcome in ("noop", "ignored"), (first, second)
        assert database.job(job)["status"] == first
        (follow_up,) = database.follow_ups(job)
        assert follow_up["kind"] == f"job.{first}"
        if second in ends and second != first:
            mentions = [line for line in bundle.logs() if job in json.dumps(line)]
            assert mentions, "the contradiction is logged"


def test_p67_the_unsigned_event_id_is_not_trusted(bundle: Bundle, database: Database) -> None:
    """A replay with another header is a duplicate; two bodies with one header are two events."""
    (_, one), (_, two) = bundle.accepted(2)
    body = event_body(one, event_id="evt_1")
    assert bundle.W(body, event_id="evt_a").outcome == "applied"
    assert bundle.W(body, event_id="evt_b").outcome == "duplicate"
    assert bundle.W(event_body(two, event_id="evt_2"), event_id="evt_a").outcome == "applied"
    assert len(database.events()) == 2


def test_p67_bodies_without_an_id_of_their_own(bundle: Bundle, database: Database) -> None:
    (_, one), (_, two) = bundle.accepted(2)
    for job in (one, two):
        body = event_body(job, "completed")
        assert bundle.W(body).outcome == "applied"
        assert bundle.W(body).outcome == "duplicate"
    # An id that is the job's own says nothing about the event.
    third = bundle.job()[1]
    body = json.dumps({"id": third, "job_id": third, "status": "processing"}).encode()
    end = json.dumps({"id": third, "job_id": third, "status": "completed"}).encode()
    assert bundle.W(body).outcome == "applied"
    assert bundle.W(end).outcome == "applied"
    assert database.job(third)["status"] == "completed"


@pytest.mark.parametrize("slow_one", ["W", "P"])
def test_p67_webhook_and_poll_at_the_same_moment(
    bundle: Bundle, database: Database, fake: FakeSume, slow_one: str
) -> None:
    """The sibling: both have something to say, and one waits for the other's commit."""
    _, job = bundle.job()
    fake.set_status(job, "failed", {"code": "c"})
    bundle.W(event_body("job_warm_up"))
    database.age("1 hour")
    database.sleep_at_commit("gen_job", "update", 0.6, "new.status in ('completed', 'failed')")
    if slow_one == "W":
        call = bundle.start_W(event_body(job, "completed"))
        database.wait_for_sleeper()
        bundle.P()
        first = "completed"
        assert call.result().outcome == "applied"
    else:
        running = bundle.start("poll")
        database.wait_for_sleeper()
        answer = bundle.W(event_body(job, "completed"))
        running.result()
        first = "failed"
        assert answer.outcome == "noop"
    assert database.job(job)["status"] == first
    assert [f["kind"] for f in database.follow_ups(job)] == [f"job.{first}"]


# ------------------------------------------------------------------------------------------- P68


def test_p68_events_of_others(bundle: Bundle, database: Database) -> None:
    _, job = bundle.job()
    for number in range(50):
        answer = bundle.W(event_body(f"job_foreign_{number}", "completed"))
        assert (answer.status, answer.outcome) == (200, "held")
    assert bundle.W(event_body(job)).outcome == "applied"
    assert len(database.jobs()) == 1
    assert len(database.events()) == 51
    database.age("6 days")
    bundle.R()
    assert len([e for e in database.events() if "foreign" in str(e["job_id"])]) == 50
    database.age("1 day 1 hour")
    bundle.R()
    assert not [e for e in database.events() if "foreign" in str(e["job_id"])]
    assert len(database.jobs()) == 1


def test_p68_events_that_name_nothing_do_not_pile_up(bundle: Bundle, database: Database) -> None:
    for number in range(10):
        assert bundle.W(json.dumps({"number": number})).outcome == "ignored"
    assert len(database.events()) == 10, "ignored events are stored too"
    database.age("40 days")
    bundle.R()
    assert not database.events()


# ------------------------------------------------------------------------------------------- P69


def test_p69_a_locked_row_holds_up_nobody_else(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    (_, one), (_, two) = bundle.accepted(2)
    spare = bundle.another()
    bundle.W(event_body("job_warm_up"), container=spare)
    fake.always_on_read(Behaviour(delay=30.0))
    fake.always_on_result(Behaviour(delay=30.0))
    before = len(fake.requests)
    bundle.storage_down = True
    with database.session() as other:
        other.execute("select 1 from gen_job where job_id = %s for update", (one,))
        slow = bundle.start_W(event_body(one))
        quick = bundle.W(event_body(two), container=spare)
        answer = slow.result()
        other.rollback()
    bundle.storage_down = False
    assert (quick.status, quick.outcome) == (200, "applied")
    assert quick.seconds < 2.0 * slack()
    assert answer.status in (200, 503)
    assert answer.seconds < 5.0 * slack()
    assert len(fake.requests) == before, "no HTTP goes out of the webhook handler"
    assert bundle.W(event_body(one)).outcome in ("applied", "duplicate")
    bundle.poll_now(container=bundle.another()) if answer.status == 200 else None
    fake.behave()
    assert database.job(one)["status"] == "completed"


def test_p69_a_locked_table_is_answered_in_time(bundle: Bundle, database: Database) -> None:
    """The sibling: somebody else's migration holds the whole table."""
    _, job = bundle.job()
    bundle.storage_down = True
    with database.session() as other:
        other.execute("lock table webhook_event in access exclusive mode")
        answer = bundle.W(event_body(job))
        other.rollback()
    bundle.storage_down = False
    assert answer.status == 503
    assert answer.seconds < 5.0 * slack()
    assert bundle.W(event_body(job)).outcome == "applied"


def test_p69_a_locked_job_holds_up_no_sweep(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling for poll and reap: one locked row, and the others go on."""
    pairs = bundle.accepted(4)
    for _, job in pairs:
        fake.set_status(job, "completed")
    locked = pairs[0][1]
    database.age("1 hour")
    with database.session() as other:
        other.execute("select 1 from gen_job where job_id = %s for update", (locked,))
        other.execute("select 1 from render_jobs where id = %s for update", (pairs[0][0],))
        running = bundle.start("poll", remaining=60.0)
        running.result()
        bundle.R()
        assert [database.job(job)["status"] for _, job in pairs[1:]] == ["completed"] * 3
        other.rollback()
    assert running.seconds is not None
    assert running.seconds < 15.0 * slack()
    bundle.poll_now()
    assert database.job(locked)["status"] == "completed"


def test_p69_a_row_locked_while_its_outcome_is_stored(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """The sibling for submit: one row's record waits too long; nothing is lost, it ends in time."""
    bundle.set(SUME_TIMEOUT_SECONDS=1)
    rows = database.insert_many(5)
    with database.session(user=None) as other:

        def lock(_: Any) -> None:
            other.execute("select 1 from render_jobs where id = %s for update", (rows[2],))

        fake.on_submit(Behaviour(call=lock), key=key_of(rows[2]))
        running = bundle.start("submit", remaining=12.0)
        reply = running.wait()
        other.rollback()
    # Whether it says so by an error or by counts: it must not live on into the kill.
    assert not reply.get("died")
    assert running.seconds is not None
    assert running.seconds < 12.0
    for row in rows[:2] + rows[3:]:
        assert database.row(row)["status"] == "submitted"
    database.age("11 minutes")
    bundle.R()
    bundle.submit_later("1 minute")
    assert database.statuses() == {"submitted": 5}
    assert fake.billed == 5


# ------------------------------------------------------------------------------------------- P70

LIMIT = 256 * 1024


def padded(job: str, size: int) -> bytes:
    bare = event_body(job, note="")
    return event_body(job, note="p" * (size - len(bare)))


@pytest.mark.parametrize("encoded", [True, False])
def test_p70_over_the_limit_is_413_signed_or_not(
    bundle: Bundle, database: Database, encoded: bool
) -> None:
    _, job = bundle.job()
    bundle.set(DATABASE_URL=NOWHERE)
    huge = padded(job, 6 * 1024 * 1024 - 200_000 if not encoded else 4_400_000)
    assert bundle.W(huge, encoded=encoded, headers={"X-Sume-Signature": None}).status == 413
    assert bundle.W(padded(job, 2 * 1024 * 1024), encoded=encoded).status == 413
    assert bundle.W(padded(job, LIMIT + 1), encoded=encoded).status == 413
    assert "pppppppppp" not in bundle.output()


@pytest.mark.parametrize("encoded", [True, False])
def test_p70_at_the_limit_it_is_applied(bundle: Bundle, database: Database, encoded: bool) -> None:
    (_, one), (_, two) = bundle.accepted(2)
    body = padded(one, LIMIT)
    assert len(body) == LIMIT
    assert bundle.W(body, encoded=encoded).outcome == "applied"
    body = padded(two, 200_000)
    assert bundle.W(body, encoded=encoded).outcome == "applied"
    assert "pppppppppp" not in bundle.output()


def test_p70_bytes_are_counted_not_characters(bundle: Bundle, database: Database) -> None:
    _, job = bundle.job()
    body = json.dumps(
        {"data": {"object": {"id": job, "status": "completed"}}, "n": "é" * 140_000},
        ensure_ascii=False,
    ).encode()
    assert len(body) > LIMIT
    assert bundle.W(body).status == 413


# ------------------------------------------------------------------------------------------- P71

BIG = "9007199254740993"
SEED = "1285704473650888702"
DECIMAL = "0.1000000000000000055511151231257827"


def test_p71_numbers_in_an_event_keep_their_digits(bundle: Bundle, database: Database) -> None:
    _, job = bundle.job()
    body = (
        f'{{"id":"evt_1","data":{{"object":{{"id":"{job}","status":"failed",'
        f'"usage":{{"billable_amount_usd_micros":{BIG}}},'
        f'"error":{{"code":"c","details":{{"amount":{BIG},"seed":{SEED},"price":{DECIMAL}}}}}}}}}}}'
    )
    assert bundle.W(body).outcome == "applied"
    text = database.one("select error::text from gen_job where job_id = %s", job)
    for digits in (BIG, SEED, DECIMAL):
        assert digits in text


def test_p71_numbers_in_a_read_and_a_result_keep_their_digits(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    (_, one), (_, two) = bundle.accepted(2)
    body = (
        f'{{"data":{{"job":{{"id":"{one}","status":"failed",'
        f'"error":{{"code":"c","details":{{"a":{BIG},"s":{SEED},"p":{DECIMAL}}}}}}}}}}}'
    )
    fake.always_on_read(Behaviour(status=200, body=body.encode()), job_id=one)
    fake.set_status(two, "completed")
    result = (
        f'{{"data":{{"result":{{"artifacts":[{{"url":"https://media.example/a.png","a":{BIG},'
        f'"s":{SEED},"p":{DECIMAL}}}]}}}}}}'
    )
    fake.always_on_result(Behaviour(status=200, body=result.encode()), job_id=two)
    for _ in range(2):
        bundle.poll_now()
    stored = database.one("select error::text from gen_job where job_id = %s", one)
    kept = database.one("select result::text from gen_job where job_id = %s", two)
    for digits in (BIG, SEED, DECIMAL):
        assert digits in stored
        assert digits in kept


# ------------------------------------------------------------------------------------------- P77


def test_p77_the_redelivery_after_a_kill_is_applied_at_once(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """No record of the attempt outlives it: the guarded update and the inbox key do the work."""
    _, job = bundle.job()
    body = event_body(job, event_id="evt_1")
    database.sleep_at_commit("gen_job", "update", 5.0)
    call = bundle.start_W(body)
    pid = database.wait_for_sleeper()
    call.container.kill()
    database.query("select pg_terminate_backend(%s)", pid)
    database.stop_sleeping("gen_job", "update")
    assert bundle.W(body).outcome == "applied"
