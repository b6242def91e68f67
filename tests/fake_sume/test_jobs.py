"""Reads, results, cancels, lists; and how jobs go on by themselves."""

from __future__ import annotations

import time

import pytest

ERROR = {"code": "boom", "message": "It broke.", "category": "provider", "retryable": True}


def submitted(client, key="key-1"):
    return client.submit(key).json()["data"]["job"]["id"]


def test_record(fake, client):
    job_id = submitted(client)
    job = client.get(f"/v1/jobs/{job_id}").json()["data"]["job"]
    assert (job["id"], job["status"], job["error"]) == (job_id, "queued", None)
    assert job["webhook_status"] is None
    assert job["usage"]["status"] == "reserved"

    fake.set_status(job_id, "failed", error=ERROR)
    job = client.get(f"/v1/jobs/{job_id}").json()["data"]["job"]
    assert (job["status"], job["error"]) == ("failed", ERROR)
    assert job["usage"]["status"] == "refunded"


def test_status_view(fake, client):
    job_id = submitted(client)
    data = client.get(f"/v1/jobs/{job_id}/status").json()["data"]
    assert (data["sume_status"], data["status"], data["result_ready"]) == (
        "queued",
        "QUEUED",
        False,
    )
    assert data["request_id"] == data["job_id"] == data["job"]["id"] == job_id
    assert data["recommended_poll_interval_seconds"] == 2

    fake.set_status(job_id, "completed")
    data = client.get(f"/v1/jobs/{job_id}/status").json()["data"]
    assert (data["sume_status"], data["result_ready"]) == ("completed", True)
    assert data["next_action"] == "fetch_result"
    assert data["usage"]["status"] == "captured"

    fake.set_status(job_id, "failed", error={**ERROR, "next_action": "resubmit"})
    data = client.get(f"/v1/jobs/{job_id}/status").json()["data"]
    assert data["next_action"] == "resubmit"
    assert data["job"]["error"]["code"] == "boom"


@pytest.mark.parametrize("status", ["queued", "processing", "failed", "canceled"])
def test_result_only_when_completed(fake, client, status):
    job_id = submitted(client)
    fake.set_status(job_id, status)

    answer = client.get(f"/v1/jobs/{job_id}/result")

    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["details"]) == ("job_not_completed", {"status": status})


def test_result(fake, client):
    job_id = submitted(client)
    fake.set_status(job_id, "completed")

    data = client.get(f"/v1/jobs/{job_id}/result").json()["data"]

    assert (data["request_id"], data["status"]) == (job_id, "COMPLETED")
    (artifact,) = data["result"]["artifacts"]
    assert (artifact["type"], artifact["content_type"]) == ("image", "image/png")
    fake.set_status(job_id, "completed", artifacts=[])
    data = client.get(f"/v1/jobs/{job_id}/result").json()["data"]
    assert data["result"]["artifacts"] == []


@pytest.mark.parametrize("view", ["", "/status", "/result", "/events"])
def test_unknown_job(client, view):
    answer = client.get(f"/v1/jobs/job_unknown{view}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "job_not_found"


def test_events(fake, client):
    job_id = submitted(client)
    fake.set_status(job_id, "processing")
    fake.set_status(job_id, "failed", error=ERROR)

    data = client.get(f"/v1/jobs/{job_id}/events").json()["data"]

    assert data["job_id"] == job_id
    kinds = [event["type"] for event in data["events"]]
    assert kinds == ["job.accepted", "job.processing", "provider_failure", "job.failed"]
    assert data["events"][2]["data"] == {"code": "boom"}
    limited = client.get(f"/v1/jobs/{job_id}/events?limit=1").json()["data"]["events"]
    assert limited == data["events"][-1:]
    assert client.get(f"/v1/jobs/{job_id}/events?limit=101").status_code == 400


def test_cancel_while_queued(client):
    job_id = submitted(client)
    for _ in range(2):
        answer = client.post(f"/v1/jobs/{job_id}/cancel")
        assert answer.status_code == 200
        data = answer.json()["data"]
        assert (data["canceled"], data["status"]) == (True, "CANCELED")
        assert data["job"]["id"] == data["job_id"] == job_id
        assert data["job"]["status"] == "canceled"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("processing", "job_generation_already_started"),
        ("completed", "job_not_cancelable"),
        ("failed", "job_not_cancelable"),
    ],
)
def test_cancel_too_late(fake, client, status, code):
    job_id = submitted(client)
    fake.set_status(job_id, status)

    answer = client.post(f"/v1/jobs/{job_id}/cancel", json={})

    assert answer.status_code == 409
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["details"]["cancelable"] is False
    assert fake.jobs[job_id].status == status
    assert client.post("/v1/jobs/job_unknown/cancel").status_code == 404


def test_list(fake, client):
    ids = [submitted(client, f"k{n}") for n in range(5)]
    fake.set_status(ids[0], "completed")

    first = client.get("/v1/jobs?limit=3").json()["data"]
    assert [job["id"] for job in first["jobs"]] == [ids[4], ids[3], ids[2]]
    second = client.get(f"/v1/jobs?limit=3&cursor={first['next_cursor']}").json()["data"]
    assert [job["id"] for job in second["jobs"]] == [ids[1], ids[0]]
    assert second["next_cursor"] is None
    done = client.get("/v1/jobs?status=completed").json()["data"]["jobs"]
    assert [job["id"] for job in done] == [ids[0]]
    for query in ("limit=0", "limit=101", "limit=x", "cursor=x"):
        assert client.get(f"/v1/jobs?{query}").status_code == 400


