"""The local gateway speaks HTTP like an API Gateway HTTP API, payload 2.0."""

import base64
import http.client
import json
import threading
import time

import pytest
import requests

from local.gateway import Gateway, Route
from local.runner import Function, Runner

STUB = "tests.local.handlers.stub"
ROUTES = [
    Route("POST", "/webhooks/sume", "proxy"),
    Route("GET", "/jobs/{id}", "proxy"),
    Route("POST", "/fail", "fail"),
    Route("POST", "/slow", "sleep"),
    Route("ANY", "/raw", "echo"),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    functions = [
        Function("proxy", f"{STUB}.proxy", 10, 128),
        Function("fail", f"{STUB}.fail", 10, 128),
        Function("sleep", f"{STUB}.sleep", 1, 128, 1),
        Function("echo", f"{STUB}.echo", 10, 128),
    ]
    with (
        Runner(functions, log_folder=tmp_path_factory.mktemp("logs")) as runner,
        Gateway(runner, ROUTES) as gateway,
    ):
        yield runner, gateway


@pytest.fixture
def url(bundle):
    return bundle[1].url


def event(url, body=b"", path="/raw", **options):
    answer = requests.post(url + path, data=body, timeout=10, **options)
    return answer.json()["event"]


def test_the_event_has_the_shape_of_payload_2(url):
    found = event(
        url,
        b'{"a": "\xc3\xa9"}',
        path="/raw?x=1&x=2&y=%20z&empty=",
        headers={"X-Sume-Event-Id": "Evt", "Content-Type": "application/json", "Cookie": "a=1; b"},
    )
    assert found["version"] == "2.0"
    assert found["routeKey"] == "ANY /raw"
    assert found["rawPath"] == "/raw"
    assert found["rawQueryString"] == "x=1&x=2&y=%20z&empty="
    assert found["queryStringParameters"] == {"x": "1,2", "y": " z", "empty": ""}
    assert found["headers"]["x-sume-event-id"] == "Evt"
    assert all(name == name.lower() for name in found["headers"])
    assert found["cookies"] == ["a=1", "b"]
    assert "cookie" not in found["headers"]
    assert found["body"] == '{"a": "é"}'
    assert found["isBase64Encoded"] is False
    context = found["requestContext"]
    assert context["http"]["method"] == "POST"
    assert context["http"]["path"] == "/raw"
    assert context["http"]["sourceIp"] == "127.0.0.1"
    assert context["stage"] == "$default"
    assert abs(context["timeEpoch"] / 1000 - time.time()) < 60


@pytest.mark.parametrize(
    ("content_type", "body", "encoded"),
    [
        ("application/json", b"{}", False),
        ("application/json; charset=utf-8", b"{}", False),
        ("application/problem+json", b"{}", False),
        ("text/plain", b"x", False),
        ("application/octet-stream", b"{}", True),
        ("image/png", b"\x89PNG", True),
        (None, b"{}", True),
        # Not UTF-8 whatever it says: only base64 can carry it unharmed.
        ("application/json", b'{"a": "\xff\x00"}', True),
    ],
)
def test_bodies_arrive_byte_for_byte(url, content_type, body, encoded):
    headers = {"Content-Type": content_type} if content_type else {}
    found = event(url, body, headers=headers)
    assert found["isBase64Encoded"] is encoded
    text = found["body"]
    assert (base64.b64decode(text) if encoded else text.encode()) == body


def test_no_body_is_no_key(url):
    assert "body" not in event(url)


def test_repeated_headers_are_joined(bundle):
    _, gateway = bundle
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.putrequest("POST", "/raw")
    connection.putheader("X-Twice", "one")
    connection.putheader("X-Twice", "two")
    connection.putheader("Content-Length", "0")
    connection.endheaders()
    found = json.loads(connection.getresponse().read())
    connection.close()
    assert found["event"]["headers"]["x-twice"] == "one,two"


def test_path_parameters(url):
    answer = requests.get(url + "/jobs/job%2F1", timeout=10).json()
    assert answer["pathParameters"] == {"id": "job/1"}
    assert answer["routeKey"] == "GET /jobs/{id}"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/webhooks/sume"), ("POST", "/"), ("POST", "/webhooks/sume/x")]
)
def test_unknown_routes_are_404(url, method, path):
    answer = requests.request(method, url + path, timeout=10)
    assert (answer.status_code, answer.json()) == (404, {"message": "Not Found"})


