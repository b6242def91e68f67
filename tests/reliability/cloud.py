"""The part of AWS that the functions call, on loopback: SQS, EventBridge and S3 in one server."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

QUEUE_URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/follow-ups"
QUEUE_ARN = "arn:aws:sqs:eu-central-1:123456789012:archive"


class Cloud(ThreadingHTTPServer):
    """Keeps what was sent: `queued` and `put` are (id, body) of follow-ups, `objects` by name.

    `refuse` is how many of the next requests are refused.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.clear()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def clear(self) -> None:
        self.queued: list[tuple[str, str]] = []
        self.put: list[tuple[str, str]] = []
        self.objects: dict[str, bytes] = {}
        self.refuse = 0

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """A killed client resets its connection: that is what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Cloud

    def do_POST(self) -> None:
        request = json.loads(self._body())
        operation = self.headers["x-amz-target"].rpartition(".")[2]
        refused = self._is_refused()
        answer = {
            "SendMessageBatch": self._send_message_batch,
            "ChangeMessageVisibility": lambda _request, _refused: {},
            "PutEvents": self._put_events,
        }[operation](request, refused)
        self._answer(200, json.dumps(answer).encode(), "application/x-amz-json-1.0")

    def do_PUT(self) -> None:
        content = self._body()
        if self._is_refused():
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>", "application/xml")
            return
        self.server.objects[self.path.partition("?")[0].lstrip("/")] = content
        self._answer(200, b"", "application/xml")

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def _is_refused(self) -> bool:
        refused = self.server.refuse > 0
        self.server.refuse -= refused
        return refused

    def _send_message_batch(self, request: dict[str, Any], refused: bool) -> dict[str, Any]:
        answer: dict[str, Any] = {"Successful": [], "Failed": []}
        for entry in request["Entries"]:
            if refused:
                answer["Failed"].append(
                    {"Id": entry["Id"], "Code": "InternalError", "SenderFault": False}
                )
                continue
            body = entry["MessageBody"]
            self.server.queued.append((json.loads(body)["id"], body))
            digest = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
            answer["Successful"].append(
                {"Id": entry["Id"], "MessageId": entry["Id"], "MD5OfMessageBody": digest}
            )
        return answer

    def _put_events(self, request: dict[str, Any], refused: bool) -> dict[str, Any]:
        """The first entry alone is refused: EventBridge judges each by itself."""
        entries = []
        for place, entry in enumerate(request["Entries"]):
            if refused and place == 0:
                entries.append({"ErrorCode": "ThrottlingException", "ErrorMessage": "later"})
                continue
            self.server.put.append((json.loads(entry["Detail"])["id"], entry["Detail"]))
            entries.append({"EventId": str(len(self.server.put))})
        return {"FailedEntryCount": int(refused), "Entries": entries}

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Silent."""


def queue_event(body: str) -> dict[str, Any]:
    """What Lambda hands over for one message of a queue."""
    record = {
        "messageId": "1",
        "receiptHandle": "handle-1",
        "body": body,
        "attributes": {"ApproximateReceiveCount": "1"},
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": QUEUE_ARN,
        "awsRegion": "eu-central-1",
    }
    return {"Records": [record]}
