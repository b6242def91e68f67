"""Secrets as Secrets Manager has them (moto in server mode): found, kept, rotated, missing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from local.fake_sume import Behaviour
from tests.support.bundle import SECRET, Bundle
from tests.support.container import HandlerRaised

REGION = "eu-central-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
}


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """The address of AWS."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def manager(aws: str) -> Any:
    return boto3.client(
        "secretsmanager",
        endpoint_url=aws,
        region_name=REGION,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


def secret(manager: Any, text: str) -> str:
    name = f"secret-{time.monotonic_ns()}"
    arn: str = manager.create_secret(Name=name, SecretString=text)["ARN"]
    return arn


def database_secret(bundle: Bundle, **changes: Any) -> str:
    """What RDS writes for its database."""
    parts = bundle.database.server.parts()
    content = {
        "engine": "postgres",
        "host": parts["host"],
        "port": int(parts["port"]),
        "username": "sume_app",
        "password": parts.get("password") or "not asked for here",
        "dbname": bundle.database.name,
    }
    return json.dumps({**content, **changes})


def test_a_row_goes_all_the_way_with_nothing_but_addresses_of_secrets(
    bundle: Bundle, manager: Any, aws: str
) -> None:
    bundle.set(
        DATABASE_URL=None,
        SUME_API_KEY=None,
        SUME_WEBHOOK_SECRETS=None,
        DATABASE_SECRET_ARN=secret(manager, database_secret(bundle)),
        SUME_API_KEY_SECRET_ARN=secret(manager, "sume_key_from_the_store"),
        SUME_WEBHOOK_SECRETS_ARN=secret(manager, json.dumps([SECRET, "whsec_next"])),
        AWS_ENDPOINT_URL=aws,
        **CREDENTIALS,
    )
    row, job = bundle.job()
    (post,) = bundle.fake.posts()
    assert post.headers["authorization"] == "Bearer sume_key_from_the_store"
    bundle.fake.set_status(job, "completed")
    assert bundle.W(bundle.fake.webhook_body(job)).status == 200
    bundle.poll_now()
    assert bundle.database.state(row) == "done"
    for kept in ("sume_key_from_the_store", SECRET, "not asked for here"):
        assert kept not in bundle.output()


def test_a_secret_that_rds_manages_holds_only_the_credentials(
    bundle: Bundle, manager: Any, aws: str
) -> None:
    """Host, port and database come from the template then."""
    parts = bundle.database.server.parts()
    content = json.loads(database_secret(bundle))
    managed = {name: content[name] for name in ("username", "password")}
    bundle.set(
        DATABASE_URL=None,
        DATABASE_SECRET_ARN=secret(manager, json.dumps(managed)),
        DATABASE_HOST=parts["host"],
        DATABASE_PORT=parts["port"],
        DATABASE_NAME=bundle.database.name,
        AWS_ENDPOINT_URL=aws,
        **CREDENTIALS,
    )
    assert bundle.R()["reaped"] == 0


def test_a_rotated_api_key_is_read_anew(bundle: Bundle, manager: Any, aws: str) -> None:
    arn = secret(manager, "sume_key_old")
    bundle.set(SUME_API_KEY=None, SUME_API_KEY_SECRET_ARN=arn, AWS_ENDPOINT_URL=aws, **CREDENTIALS)
    bundle.job()
    manager.put_secret_value(SecretId=arn, SecretString="sume_key_new")
    bundle.fake.on_submit(Behaviour(status=401))
    (row,) = bundle.database.insert_many(1, "a second lighthouse")
    bundle.D()
    bundle.submit_later()
    assert bundle.database.row(row)["sume_job_id"]
    assert bundle.fake.posts()[-1].headers["authorization"] == "Bearer sume_key_new"


def test_a_secret_that_is_not_there_is_named_and_claims_nothing(
    bundle: Bundle, manager: Any, aws: str
) -> None:
    arn = secret(manager, "x")
    manager.delete_secret(SecretId=arn, ForceDeleteWithoutRecovery=True)
    bundle.set(SUME_API_KEY=None, SUME_API_KEY_SECRET_ARN=arn, AWS_ENDPOINT_URL=aws, **CREDENTIALS)
    (row,) = bundle.database.insert_many(1, "a lighthouse")
    with pytest.raises(HandlerRaised, match=r"SecretUnavailable.*permission"):
        bundle.D()
    assert bundle.database.row(row)["status"] == "pending"
    assert bundle.database.row(row)["attempts"] == 0
    bundle.set(
        SUME_WEBHOOK_SECRETS=None, SUME_WEBHOOK_SECRETS_ARN=arn, AWS_ENDPOINT_URL=aws, **CREDENTIALS
    )
    answer = bundle.W(b'{"id": "evt_1"}', good=False)
    assert answer.status == 503
