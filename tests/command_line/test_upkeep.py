"""prune and sign-event."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from sume_jobs.decisions.signature import sign, verify

from local.sign_events import EVENTS, SAMPLE_SECRET
from tests.command_line.conftest import Ran
from tests.support.bundle import Bundle, event_body
from tests.support.postgres import Database

Run = Callable[..., Ran]


@pytest.fixture
def old(bundle: Bundle, database: Database) -> int:
    """A row that ended long ago, with its webhook event; beside it a fresh one."""
    row, job = bundle.job()
    bundle.W(event_body(job, "completed"))
    database.execute("update follow_up set dispatched_at = now()")
    database.age("40 days")
    database.insert_many(1)
    return row


def test_prune_tells_first_and_deletes_only_with_a_yes(
    run: Run, database: Database, old: int
) -> None:
    dry = run("prune", "--dry-run", "--json")
    assert dry.document["rows_found"] == 1
    asked = run("prune")
    assert asked.status == 2
    assert "1 rows ended more than 30 days ago" in asked.said
    assert len(database.rows()) == 2
    assert run("prune", "--days", "60", "--yes", "--json").document["rows_deleted"] == 0
    ran = run("prune", "--yes", "--json")
    assert ran.document == {
        "days": 30, "rows_found": 1, "rows_deleted": 1, "webhook_events_deleted": 1,
    }  # fmt: skip
    assert old not in [row["id"] for row in database.rows()]
    assert run("prune", "--yes").output == "0 rows and 0 webhook events deleted.\n"


def test_what_would_go_is_counted_over_batches(
    run: Run, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sume_jobs.store import retention

    monkeypatch.setattr(retention, "BATCH", 2)
    database.insert_many(5)
    database.execute("update render_jobs set cancel_requested_at = now() where id <> 3")
    database.age("40 days")
    assert run("prune", "--dry-run", "--json").document["rows_found"] == 4
    assert run("prune", "--yes", "--json").document["rows_deleted"] == 4


# ------------------------------------------------------------------------- sign-event


def test_a_body_is_signed_as_sume_signs(
    run_anywhere: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUME_WEBHOOK_SECRETS", "whsec_first,whsec_second")
    path = tmp_path / "body.json"
    path.write_bytes(b'{"id":  "evt_1"}')
    headers = run_anywhere("sign-event", str(path), "--json").document["headers"]
    stamp = headers["x-sume-timestamp"]
    assert headers["x-sume-signature"] == sign(stamp, path.read_bytes(), "whsec_first")
    assert "x-sume-signature: v1=" in run_anywhere("sign-event", str(path)).output
    typed = run_anywhere("sign-event", "-", "--json", typed='{"id":  "evt_1"}').document
    assert typed["body"] == '{"id":  "evt_1"}'


def test_an_event_of_api_gateway_is_signed_whole(run_anywhere: Run) -> None:
    ran = run_anywhere("sign-event", str(EVENTS / "webhook_base64.json"))
    event = json.loads(ran.output)
    sample = json.loads((EVENTS / "webhook_base64.json").read_text())
    assert event["body"] == sample["body"]
    assert event["headers"] != sample["headers"]


def test_a_signed_body_is_sent_and_taken(
    run_anywhere: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUME_WEBHOOK_SECRETS", raising=False)
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append((dict(self.headers), body))
            self.send_response(200 if len(seen) == 1 else 401)
            self.end_headers()
            self.wfile.write(b'{"outcome": "applied"}')

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    path = tmp_path / "body.json"
    path.write_text('{"id": "evt_1"}')
    url = f"http://127.0.0.1:{server.server_port}/webhooks/sume"
    try:
        first = run_anywhere("sign-event", str(path), "--send", url)
        second = run_anywhere("sign-event", str(path), "--send", url, "--age", "600", "--json")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert first.status == 0
    assert "applied" in first.output
    assert second.status == 1
    assert second.document["status"] == 401
    (headers, body), _ = seen
    lowered = {name.lower(): value for name, value in headers.items()}
    stamp, signature = lowered["x-sume-timestamp"], lowered["x-sume-signature"]
    assert verify(body, stamp, signature, [SAMPLE_SECRET], int(stamp), 300)


def test_what_cannot_be_read_or_reached_is_told(run_anywhere: Run, tmp_path: Path) -> None:
    ran = run_anywhere("sign-event", str(tmp_path / "nothing.json"))
    assert ran.status == 2
    assert "cannot be read" in ran.said
    path = tmp_path / "body.json"
    path.write_text("{}")
    ran = run_anywhere("sign-event", str(path), "--send", "http://127.0.0.1:1/")
    assert ran.status == 1
    assert "does not answer" in ran.said
    ran = run_anywhere("sign-event", str(path), "--send", "bundle")
    assert ran.status == 2
    assert "./sume-jobs up" in ran.said
