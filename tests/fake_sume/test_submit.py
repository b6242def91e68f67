"""Submits: acceptance, idempotency, and everything that refuses one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from local.fake_sume import Behaviour


def test_acceptance(fake, client):
    answer = client.submit("render-job-1", params={"seed": 7})

    assert answer.status_code == 202
    data = answer.json()["data"]
    job = fake.job_for("render-job-1")
    assert data["request_id"] == data["job"]["id"] == job.id
    assert job.id.startswith("job_")
    assert data["job"] == {
        "id": job.id,
        "type": "image_generation",
        "status": "queued",
        "model": "sume/auto",
        "communication_mode": "async",
    }
    assert data["status_url"] == f"{fake.url}/v1/jobs/{job.id}/status"
    assert data["result_url"] == f"{fake.url}/v1/jobs/{job.id}/result"
    assert data["idempotency_hit"] is False
    assert data["sync"] is None
    assert isinstance(data["generation_limits"]["queue_capacity_remaining"], int)
    assert answer.headers["x-sume-request-id"].startswith("req_")

    (received,) = fake.requests
    assert (received.method, received.path, received.status) == ("POST", "/v1/images", 202)
    assert received.key == "render-job-1"
    assert received.job_id == job.id
    assert received.body == job.body
    assert received.headers["authorization"] == "Bearer t"


def test_same_key_and_body_is_the_same_job(fake, client):
    first = client.submit().json()["data"]
    fake.set_status(first["job"]["id"], "completed")

    second = client.submit()

    assert second.status_code == 202
    data = second.json()["data"]
    assert data["idempotency_hit"] is True
    assert data["job"]["id"] == first["job"]["id"]
    assert data["job"]["status"] == "completed"
    assert fake.billed == 1
    assert fake.billed_by_key == {"key-1": 1}
    assert len(fake.posts("key-1")) == 2


def test_same_key_and_other_body_is_a_conflict(fake, client):
    client.submit()

    answer = client.submit(prompt="another prompt")

    assert answer.status_code == 409
    error = answer.json()["error"]
    assert error["code"] == "idempotency_conflict"
    assert error["retryable"] is False
    assert fake.billed == 1


def test_request_id_of_an_error_is_in_all_three_places(client):
    answer = client.submit(prompt="")

    value = answer.json()
    assert value["request_id"].startswith("req_")
    assert value["error"]["request_id"] == value["request_id"]
    assert answer.headers["x-sume-request-id"] == value["request_id"]


def test_no_key_makes_a_job_each_time(fake, client):
    assert client.submit(None).status_code == client.submit(None).status_code == 202
    assert fake.billed == 2


def test_forgotten_key_makes_a_second_job(fake, client):
    client.submit()
    fake.forget_key("key-1")

    assert client.submit().json()["data"]["idempotency_hit"] is False
    assert fake.billed_by_key == {"key-1": 2}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"model": 7}, "model"),
        ({"mode": "later"}, "mode"),
        ({"mode": ["async"]}, "mode"),
        ({"mode": "webhook"}, "webhook_url"),
        ({"webhook_url": "ftp://example.org"}, "webhook_url"),
        ({"wait_timeout_seconds": 31}, "wait_timeout_seconds"),
    ],
)
def test_faults_in_the_body_are_named(fake, client, body, path):
    answer = client.submit(**body)

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid_request"
    assert path in [item["path"] for item in error["details"]["errors"]]
    assert fake.billed == 0
    assert client.submit().status_code == 202, "a refusal does not use the key up"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"[" * 100_000])
def test_body_that_is_no_object(client, body):
    headers = {"Idempotency-Key": "key-1"}
    answer = client.post("/v1/images", data=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"


def test_key_that_is_too_long(client):
    assert client.submit("k" * 256).status_code == 400
    assert client.submit("k" * 255).status_code == 202


def test_body_that_is_too_large(fake, client):
    assert client.submit(prompt="x" * 2_000_000).status_code == 413
    assert fake.billed == 0


@pytest.mark.parametrize(
    "path",
    ["/v1/images", "/v1/image-router/generate", "/v1/models/sume/avatar/v1.0/runs", "/mine"],
)
def test_paths_that_take_submits(make_fake, make_client, path):
    fake = make_fake(submit_path="/mine")
    assert make_client(fake.url).submit(path=path).status_code == 202
    assert [item.path for item in fake.posts()] == [path]


def test_other_paths_and_methods(client):
    assert client.submit(path="/v1/image").status_code == 404
    assert client.get("/v1/images").status_code == 404
    assert client.post("/v1/jobs/job_1").status_code == 405
    assert client.get("/v1/jobs/job_1/cancel").status_code == 405


def test_api_keys(make_fake, make_client):
    fake = make_fake(api_keys={"right"})
    client = make_client(fake.url)

    refused = client.submit(token="wrong")
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "unauthorized"
    assert client.get("/v1/jobs/job_1").status_code == 401
    assert client.submit(token="right").status_code == 202
    assert client.get("/v1/me", headers={"x-api-key": "right"}).status_code == 200
    assert client.get("/health").status_code == 200
    assert client.get("/v1/open/catalog").status_code == 200


def test_credits(make_fake, make_client):
    fake = make_fake(credits=2, auto_advance=False)
    client = make_client(fake.url)
    client.submit("a")
    job_id = client.submit("b").json()["data"]["job"]["id"]

    refused = client.submit("c")
    assert refused.status_code == 402
    assert refused.json()["error"]["code"] == "insufficient_credits"
    assert client.submit("a").status_code == 202, "a replay costs nothing"
    assert client.get("/v1/balance").json()["data"]["available_balance_usd_micros"] == 0

    fake.set_status(job_id, "failed")
    assert client.submit("c").status_code == 202, "a failed job is refunded"


def test_queue_capacity(make_fake, make_client):
    fake = make_fake(queue_capacity=2, auto_advance=False)
    client = make_client(fake.url)

    def remaining(key):
        limits = client.submit(key).json()["data"]["generation_limits"]
        return limits["queue_capacity_remaining"]

    assert [remaining("a"), remaining("b")] == [1, 0]
    refused = client.submit("c")
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "queue_full"
    assert refused.json()["error"]["retryable"] is True
    assert client.submit("a").status_code == 202, "a replay needs no place"

    fake.set_status(fake.job_for("a").id, "processing")
    assert remaining("c") == 0


def test_write_limit(make_fake, make_client):
    fake = make_fake(writes_per_minute=3)
    client = make_client(fake.url)

    answers = [client.submit(f"k{n}") for n in range(3)]
    assert [item.headers["RateLimit-Remaining"] for item in answers] == ["2", "1", "0"]
    assert answers[0].headers["X-RateLimit-Limit"] == "3"
    refused = client.submit("k4")
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 58 <= int(refused.headers["Retry-After"]) <= 60
    assert refused.headers["RateLimit-Remaining"] == "0"
    assert 58 <= int(refused.headers["RateLimit-Reset"]) <= 60
    cancel = client.post("/v1/jobs/job_1/cancel", headers={"Authorization": "Bearer t"})
    assert cancel.status_code == 429, "every POST counts"
    assert client.submit("k5", token="another key").status_code == 202
    assert client.get("/v1/me").status_code == 200, "reads have a limit of their own"
    assert fake.billed == 4
    assert fake.max_in_window(60) == 6


def test_read_limit(make_fake, make_client):
    client = make_client(make_fake(reads_per_minute=1).url)
    assert client.get("/v1/me").status_code == 200
    assert client.get("/v1/jobs/job_1").status_code == 429
    assert client.submit().status_code == 202


def test_sync_mode_waits_for_the_end(make_fake, make_client):
    client = make_client(make_fake().url)
    data = client.submit(mode="sync", wait_timeout_seconds=5).json()["data"]
    assert data["job"]["status"] == data["sync"]["status"] == "completed"
    assert data["sync"]["result"]["artifacts"]


def test_sync_mode_does_not_wait_for_ever(client):
    data = client.submit(mode="subscribe", wait_timeout_seconds=0.01).json()["data"]
    assert data["sync"] == {"completed": False, "status": "queued"}


def test_twin_gets_the_job_of_the_first(fake, client, make_client):
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(make_client(fake.url).submit)
        while not fake.billed:
            pass
        twin = client.submit()
        release.set()
        assert twin.json()["data"]["idempotency_hit"] is True
        assert first.result().json()["data"]["idempotency_hit"] is False
    assert fake.billed == 1


def test_twin_is_refused_if_asked_for(make_fake, make_client):
    fake = make_fake(twin="conflict")
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(make_client(fake.url).submit)
        while not fake.billed:
            pass
        client = make_client(fake.url)
        refused = client.submit()
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "idempotency_in_progress"
        release.set()
        assert first.result().status_code == 202
        assert client.submit().json()["data"]["idempotency_hit"] is True


def test_twin_waits_if_asked_for(fake, make_client):
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release), Behaviour(twin="wait"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(make_client(fake.url).submit)
        while not fake.billed:
            pass
        twin = pool.submit(make_client(fake.url).submit)
        with pytest.raises(TimeoutError):
            twin.result(0.1)
        release.set()
        assert first.result().json()["data"]["idempotency_hit"] is False
        assert twin.result().json()["data"]["idempotency_hit"] is True
