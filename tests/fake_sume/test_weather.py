"""Misbehaviour by share: repeatable by its seed, and never for ever."""

from __future__ import annotations

import pytest
import requests

from local.fake_sume import Weather, behaviour


def struck(seed, share=0.1, count=2_000):
    weather = Weather(seed, {"error500": share})
    table = behaviour.SUBMIT_WEATHER
    return [n for n in range(count) if weather.request(table, f"render-job-{n}")]


def test_share_is_kept():
    assert 140 <= len(struck(0)) <= 260
    assert struck(0, 0.0) == []
    assert len(struck(0, 1.0)) == 2_000


def test_seed_makes_it_repeatable_in_any_order():
    assert struck(7) == struck(7)
    assert struck(7) != struck(8)
    weather = Weather(7, {"error500": 0.1})
    table = behaviour.SUBMIT_WEATHER
    backwards = [n for n in reversed(range(2_000)) if weather.request(table, f"render-job-{n}")]
    assert sorted(backwards) == struck(7)


def test_next_request_of_a_key_draws_anew():
    weather = Weather(0, {"error500": 0.5})
    drawn = [weather.request(behaviour.SUBMIT_WEATHER, "key") for _ in range(100)]
    assert 25 <= sum(item is not None for item in drawn) <= 75


@pytest.mark.parametrize("shares", [{"rain": 0.1}, {"rate429": 1.1}, {"rate429": -0.1}])
def test_nonsense_is_refused(shares):
    with pytest.raises(ValueError, match="weather"):
        Weather(0, shares)


def test_replace_forgets():
    weather = Weather(0, {"error500": 1.0})
    weather.replace({"rate429": 1.0})
    assert weather.values == {"rate429": 1.0}


EXPECTED_STATUS = {
    "rate429": 429,
    "queue_full": 429,
    "unavailable": 503,
    "error500": 500,
    "error500_before": 500,
    "bad_gateway": 502,
    "unauthorized": 401,
    "credits": 402,
    "forbidden": 403,
    "invalid": 400,
    "in_progress": 409,
    "drop_before": None,
    "drop_after": None,
    "mid_body": None,
    "cut_body": 202,
    "drip": 202,
    "slow": 202,
}
NOT_BILLED = {
    "rate429",
    "queue_full",
    "unavailable",
    "error500_before",
    "unauthorized",
    "credits",
    "forbidden",
    "invalid",
    "in_progress",
    "drop_before",
}


def answered(send):
    try:
        return send().status_code
    except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
        return None


@pytest.mark.parametrize("name", behaviour.SUBMIT_WEATHER)
def test_every_submit_weather(fake, client, name, monkeypatch):
    monkeypatch.setitem(behaviour.SUBMIT_WEATHER, "drip", behaviour.Behaviour(drip=100_000))
    fake.weather(**{name: 1.0, "slow_seconds": 0.01, "retry_after": 7})
    assert answered(client.submit) == EXPECTED_STATUS[name]
    assert fake.billed == (name not in NOT_BILLED)
    if name == "rate429":
        assert client.submit().headers["Retry-After"] == "7"
    fake.behave()
    assert client.submit().status_code == 202


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("read429", 429),
        ("read_error", 500),
        ("read_page", 200),
        ("read_missing", 404),
        ("read_drop", None),
        ("read_cut", 200),
        ("read_stale", 200),
        ("read_unknown", 200),
        ("read_slow", 200),
    ],
)
def test_every_read_weather(fake, client, name, expected):
    job_id = client.submit().json()["data"]["job"]["id"]
    fake.set_status(job_id, "completed")
    fake.weather(**{name: 1.0, "slow_seconds": 0.01})
    assert answered(lambda: client.get(f"/v1/jobs/{job_id}")) == expected
    if name in {"read_stale", "read_unknown"}:
        shown = client.get(f"/v1/jobs/{job_id}").json()["data"]["job"]["status"]
        assert shown == {"read_stale": "queued", "read_unknown": "throttled"}[name]
    assert fake.jobs[job_id].status == "completed"


def test_every_read_weather_is_tested():
    marks = test_every_read_weather.pytestmark
    assert {case[0] for case in marks[0].args[1]} == set(behaviour.READ_WEATHER)


def test_result_cancel_and_file_weather(fake, client):
    job_id = client.submit().json()["data"]["job"]["id"]
    fake.weather(cancel_error=1.0)
    assert client.post(f"/v1/jobs/{job_id}/cancel").status_code == 500
    fake.weather(cancel_error=0.0, cancel_drop=1.0)
    assert answered(lambda: client.post(f"/v1/jobs/{job_id}/cancel")) is None

    job_id = client.submit("key-2").json()["data"]["job"]["id"]
    fake.set_status(job_id, "completed")
    path = f"/v1/jobs/{job_id}/result"
    url = client.get(path).json()["data"]["result"]["artifacts"][0]["url"]
    fake.weather(result_late=1.0)
    assert client.get(path).json()["error"]["code"] == "job_not_completed"
    fake.weather(result_late=0.0, result_error=1.0)
    assert client.get(path).status_code == 500
    fake.weather(result_error=0.0, result_empty=1.0)
    assert client.get(path).json()["data"]["result"]["artifacts"] == []

    file = url.removeprefix(fake.url)
    fake.weather(artifact_forbidden=1.0)
    assert client.get(file).status_code == 403
    fake.weather(artifact_forbidden=0.0, artifact_page=1.0)
    assert client.get(file).text.startswith("<html>")
    fake.weather(artifact_page=0.0, artifact_short=1.0)
    assert answered(lambda: client.get(file)) is None


@pytest.mark.parametrize(
    ("name", "events", "state"),
    [
        ("lost_webhook", 0, "exhausted"),
        ("early_webhook", 1, "delivered"),
        ("duplicate_webhook", 2, "delivered"),
        ("new_event_id_webhook", 2, "delivered"),
        ("bad_signature_webhook", 1, "delivered"),
        ("old_webhook", 1, "delivered"),
    ],
)
def test_webhook_weather(make_fake, make_client, receiver, eventually, name, events, state):
    fake = make_fake(weather={name: 1.0})
    make_client(fake.url).submit(webhook_url=receiver.url)
    job = fake.job_for("key-1")
    eventually(lambda: job.webhook_status == state)
    assert len(receiver.events) == events


def test_jobs_that_sume_cancels(make_fake, make_client, eventually):
    fake = make_fake(weather={"canceled": 1.0})
    make_client(fake.url).submit()
    eventually(lambda: fake.job_for("key-1").status == "canceled")
