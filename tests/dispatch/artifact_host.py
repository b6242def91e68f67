"""A host of artifacts that a test tells what to answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Answer = tuple[int, dict[str, str], bytes]


class ArtifactHost:
    """`answers[path]` is (status, headers, body) or makes it; `seen` are (path, headers).

    A Content-Length that is not the body's is sent as it stands, and the connection is closed.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[], Answer]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.seen.append(
                    (self.path, {name.lower(): value for name, value in self.headers.items()})
                )
                found = outer.answers.get(self.path, (404, {}, b"not here"))
                status, headers, body = found() if callable(found) else found
                self.send_response(status)
                length = (
                    {} if "Transfer-Encoding" in headers else {"Content-Length": str(len(body))}
                )
                for name, value in {**length, **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
