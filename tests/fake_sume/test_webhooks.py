"""Signed deliveries, their retries, and what can go wrong with them."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from local.fake_sume import Behaviour, WebhookBehaviour

SECRET = b"whsec_test"


def signature_is_right(event, secret=SECRET):
    signed = event.headers["x-sume-timestamp"].encode() + b"." + event.body
    expected = "v1=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()
    return event.headers["x-sume-signature"] == expected


@pytest.fixture
def ended(fake, client, receiver, eventually):
    """Submits with a webhook, ends the job, and waits until its delivery is over."""

    def end(key="key-1", status="completed", *, webhook=None, wait=True, **options):
        if webhook is not None:
            fake.on_webhook(webhook, key=key)
        client.submit(key, mode="webhook", webhook_url=receiver.url)
        job = fake.job_for(key)
        assert job.webhook_status == "pending"
        fake.set_status(job.id, status, **options)
        if wait:
            eventually(lambda: job.webhook_status in {"delivered", "exhausted"})
        return job

    return end


@pytest.mark.parametrize("status", ["completed", "failed", "canceled"])
def test_terminal_event(fake, ended, receiver, client, status):
    error = {"code": "boom"} if status == "failed" else None

    job = ended(status=status, error=error)

    (event,) = receiver.events
    assert signature_is_right(event)
    assert abs(int(event.headers["x-sume-timestamp"]) - time.time()) < 5
    assert event.headers["content-type"] == "application/json"
    value = json.loads(event.body)
    assert value["id"] == event.headers["x-sume-event-id"]
    assert value["id"].startswith("evt_")
    assert value["type"] == f"job.{status}"
    assert value["data"]["object"]["id"] == job.id
    assert value["data"]["object"]["status"] == status
    assert value["data"]["object"]["error"] == error
    record = client.get(f"/v1/jobs/{job.id}").json()["data"]["job"]
    assert record["webhook_status"] == "delivered"
    (delivery,) = fake.deliveries
    assert (delivery.status, delivery.attempt, delivery.job_id) == (200, 1, job.id)


def test_no_event_before_the_end_nor_without_a_url(fake, client, receiver):
    client.submit("a", webhook_url=receiver.url)
    client.submit("b")
    fake.set_status(fake.job_for("a").id, "processing")
    fake.set_status(fake.job_for("b").id, "completed")
    fake.set_status(fake.job_for("a").id, "completed", webhook=False)
    time.sleep(0.05)
    assert receiver.events == []
    assert fake.job_for("b").webhook_status is None


def test_retries_then_delivered(fake, ended, receiver):
    receiver.answers = [500, 503]
    job = ended()
    assert [json.loads(event.body)["id"] for event in receiver.events] == [
        json.loads(receiver.events[0].body)["id"]
    ] * 3
    assert len({event.body for event in receiver.events}) == 1
    assert all(signature_is_right(event) for event in receiver.events)
    assert job.webhook_status == "delivered"
    assert job.webhook_attempts == 3
    gaps = [b.at - a.at for a, b in zip(fake.deliveries, fake.deliveries[1:], strict=False)]
    assert gaps[0] > 0.009
    assert gaps[1] > 0.019, "each wait is twice as long as the one before"


def test_retries_used_up(fake, client, ended, receiver):
    receiver.answers = [401] * 10
    job = ended()
    assert len(receiver.events) == 4
    assert (job.webhook_status, job.status) == ("exhausted", "completed")
    events = client.get(f"/v1/jobs/{job.id}/events").json()["data"]["events"]
    assert [item["summary"] for item in events if item["type"] == "webhook.delivery"] == [
        "Webhook retrying.",
        "Webhook retrying.",
        "Webhook retrying.",
        "Webhook exhausted.",
    ]


def test_no_receiver(make_fake, make_client, eventually):
    fake = make_fake(webhook_retries=1)
    make_client(fake.url).submit(webhook_url="http://127.0.0.1:9/nobody")
    job = fake.job_for("key-1")
    eventually(lambda: job.webhook_status == "exhausted")
    assert [delivery.status for delivery in fake.deliveries] == [None, None]
    assert fake.stats()["webhooks"]["answers"] == {"no answer": 2}


def test_lost(ended, receiver):
    assert ended(webhook=WebhookBehaviour(lost=True)).webhook_status == "exhausted"
    assert receiver.events == []


def test_duplicate(ended, receiver):
    ended(webhook=WebhookBehaviour(duplicate=2))
    assert len(receiver.events) == 3
    assert len({event.headers["x-sume-event-id"] for event in receiver.events}) == 1


def test_new_event_ids(ended, receiver):
    receiver.answers = [500, 500]
    ended(webhook=WebhookBehaviour(duplicate=1, new_event_id=True))
    assert len(receiver.events) == 3
    assert len({json.loads(event.body)["id"] for event in receiver.events}) == 3
    assert all(signature_is_right(event) for event in receiver.events)


def test_bad_signature(ended, receiver):
    ended(webhook=WebhookBehaviour(bad_signature=True))
    assert not signature_is_right(receiver.events[0])
    assert receiver.events[0].headers["x-sume-signature"].startswith("v1=")


def test_old_timestamp(ended, receiver):
    ended(webhook=WebhookBehaviour(old_by=3600))
    assert signature_is_right(receiver.events[0])
    assert abs(int(receiver.events[0].headers["x-sume-timestamp"]) + 3600 - time.time()) < 5


def test_byte_identical_redelivery(ended, receiver):
    receiver.answers = [500]
    ended(webhook=WebhookBehaviour(same_timestamp=True))
    first, second = receiver.events
    assert (first.headers["x-sume-signature"], first.body) == (
        second.headers["x-sume-signature"],
        second.body,
    )


def test_reordered(fake, ended, receiver, eventually):
    first = ended("a", webhook=WebhookBehaviour(reorder=True), wait=False)
    second = ended("b")
    eventually(lambda: first.webhook_status == "delivered")
    ids = [json.loads(event.body)["data"]["object"]["id"] for event in receiver.events]
    assert ids == [second.id, first.id]


def test_delayed(ended, receiver):
    before = time.monotonic()
    ended(webhook=WebhookBehaviour(delay=0.1))
    assert time.monotonic() - before >= 0.1


@pytest.mark.parametrize("by", ["submit", "webhook"])
def test_early_event_comes_before_the_answer(fake, client, receiver, by):
    early = WebhookBehaviour(early=True)
    if by == "submit":
        fake.on_submit(Behaviour(webhook=early))
    else:
        fake.on_webhook(early, key="key-1")
    answer = client.submit(mode="webhook", webhook_url=receiver.url)
    assert len(receiver.events) == 1
    assert fake.job_for("key-1").webhook_status == "delivered"
    assert answer.status_code == 202
    assert answer.json()["data"]["job"]["status"] == "queued"


def test_behaviour_for_a_job_that_is_there(fake, client, receiver, eventually):
    client.submit(webhook_url=receiver.url)
    job = fake.job_for("key-1")
    fake.on_webhook(WebhookBehaviour(lost=True), job_id=job.id)
    fake.set_status(job.id, "completed")
    eventually(lambda: job.webhook_status == "exhausted")
    assert receiver.events == []


def test_sign_and_body_by_hand(fake, client):
    client.submit()
    job = fake.job_for("key-1")

    body = fake.webhook_body(job.id, "failed", "evt_mine", error={"code": "boom"})
    headers = fake.sign(body, 1_700_000_000)

    value = json.loads(body)
    assert value["id"] == headers["x-sume-event-id"] == "evt_mine"
    assert value["type"] == "job.failed"
    assert value["data"]["object"]["id"] == job.id
    assert value["data"]["object"]["error"] == {"code": "boom"}
    assert headers["x-sume-timestamp"] == "1700000000"
    expected = hmac.new(SECRET, b"1700000000." + body, hashlib.sha256).hexdigest()
    assert headers["x-sume-signature"] == f"v1={expected}"
    other = fake.sign(body, 1_700_000_000, secret="other")
    assert other["x-sume-signature"] != headers["x-sume-signature"]
    assert set(fake.sign(b"no json")) == {"x-sume-timestamp", "x-sume-signature"}
    assert fake.sign(b"{}", "abc", "")["x-sume-timestamp"] == "abc"
    stranger = json.loads(fake.webhook_body("job_unknown"))
    assert stranger["data"]["object"]["id"] == "job_unknown"
    assert stranger["type"] == "job.completed"
    assert fake.webhook_body(job.id, "failed") != fake.webhook_body(job.id, "completed")


def test_signature_known_answer(fake):
    # Made with: printf '1700000000.{"id": "evt_1"}' | openssl dgst -sha256 -hmac whsec_test
    headers = fake.sign(b'{"id": "evt_1"}', 1_700_000_000)
    assert headers == {
        "x-sume-timestamp": "1700000000",
        "x-sume-signature": "v1=a0c091828640f0b68061abc7c03981ad1100ff7160c5dba6b656239494a2b537",
        "x-sume-event-id": "evt_1",
    }


def test_deliver_now(fake, client, receiver):
    client.submit(webhook_url=receiver.url)
    job = fake.job_for("key-1")
    receiver.answers = [202]

    assert fake.deliver(job.id, status="completed") == 202
    assert fake.deliver("job_unknown", receiver.url, secret="wrong") == 200
    assert fake.deliver(job.id, "http://127.0.0.1:9/nobody") is None
    assert fake.deliver(job.id, body=b"raw", headers={"x-sume-signature": "v1=no"}) == 200

    assert signature_is_right(receiver.events[0])
    assert signature_is_right(receiver.events[1], b"wrong")
    assert receiver.events[2].body == b"raw"
    assert receiver.events[2].headers["x-sume-signature"] == "v1=no"
    assert job.status == "queued", "a delivery changes nothing"
    with pytest.raises(ValueError, match="no webhook URL"):
        fake.deliver("job_unknown")


def test_deliver_from_the_call_of_a_behaviour(fake, client, receiver):
    fake.on_submit(Behaviour(call=lambda job: fake.deliver(job.id, status="completed")))
    client.submit(webhook_url=receiver.url)
    assert len(receiver.events) == 1


def test_many_at_once(make_fake, make_client, receiver, eventually):
    fake = make_fake()
    with ThreadPoolExecutor(4) as pool:
        client = make_client(fake.url)
        submits = [
            pool.submit(client.submit, f"k{n}", mode="webhook", webhook_url=receiver.url)
            for n in range(60)
        ]
        assert {item.result().status_code for item in submits} == {202}
    eventually(lambda: len(receiver.events) == 60)
    eventually(lambda: fake.stats()["webhooks"]["under_way"] == 0)
    stats = fake.stats()["webhooks"]
    assert stats["deliveries"] == 60
    assert stats["answers"] == {"200": 60}
    assert stats["outcomes"] == {"applied": 60}
    assert stats["jobs_by_delivery_state"] == {"delivered": 60}
