"""Everything a submit, a read, a result, a cancel or a list can be spoiled with."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import requests

from local.fake_sume import Behaviour


def submitted(client, key="key-1"):
    return client.submit(key).json()["data"]["job"]["id"]


@pytest.mark.parametrize("status", [408, 500, 502, 504, 524])
def test_job_made_and_an_error_answered(fake, client, status):
    fake.on_submit(Behaviour(status=status))
    answer = client.submit()
    assert answer.status_code == status
    assert answer.json()["error"]["retryable"] is True
    assert fake.billed == 1
    assert client.submit().json()["data"]["idempotency_hit"] is True
    assert [item.status for item in fake.posts()] == [status, 202]


@pytest.mark.parametrize("status", [302, 307, 400, 401, 402, 403, 404, 409, 413, 422, 429, 503])
def test_refused_and_no_job_made(fake, client, status):
    fake.on_submit(Behaviour(status=status))
    assert client.submit().status_code == status
    assert fake.billed == 0
    assert client.submit().json()["data"]["idempotency_hit"] is False


def test_error_without_a_job_and_refusal_with_one(fake, client):
    fake.on_submit(Behaviour(status=500, accept=False), Behaviour(status=503, accept=True))
    assert client.submit().status_code == 500
    assert fake.billed == 0
    assert client.submit().status_code == 503
    assert fake.billed == 1


def test_error_envelope_is_made_to_measure(fake, client):
    behaviour = Behaviour(
        status=429,
        code="queue_full",
        message="Full.",
        details={"a": 1},
        retryable=False,
        headers={"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"},
    )
    fake.on_submit(behaviour)
    answer = client.submit()
    error = answer.json()["error"]
    assert (error["code"], error["message"]) == ("queue_full", "Full.")
    assert (error["details"], error["retryable"]) == ({"a": 1}, False)
    assert answer.headers["Retry-After"] == "Fri, 31 Dec 9999 23:59:59 GMT"


@pytest.mark.parametrize(("drop", "billed"), [("before", 0), ("after", 1)])
def test_connection_reset(fake, client, drop, billed):
    fake.on_submit(Behaviour(drop=drop))
    with pytest.raises(requests.ConnectionError, match="reset"):
        client.submit()
    assert fake.billed == billed
    assert fake.requests[0].status is None
    assert fake.requests[0].body


def test_connection_closed_inside_the_body(fake, client):
    fake.on_submit(Behaviour(drop="mid_body"))
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        client.submit()
    assert fake.billed == 1


def test_well_formed_answer_with_half_a_body(fake, client):
    fake.on_submit(Behaviour(cut=True))
    answer = client.submit()
    assert answer.status_code == 202
    with pytest.raises(ValueError):
        answer.json()
    assert fake.billed == 1


def test_bodies_of_all_kinds(fake, client):
    page = b"<html>Bad gateway</html>"
    fake.on_submit(
        Behaviour(status=502, body=page),
        Behaviour(body=b""),
        Behaviour(json={"data": {}}),
        Behaviour(json=None),
        Behaviour(json=lambda job: {"data": {"id": job.id}}),
    )
    answer = client.submit()
    assert (answer.status_code, answer.content) == (502, page)
    assert answer.headers["Content-Type"] == "text/html"
    assert client.submit().content == b""
    assert client.submit().json() == {"data": {}}
    assert client.submit().json() is None
    assert client.submit().json() == {"data": {"id": fake.job_for("key-1").id}}
    assert fake.billed == 1


def test_slow_answer(fake, client):
    fake.on_submit(Behaviour(delay=0.1))
    before = time.monotonic()
    assert client.submit().status_code == 202
    assert time.monotonic() - before >= 0.1


def test_client_that_gives_up_leaves_a_job(fake, client, eventually):
    fake.on_submit(Behaviour(delay=0.2))
    with pytest.raises(requests.Timeout):
        requests.post(
            f"{fake.url}/v1/images",
            json={"prompt": "a lighthouse"},
            headers={"Idempotency-Key": "key-1"},
            timeout=0.05,
        )
    assert fake.billed == 1
    eventually(lambda: fake.requests[0].status == 202)


def test_dripping_answer(fake, client):
    fake.on_submit(Behaviour(drip=2_000))
    before = time.monotonic()
    answer = client.submit()
    assert time.monotonic() - before >= 0.2
    assert answer.json()["data"]["job"]["id"]


def test_huge_answer(fake, client):
    fake.on_submit(Behaviour(pad=5_000_000))
    assert len(client.submit().content) > 5_000_000


def test_held_answer_says_what_was_true_when_it_was_accepted(fake, client, eventually):
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    answers = []
    thread = threading.Thread(target=lambda: answers.append(client.submit()))
    thread.start()
    eventually(lambda: fake.billed == 1)
    fake.set_status(fake.job_for("key-1").id, "completed")
    assert answers == []
    release.set()
    thread.join(5)
    assert answers[0].json()["data"]["job"]["status"] == "queued"


def test_call_between_accepting_and_answering(fake, client):
    calls = []

    def call(job):
        fake.set_status(job.id, "completed")
        calls.append(requests.get(f"{fake.url}/v1/jobs/{job.id}", timeout=5).status_code)

    fake.on_submit(Behaviour(call=call), Behaviour(status=429, call=calls.append))
    assert client.submit("a").json()["data"]["job"]["status"] == "queued"
    assert fake.job_for("a").status == "completed"
    assert client.submit("b").status_code == 429
    assert calls == [200, None]


def test_call_that_raises_is_reported(make_client):
    from local.fake_sume import FakeSume

    def call(job):
        raise ZeroDivisionError

    with FakeSume() as fake:
        fake.on_submit(Behaviour(call=call))
        client = make_client(fake.url)
        assert client.submit().status_code == 202
        assert [type(error) for error in fake.errors] == [ZeroDivisionError]


def test_replay_with_another_status(fake, client):
    fake.always_on_submit(Behaviour(replay_status=200))
    assert client.submit().status_code == 202
    assert client.submit().status_code == 200


@pytest.mark.parametrize("capacity", [3, 0, -1, "2", None, 1.5])
def test_capacity_as_told(fake, client, capacity):
    fake.on_submit(Behaviour(capacity=capacity))
    limits = client.submit().json()["data"]["generation_limits"]
    assert limits == {"queue_capacity_remaining": capacity}


def test_capacity_in_other_places_or_none(fake, client):
    fake.on_submit(
        Behaviour(capacity="missing"),
        Behaviour(capacity=1, capacity_place="root"),
        Behaviour(capacity=1, capacity_place="job"),
    )
    assert "generation_limits" not in client.submit().json()["data"]
    assert client.submit().json()["generation_limits"] == {"queue_capacity_remaining": 1}
    job = client.submit().json()["data"]["job"]
    assert job["generation_limits"] == {"queue_capacity_remaining": 1}


def test_behaviours_by_key_come_first_and_once(fake, client):
    fake.always_on_submit(Behaviour(status=503))
    fake.always_on_submit(Behaviour(status=500), key="a")
    fake.on_submit(Behaviour(status=429), Behaviour(status=402))
    fake.on_submit(Behaviour(status=401), key="a")

    def statuses(key, count):
        return [client.submit(key).status_code for _ in range(count)]

    assert statuses("a", 1) == [401]
    assert statuses("b", 1) == [429]
    assert statuses("a", 2) == [402, 500]
    assert statuses("b", 2) == [503, 503]
    fake.always_on_submit(None)
    assert statuses("b", 1) == [202]
    assert statuses("a", 1) == [500]
    fake.behave()
    assert statuses("a", 1) == [202]


@pytest.mark.parametrize("view", ["", "/status"])
def test_reads(fake, client, view):
    job_id = submitted(client)
    other = submitted(client, "key-2")
    fake.set_status(job_id, "completed")
    path = f"/v1/jobs/{job_id}{view}"

    def shown():
        return client.get(path).json()["data"]["job"]

    fake.on_read(
        Behaviour(status=500),
        Behaviour(status=429, headers={"Retry-After": "5"}),
        Behaviour(drop="after"),
        Behaviour(body=b"<html>"),
        Behaviour(json={}),
        Behaviour(status=401),
        Behaviour(job_status="queued"),
        Behaviour(job_status="throttled"),
        Behaviour(job_status="failed", job_error="a string"),
        Behaviour(job_id="job_other"),
        job_id=job_id,
    )
    assert client.get(path).status_code == 500
    assert client.get(path).headers["Retry-After"] == "5"
    with pytest.raises(requests.ConnectionError):
        client.get(path)
    assert client.get(path).text == "<html>"
    assert client.get(path).json() == {}
    assert client.get(path).status_code == 401
    assert shown()["status"] == "queued", "a stale read after the end"
    assert shown()["status"] == "throttled"
    assert shown()["error"] == "a string"
    assert shown()["id"] == "job_other"
    assert shown()["status"] == "completed"
    assert client.get(f"/v1/jobs/{other}").json()["data"]["job"]["status"] == "queued"


def test_reads_by_key_and_for_ever(fake, client):
    job_id = submitted(client)
    fake.always_on_read(Behaviour(status=404, code="job_not_found"), key="key-1")
    assert [client.get(f"/v1/jobs/{job_id}").status_code for _ in range(3)] == [404] * 3
    fake.always_on_read(None, key="key-1")
    assert client.get(f"/v1/jobs/{job_id}").status_code == 200


def test_result_that_lags_behind(fake, client):
    job_id = submitted(client)
    fake.set_status(job_id, "completed")
    late = Behaviour(status=409, code="job_not_completed", details={"status": "processing"})
    fake.on_result(late, late, job_id=job_id)
    fake.on_result(Behaviour(json={"data": {"result": {"artifacts": []}}}))
    path = f"/v1/jobs/{job_id}/result"
    assert [client.get(path).status_code for _ in range(2)] == [409, 409]
    assert client.get(path).json()["data"]["result"]["artifacts"] == []
    assert len(client.get(path).json()["data"]["result"]["artifacts"]) == 1


def test_cancel_answered_with_an_error(fake, client):
    job_id = submitted(client)
    fake.on_cancel(Behaviour(status=500, accept=False), Behaviour(status=500))
    fake.on_cancel(Behaviour(drop="after"), job_id="another job")
    path = f"/v1/jobs/{job_id}/cancel"
    assert client.post(path).status_code == 500
    assert fake.jobs[job_id].status == "queued"
    assert client.post(path).status_code == 500
    assert fake.jobs[job_id].status == "canceled"
    assert client.post(path).status_code == 200


def test_list_and_files(fake, client):
    job_id = submitted(client)
    fake.set_status(job_id, "completed")
    fake.on_list(Behaviour(status=500))
    assert client.get("/v1/jobs").status_code == 500
    assert client.get("/v1/jobs").status_code == 200
    (artifact,) = client.get(f"/v1/jobs/{job_id}/result").json()["data"]["result"]["artifacts"]
    path = artifact["url"].removeprefix(fake.url)
    fake.on_artifact(
        Behaviour(status=403),
        Behaviour(body=b"<html>not an image</html>"),
        Behaviour(drop="mid_body"),
    )
    assert client.get(path).status_code == 403
    assert client.get(path).content.startswith(b"<html>")
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        client.get(path)
    answer = client.get(path)
    assert answer.headers["Content-Type"] == "image/png"
    assert answer.content.startswith(b"\x89PNG\r\n\x1a\n")
    assert answer.content == client.get(path).content
    assert client.get("/artifacts/unknown.png").status_code == 404


def test_file_links_expire(make_fake, make_client):
    fake = make_fake(artifact_seconds=0.05)
    client = make_client(fake.url)
    job_id = submitted(client)
    fake.set_status(job_id, "completed")

    def link():
        data = client.get(f"/v1/jobs/{job_id}/result").json()["data"]
        return data["result"]["artifacts"][0]["url"].removeprefix(fake.url)

    first = link()
    assert client.get(first).status_code == 200
    assert client.get(first.replace("expires=1", "expires=2")).status_code == 403
    time.sleep(0.06)
    assert client.get(first).status_code == 403
    assert client.get(link()).status_code == 200


def test_keep_alive_connection_reset_while_idle(fake, client):
    client.submit()
    assert fake.close_connections() == 1
    time.sleep(0.01)
    # The pool sees the dead socket and opens another; a raw socket would get a reset.
    assert client.submit().status_code == 202
    assert fake.close_connections() == 1


def test_outage(fake, client):
    client.submit()
    url = fake.url
    fake.stop()
    with pytest.raises(requests.ConnectionError):
        client.submit()
    fake.start()
    assert fake.url == url
    assert client.submit().json()["data"]["idempotency_hit"] is True


def test_stop_does_not_wait_for_held_answers(fake, client):
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    failures = []

    def submit():
        try:
            client.submit()
        except requests.ConnectionError as error:
            failures.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    while not fake.billed:
        pass
    before = time.monotonic()
    fake.stop()
    assert time.monotonic() - before < 2
    thread.join(5)
    assert len(failures) == 1


def test_max_in_window(fake, client):
    for _ in range(3):
        client.submit()
    client.get("/v1/me")
    client.post("/v1/jobs/job_1/cancel")
    assert fake.max_in_window() == 4
    assert fake.max_in_window(1e-9) == 1


def test_request_that_was_not_finished(fake, client, caplog, eventually):
    address = ("127.0.0.1", int(fake.url.rsplit(":", 1)[1]))
    with socket.create_connection(address) as connection:
        head = b"POST /v1/images HTTP/1.1\r\nHost: fake\r\nIdempotency-Key: key-1\r\n"
        connection.sendall(head + b"Content-Length: 100\r\n\r\n{")
        eventually(lambda: fake.requests)
    assert client.submit("key-2").status_code == 202
    assert fake.billed_by_key == {"key-2": 1}
    assert [item.key for item in fake.posts()] == ["key-2"]
    assert caplog.records == []