def test_account_and_catalog(fake, client):
    job_id = submitted(client)
    assert client.get("/v1/health").json()["data"]["status"] == "ok"
    assert client.get("/health").status_code == 200
    assert client.get("/v1/me").json()["data"]["account"]["workspace_id"]
    assert client.get("/v1/balance").json()["data"]["available_balance_usd_micros"] > 0
    usage = client.get("/v1/usage").json()["data"]
    assert usage["next_cursor"] is None
    assert [item["job_id"] for item in usage["usage"]] == [job_id]
    assert usage["usage"][0]["amount_usd_micros"] == 90_000
    assert client.get("/v1/usage?limit=0").status_code == 400
    models = client.get("/v1/catalog").json()["data"]["models"]
    assert models == client.get("/v1/open/catalog").json()["data"]["models"]
    assert "sume/auto" in [model["id"] for model in models]
    assert client.get("/v1/open/catalog/sume%2Fauto").json()["data"]["kind"] == "image"
    assert client.get("/v1/nothing").status_code == 404


def test_admission_preview(make_fake, make_client):
    fake = make_fake(credits=1, auto_advance=False)
    client = make_client(fake.url)
    body = {"model": "sume/auto", "request": {"prompt": "a cat"}}

    data = client.post("/v1/generation/admission-preview", json=body).json()["data"]
    assert data["admission"]["would_accept"] is True
    assert data["usage"]["billable_amount_usd_micros"] == 90_000
    assert fake.billed == 0
    client.submit()
    data = client.post("/v1/generation/admission-preview", json=body).json()["data"]
    assert data["admission"] == {"would_accept": False, "reason": "insufficient_credits"}
    assert client.post("/v1/generation/admission-preview", data=b"[").status_code == 400


def walk_of(job):
    return [kind for _, kind, _, _ in job.history]


def test_jobs_go_on_by_themselves(make_fake, make_client, eventually):
    fake = make_fake()
    client = make_client(fake.url)
    for number in range(10):
        submitted(client, f"k{number}")
    eventually(lambda: all(job.status == "completed" for job in fake.jobs.values()))
    for job in fake.jobs.values():
        assert walk_of(job) == ["job.accepted", "job.processing", "job.completed"]


def test_processing_may_be_skipped(make_fake, make_client, eventually):
    fake = make_fake(weather={"skip_processing": 1})
    submitted(make_client(fake.url))
    eventually(lambda: fake.job_for("key-1").terminal)
    assert walk_of(fake.job_for("key-1")) == ["job.accepted", "job.completed"]


def test_share_of_failures(make_fake, make_client, eventually):
    fake = make_fake(weather={"failed": 0.5}, failures=[ERROR], seed=3)
    client = make_client(fake.url)
    for number in range(40):
        submitted(client, f"k{number}")
    eventually(lambda: all(job.terminal for job in fake.jobs.values()))
    failed = [job for job in fake.jobs.values() if job.status == "failed"]
    assert 8 <= len(failed) <= 32
    assert all(job.error == ERROR for job in failed)


def test_workspace_concurrency(make_fake, make_client, eventually):
    fake = make_fake(concurrency=1, job_seconds=(0.03, 0.03))
    client = make_client(fake.url)
    for number in range(4):
        submitted(client, f"k{number}")
    most = 0
    deadline = time.monotonic() + 5
    while not all(job.terminal for job in fake.jobs.values()):
        most = max(most, sum(job.status == "processing" for job in fake.jobs.values()))
        assert time.monotonic() < deadline
    assert most == 1
    ends = [job.updated_at for job in fake.jobs.values()]
    assert ends == sorted(ends), "first come, first served"


def test_canceled_job_gives_its_place_in_the_queue_up(make_fake, make_client, eventually):
    fake = make_fake(concurrency=1, job_seconds=(0.2, 0.2))
    client = make_client(fake.url)
    first, second, third = (submitted(client, f"k{n}") for n in range(3))
    assert client.post(f"/v1/jobs/{second}/cancel").status_code == 200
    assert client.post(f"/v1/jobs/{first}/cancel").status_code == 409
    eventually(lambda: fake.jobs[third].terminal)
    assert [fake.jobs[n].status for n in (first, second, third)] == [
        "completed",
        "canceled",
        "completed",
    ]


def test_a_job_taken_in_hand_stays_put(make_fake, make_client):
    fake = make_fake()
    job_id = submitted(make_client(fake.url))
    fake.set_status(job_id, "processing")
    time.sleep(0.1)
    assert fake.jobs[job_id].status == "processing"


def test_the_list_is_filtered_by_type_and_tells_keys_only_when_told_to(fake, client):
    client.submit("key-of-mine")
    assert len(client.get("/v1/jobs?type=image_generation").json()["data"]["jobs"]) == 1
    assert client.get("/v1/jobs?type=video_generation").json()["data"]["jobs"] == []
    (job,) = client.get("/v1/jobs").json()["data"]["jobs"]
    assert "idempotency_key" not in job
    fake.options.tell_keys = True
    (job,) = client.get("/v1/jobs").json()["data"]["jobs"]
    assert job["idempotency_key"] == "key-of-mine"
