"""A client for the fake, and a receiver for its webhooks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests

from local.fake_sume import FakeSume


class Client:
    """What a submitter does, over one keep-alive session."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()

    def submit(
        self, key: str | None = "key-1", *, path: str = "/v1/images", token: str = "t", **body: Any
    ) -> requests.Response:
        value = {"model": "sume/auto", "prompt": "a lighthouse", "mode": "async", **body}
        headers = {"Authorization": f"Bearer {token}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        return self.session.post(self.url + path, json=value, headers=headers, timeout=5)

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.session.get(self.url + path, timeout=5, **options)

    def post(self, path: str, **options: Any) -> requests.Response:
        return self.session.post(self.url + path, timeout=5, **options)

    def close(self) -> None:
        self.session.close()


@dataclass(frozen=True)
class Event:
    """One webhook as it came in; header names are in lower case."""

    headers: dict[str, str]
    body: bytes


class Receiver:
    """An HTTP server that keeps what it gets, and answers what it is told to."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.answers: list[int] = []
        """The statuses of the next answers; then 200."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.events.append(Event(headers, body))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.end_headers()
                self.wfile.write(b'{"outcome": "applied"}')

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/webhooks/sume"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def make_fake() -> Iterator[Callable[..., FakeSume]]:
    """Starts fakes with any settings, and stops them all."""
    fakes: list[FakeSume] = []

    def make(**settings: Any) -> FakeSume:
        settings.setdefault("job_seconds", (0.01, 0.03))
        settings.setdefault("webhook_backoff", 0.01)
        fake = FakeSume(**settings).start()
        fakes.append(fake)
        return fake

    yield make
    for fake in fakes:
        fake.stop()
        assert fake.errors == []


@pytest.fixture
def make_client() -> Iterator[Callable[[str], Client]]:
    clients: list[Client] = []

    def make(url: str) -> Client:
        clients.append(Client(url))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def fake(make_fake: Callable[..., FakeSume]) -> FakeSume:
    """A fake whose jobs stay as they are."""
    return make_fake(auto_advance=False)


@pytest.fixture
def client(fake: FakeSume, make_client: Callable[[str], Client]) -> Client:
    """A client of `fake`."""
    return make_client(fake.url)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Waits until something is true, five seconds at most."""

    def wait(true: Callable[[], Any], seconds: float = 5.0) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.005)

    return wait
