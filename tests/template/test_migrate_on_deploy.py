"""functions/migrate answers CloudFormation: it is told the end of the work, whatever that is."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.bundle import Bundle
from tests.support.container import HandlerRaised
from tests.support.postgres import Database

SIGNED = "X-Amz-Signature=abcdef"


class CloudFormation:
    """Where answers are put: `answers` holds them, `refuse` counts down requests answered 503."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.types: list[str | None] = []
        self.refuse = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if outer.refuse:
                    outer.refuse -= 1
                    self.send_response(503)
                else:
                    outer.answers.append(json.loads(body))
                    outer.types.append(self.headers.get("content-type"))
                    self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def request(self, kind: str, **properties: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._server.server_port}/answer?{SIGNED}"
        event = {
            "RequestType": kind,
            "ResponseURL": url,
            "StackId": "arn:aws:cloudformation:eu-central-1:123456789012:stack/shop/1",
            "RequestId": "request-1",
            "LogicalResourceId": "Schema",
            "ResourceType": "Custom::Schema",
            "ResourceProperties": {"ServiceToken": "arn", "Layer": "arn:2", **properties},
        }
        if kind != "Create":
            event["PhysicalResourceId"] = "sume-jobs-schema"
        return event

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def cloudformation() -> Iterator[CloudFormation]:
    server = CloudFormation()
    yield server
    server.close()


def tables(database: Database) -> int:
    found: int = database.one(
        "select count(*) from pg_tables where tablename in ('render_jobs', 'gen_job')"
    )
    return found


def test_creating_the_stack_applies_the_schema(
    make_bundle: Callable[..., Bundle],
    empty_database: Database,
    fake: object,
    cloudformation: CloudFormation,
) -> None:
    bundle = make_bundle(empty_database, fake)
    bundle.warm("migrate").invoke("migrate", cloudformation.request("Create"))
    assert cloudformation.answers == [
        {
            "Status": "SUCCESS",
            "PhysicalResourceId": "sume-jobs-schema",
            "StackId": "arn:aws:cloudformation:eu-central-1:123456789012:stack/shop/1",
            "RequestId": "request-1",
            "LogicalResourceId": "Schema",
        }
    ]
    assert cloudformation.types == [""]
    assert tables(empty_database) == 2
    assert SIGNED not in bundle.output()


def test_it_can_be_left_to_a_person(
    make_bundle: Callable[..., Bundle],
    empty_database: Database,
    fake: object,
    cloudformation: CloudFormation,
) -> None:
    bundle = make_bundle(empty_database, fake)
    bundle.warm("migrate").invoke("migrate", cloudformation.request("Create", Enabled="false"))
    assert cloudformation.answers[0]["Status"] == "SUCCESS"
    assert tables(empty_database) == 0


def test_deleting_the_stack_leaves_the_database_alone(
    bundle: Bundle, cloudformation: CloudFormation
) -> None:
    bundle.database.insert_many(1, "a lighthouse")
    bundle.warm("migrate").invoke("migrate", cloudformation.request("Delete"))
    assert cloudformation.answers[0]["Status"] == "SUCCESS"
    assert len(bundle.database.rows()) == 1
    # Even where nothing is left that could be connected to.
    bundle.set(DATABASE_URL="postgresql://nobody@127.0.0.1:9/none")
    bundle.warm("migrate").invoke("migrate", cloudformation.request("Delete"))
    assert cloudformation.answers[1]["Status"] == "SUCCESS"


def test_a_failure_is_told_at_once_and_with_its_reason(
    bundle: Bundle, cloudformation: CloudFormation
) -> None:
    bundle.set(DATABASE_URL="postgresql://nobody:hunter2@127.0.0.1:9/none")
    bundle.warm("migrate").invoke("migrate", cloudformation.request("Create"))
    (answer,) = cloudformation.answers
    assert answer["Status"] == "FAILED"
    assert answer["Reason"].startswith("DatabaseUnavailable: cannot connect")
    assert "hunter2" not in json.dumps(answer) + bundle.output()
    assert SIGNED not in bundle.output()


def test_code_that_is_taken_back_meets_a_newer_database(
    bundle: Bundle, cloudformation: CloudFormation
) -> None:
    """A deployment that rolls back must not fail a second time; anybody else is refused."""
    bundle.database.execute(
        "insert into sume_jobs_migration (version, name, sha256) values (9999, 'later', '')"
    )
    container = bundle.warm("migrate")
    container.invoke("migrate", cloudformation.request("Update"))
    container.invoke("migrate", cloudformation.request("Create"))
    assert [answer["Status"] for answer in cloudformation.answers] == ["SUCCESS", "FAILED"]
    assert "deploy the newer code" in cloudformation.answers[1]["Reason"]
    with pytest.raises(HandlerRaised, match="DatabaseIsNewer"):
        container.invoke("migrate", {})


def test_a_lost_answer_is_sent_again(bundle: Bundle, cloudformation: CloudFormation) -> None:
    cloudformation.refuse = 1
    container = bundle.warm("migrate")
    container.invoke("migrate", cloudformation.request("Update"))
    assert len(cloudformation.answers) == 1


def test_where_cloudformation_cannot_be_reached_the_run_fails(bundle: Bundle) -> None:
    event = CloudFormation().request("Update")
    event["ResponseURL"] = f"http://127.0.0.1:9/answer?{SIGNED}"
    with pytest.raises(HandlerRaised, match="needs a way out to S3"):
        bundle.warm("migrate").invoke("migrate", event)
    assert SIGNED not in bundle.output()


def test_an_event_of_anybody_else_gives_the_names(bundle: Bundle) -> None:
    assert bundle.warm("migrate").invoke("migrate", {}) == {"applied": []}
