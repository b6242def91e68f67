"""Signing in to the database as AWS has it: IAM tokens, secrets of RDS, verified certificates."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import certifi
import pytest
from sume_jobs import connection
from sume_jobs.connection import connection_parameters
from sume_jobs.secrets import Secrets
from sume_jobs.settings import Settings

from tests.support.bundle import Bundle
from tests.support.container import HandlerRaised

RDS_HOST = "shop.cluster-abc.eu-central-1.rds.amazonaws.com"
PROXY_HOST = "shop.proxy-abc.eu-central-1.rds.amazonaws.com"


class Doorman:
    """A Postgres server that asks for a password in clear text, remembers it and refuses it.

    `passwords` are those it was given, `users` the names they came with.
    """

    def __init__(self) -> None:
        self.passwords: list[str] = []
        self.users: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, client.makefile("rwb") as stream:
                self._meet(stream)

    def _meet(self, stream: Any) -> None:
        while True:
            (length, code) = struct.unpack("!II", stream.read(8))
            rest = stream.read(length - 8)
            if code == 196608:
                break
            stream.write(b"N")  # neither TLS nor GSS here
            stream.flush()
        fields = rest.split(b"\0")
        self.users.append(fields[fields.index(b"user") + 1].decode())
        stream.write(b"R" + struct.pack("!II", 8, 3))
        stream.flush()
        assert stream.read(1) == b"p"
        (length,) = struct.unpack("!I", stream.read(4))
        self.passwords.append(stream.read(length - 4).rstrip(b"\0").decode())
        words = b"SFATAL\0C28P01\0Mpassword authentication failed\0\0"
        stream.write(b"E" + struct.pack("!I", len(words) + 4) + words)
        stream.flush()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def doorman() -> Iterator[Doorman]:
    doorman = Doorman()
    yield doorman
    doorman.close()


def test_a_fresh_token_is_signed_for_each_connection(bundle: Bundle, doorman: Doorman) -> None:
    bundle.set(
        DATABASE_URL=None,
        DATABASE_HOST="127.0.0.1",
        DATABASE_PORT=doorman.port,
        DATABASE_NAME="shop",
        DATABASE_USER="sume_jobs",
        DATABASE_IAM_AUTH="true",
        AWS_ACCESS_KEY_ID="AKIAEXAMPLE",
        AWS_SECRET_ACCESS_KEY="example",
        AWS_DEFAULT_REGION="eu-central-1",
    )
    with pytest.raises(HandlerRaised, match="DatabaseUnavailable"):
        bundle.R()
    # A refused token is signed anew, once; a token is never kept.
    assert len(doorman.passwords) == 2
    assert set(doorman.users) == {"sume_jobs"}
    for token in doorman.passwords:
        parts = urlsplit("https://" + token)
        query = parse_qs(parts.query)
        assert (parts.hostname, parts.port) == ("127.0.0.1", doorman.port)
        assert query["Action"] == ["connect"]
        assert query["DBUser"] == ["sume_jobs"]
        assert query["X-Amz-Expires"] == ["900"]
        assert query["X-Amz-Credential"][0].startswith("AKIAEXAMPLE/")
        assert query["X-Amz-Credential"][0].endswith("/eu-central-1/rds-db/aws4_request")
        assert query["X-Amz-Signature"][0] not in bundle.output()


def parameters(host: str) -> dict[str, Any]:
    environment = {"DATABASE_HOST": host, "DATABASE_NAME": "shop", "DATABASE_USER": "sume_jobs"}
    settings = Settings.from_environment(environment)
    return connection_parameters(settings, Secrets(settings))


def test_a_server_that_is_not_here_is_verified() -> None:
    for host in (RDS_HOST, PROXY_HOST, "db.example.com"):
        assert parameters(host)["sslmode"] == "verify-full"


def test_public_certificates_are_looked_up_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Not in the folder that psycopg's own OpenSSL was built with, which Lambda does not have."""
    monkeypatch.setattr(connection, "RDS_CERTIFICATES", tmp_path / "none.pem")
    for host in (RDS_HOST, PROXY_HOST, "db.example.com"):
        found = parameters(host)["sslrootcert"]
        assert found == certifi.where()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(found)
    names = str([certificate["subject"] for certificate in context.get_ca_certs()])
    assert "Amazon Root CA 1" in names  # which signs RDS Proxy's


def test_rds_has_certificates_of_its_own_but_its_proxies_have_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    bundle = tmp_path / "rds-global-bundle.pem"
    bundle.touch()
    monkeypatch.setattr(connection, "RDS_CERTIFICATES", bundle)
    assert parameters(RDS_HOST)["sslrootcert"] == str(bundle)
    assert parameters(PROXY_HOST)["sslrootcert"] == certifi.where()
