"""AWS on loopback: moto in server mode, one for the session, wiped for each test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import requests
from moto.server import ThreadedMotoServer

from tests.support.bundle import Bundle

REGION = "eu-central-1"
ACCOUNT = {
    "region_name": REGION,
    "aws_access_key_id": "testing",
    "aws_secret_access_key": "testing",
}


@dataclass
class Aws:
    """What a test sees of the targets."""

    url: str

    def client(self, service: str) -> Any:
        make: Any = boto3.client
        return make(service, endpoint_url=self.url, **ACCOUNT)

    def queue(self, name: str, **attributes: str) -> str:
        """Make a queue; its URL."""
        url: str = self.client("sqs").create_queue(QueueName=name, Attributes=attributes)[
            "QueueUrl"
        ]
        return url

    def received(self, url: str) -> list[dict[str, Any]]:
        """Take everything out of a queue."""
        client, found = self.client("sqs"), []
        while batch := client.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        ).get("Messages"):
            found += batch
            for message in batch:
                client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return found

    def events(self, url: str) -> list[dict[str, Any]]:
        """The bodies of everything in a queue."""
        return [json.loads(message["Body"]) for message in self.received(url)]

    def bus(self, name: str) -> str:
        """Make a bus whose events go to a queue; the queue's URL."""
        events, url = self.client("events"), self.queue(f"{name}-queue")
        events.create_event_bus(Name=name)
        events.put_rule(
            Name="all", EventBusName=name, EventPattern=json.dumps({"source": ["sume-jobs"]})
        )
        arn = f"arn:aws:sqs:{REGION}:123456789012:{name}-queue"
        events.put_targets(Rule="all", EventBusName=name, Targets=[{"Id": "1", "Arn": arn}])
        return url

    def bucket(self, name: str) -> str:
        self.client("s3").create_bucket(
            Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        return name

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Every object of a bucket."""
        client = self.client("s3")
        return {
            item["Key"]: client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            for item in client.list_objects_v2(Bucket=bucket).get("Contents", [])
        }


@pytest.fixture(scope="session")
def moto_server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws(moto_server: str) -> Aws:
    """An empty account."""
    requests.post(f"{moto_server}/moto-api/reset", timeout=10).raise_for_status()
    return Aws(moto_server)


@pytest.fixture
def at_aws(bundle: Bundle, aws: Aws) -> Bundle:
    """The deployment, with AWS's addresses on loopback."""
    bundle.set(AWS_ENDPOINT_URL=aws.url)
    return bundle
