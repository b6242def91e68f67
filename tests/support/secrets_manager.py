"""A stand-in for AWS Secrets Manager on loopback: GetSecretValue, with a counter and faults."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class SecretsManager:
    """`secrets[name] = text`; point the product at it with AWS_ENDPOINT_URL = `url`.

    `reads` counts the calls per secret; `unreachable = True` answers 500 to everything.
    """

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}
        self.reads: dict[str, int] = {}
        self.unreachable = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                request = json.loads(self.rfile.read(length) or b"{}")
                status, answer = outer.answer(self.headers.get("x-amz-target", ""), request)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/x-amz-json-1.1")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Silent: the counter says what was asked."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @staticmethod
    def arn(name: str) -> str:
        return f"arn:aws:secretsmanager:eu-central-1:123456789012:secret:{name}-AbCdEf"

    def answer(self, target: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        wanted = str(request.get("SecretId", ""))
        name = wanted.removeprefix("arn:aws:secretsmanager:eu-central-1:123456789012:secret:")
        name = name.removesuffix("-AbCdEf")
        if not target.endswith("GetSecretValue"):
            return 400, {"__type": "InvalidRequestException", "message": f"not offered: {target}"}
        self.reads[name] = self.reads.get(name, 0) + 1
        if self.unreachable:
            return 500, {"__type": "InternalServiceError", "message": "out of order"}
        if name not in self.secrets:
            return 400, {"__type": "ResourceNotFoundException", "message": "no such secret"}
        return 200, {
            "ARN": self.arn(name),
            "Name": name,
            "VersionId": "00000000-0000-0000-0000-000000000001",
            "SecretString": self.secrets[name],
            "VersionStages": ["AWSCURRENT"],
            "CreatedDate": 1773119783,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