def test_the_answer_of_the_function_is_sent_back(bundle):
    _, gateway = bundle
    wanted = {
        "statusCode": 202,
        "headers": {"X-Found": "1", "Content-Type": "text/plain", "Content-Length": "999"},
        "cookies": ["a=1", "b=2"],
        "body": base64.b64encode(b"\xffbytes").decode(),
        "isBase64Encoded": True,
    }
    answer = requests.post(
        gateway.url + "/webhooks/sume",
        data=json.dumps(wanted),
        headers={"Content-Type": "application/json"},
        timeout=10,
    )
    assert answer.status_code == 202
    assert answer.content == b"\xffbytes"
    assert answer.headers["X-Found"] == "1"
    assert answer.headers["Content-Type"] == "text/plain"
    assert answer.headers["Set-Cookie"] == "a=1, b=2"


def test_outcomes_and_statuses_are_counted(bundle):
    _, gateway = bundle
    before = gateway.outcomes["applied"], gateway.responses["proxy", 200]
    body = {"statusCode": 200, "body": json.dumps({"outcome": "applied"})}
    requests.post(
        gateway.url + "/webhooks/sume",
        data=json.dumps(body),
        headers={"Content-Type": "application/json"},
        timeout=10,
    )
    after = gateway.outcomes["applied"], gateway.responses["proxy", 200]
    assert after == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("answer", [{"statusCode": "x"}, {"statusCode": 99}, {"statusCode": None}])
def test_a_malformed_answer_is_500(url, answer):
    found = requests.post(
        url + "/webhooks/sume",
        data=json.dumps(answer),
        headers={"Content-Type": "application/json"},
        timeout=10,
    )
    assert (found.status_code, found.json()) == (500, {"message": "Internal Server Error"})


def test_an_answer_without_a_status_code_is_200_json(url):
    found = requests.get(url + "/raw", timeout=10)
    assert found.status_code == 200
    assert found.headers["Content-Type"].startswith("application/json")


def test_a_failing_function_is_500(url):
    assert requests.post(url + "/fail", timeout=10).status_code == 500


def test_a_timeout_is_500_and_a_throttled_call_503(bundle):
    runner, gateway = bundle
    statuses = []

    def slow():
        answer = requests.post(gateway.url + "/slow", data=b'{"seconds": 5}', timeout=10)
        statuses.append(answer.status_code)

    thread = threading.Thread(target=slow)
    thread.start()
    while not runner.running("sleep"):
        time.sleep(0.01)
    throttled = requests.post(gateway.url + "/slow", timeout=10)
    thread.join()
    assert (throttled.status_code, throttled.json()) == (503, {"message": "Service Unavailable"})
    assert statuses == [500]


def test_a_body_over_ten_megabytes_is_413(url):
    answer = requests.post(
        url + "/raw", data=b"x" * (10 * 1024 * 1024 + 1), headers={"Expect": ""}, timeout=10
    )
    assert answer.status_code == 413


def test_a_body_over_what_lambda_takes_is_413(url):
    answer = requests.post(url + "/raw", data=b"x" * (7 * 1024 * 1024), timeout=10)
    assert answer.status_code == 413


def test_requests_run_in_parallel_up_to_the_concurrency(bundle):
    _, gateway = bundle
    answers = []

    def call():
        answers.append(requests.post(gateway.url + "/raw", timeout=10).status_code)

    threads = [threading.Thread(target=call) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 30


def test_a_taken_port_is_an_error(bundle):
    runner, gateway = bundle
    port = int(gateway.url.rpartition(":")[2])
    with pytest.raises(OSError, match="address already in use"):
        Gateway(runner, ROUTES, port=port).start()
