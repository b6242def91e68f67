"""Secrets: cached, read anew when asked, and never in a message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sume_jobs import secrets as module
from sume_jobs.secrets import Secrets, SecretUnavailable
from sume_jobs.settings import Settings, SettingsError

ARN = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:name"


class Provider:
    """Stands in for the provider of Powertools: gives what it holds, or raises it."""

    def __init__(self, value: object) -> None:
        self.value = value
        self.calls: list[bool] = []

    def get(self, arn: str, max_age: int, force_fetch: bool) -> Any:
        assert arn == ARN
        assert max_age == module.CACHE_SECONDS
        self.calls.append(force_fetch)
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    stand_in = Provider("")
    monkeypatch.setattr(module, "_provider", lambda: stand_in)
    return stand_in


def test_the_api_key_from_the_environment() -> None:
    assert Secrets(Settings(sume_api_key="key")).api_key() == "key"


@pytest.mark.parametrize(
    ("content", "key"),
    [("key", "key"), (" key\n", "key"), ('{"api_key": "key"}', "key"), (b"key", "key")],
)
def test_the_api_key_from_its_secret(content: object, key: str, provider: Provider) -> None:
    provider.value = content
    settings = Settings(sume_api_key="ignored", sume_api_key_secret_arn=ARN)
    assert Secrets(settings).api_key() == key


def test_no_api_key(provider: Provider) -> None:
    with pytest.raises(SettingsError, match="SUME_API_KEY"):
        Secrets(Settings()).api_key()
    with pytest.raises(SettingsError, match="SUME_API_KEY"):
        Secrets(Settings(sume_api_key_secret_arn=ARN)).api_key()


def test_an_impossible_api_key_is_not_shown(provider: Provider) -> None:
    provider.value = "mark\u00e9"
    with pytest.raises(SettingsError) as caught:
        Secrets(Settings(sume_api_key_secret_arn=ARN)).api_key()
    assert "mark" not in str(caught.value)


def test_refresh_reads_past_the_cache(provider: Provider) -> None:
    provider.value = "key"
    secrets = Secrets(Settings(sume_api_key_secret_arn=ARN))
    secrets.api_key()
    secrets.api_key(refresh=True)
    assert provider.calls == [False, True]


def test_a_store_that_does_not_answer_is_named_without_its_words(provider: Provider) -> None:
    provider.value = RuntimeError("mark: the request was …")
    for read in (
        Secrets(Settings(sume_api_key_secret_arn=ARN)).api_key,
        Secrets(Settings(webhook_secrets_arn=ARN)).webhook_secrets,
        Secrets(Settings(database_secret_arn=ARN)).database,
    ):
        with pytest.raises(SecretUnavailable) as caught:
            read()
        assert "RuntimeError" in str(caught.value)
        assert ARN in str(caught.value)
        assert "mark" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_signing_secrets_of_both_sources(provider: Provider) -> None:
    provider.value = '["two", " "]'
    settings = Settings(webhook_secrets=("one",), webhook_secrets_arn=ARN)
    assert Secrets(settings).webhook_secrets() == ("one", "two")
    assert Secrets(Settings()).webhook_secrets() == ()


def test_anybody_can_force_a_read_of_the_signing_secrets_only_now_and_then(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.value = "one"
    secrets = Secrets(Settings(webhook_secrets_arn=ARN))
    for instant in (1000.0, 1001.0, 1004.9, 1005.0):
        monkeypatch.setattr(module.time, "monotonic", lambda now=instant: now)
        secrets.webhook_secrets(refresh=True)
    assert provider.calls == [True, False, False, True]


def test_the_database_secret(provider: Provider) -> None:
    provider.value = '{"host": "h", "port": 5432, "username": "u", "password": "p"}'
    secrets = Secrets(Settings(database_secret_arn=ARN))
    assert secrets.database() == {"host": "h", "port": "5432", "username": "u", "password": "p"}


@pytest.mark.parametrize("content", ["mark", "[]", '"mark"', "5", ""])
def test_a_database_secret_of_another_form_is_not_shown(content: str, provider: Provider) -> None:
    provider.value = content
    with pytest.raises(SettingsError) as caught:
        Secrets(Settings(database_secret_arn=ARN)).database()
    assert "mark" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_aws_sdk_is_loaded_with_the_first_secret_only(root: Path) -> None:
    program = (
        "import sys; from sume_jobs.secrets import Secrets;"
        "from sume_jobs.settings import Settings;"
        "Secrets(Settings(sume_api_key='key')).api_key();"
        "print([name for name in ('boto3', 'botocore') if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(root / "shared")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert run.stdout.strip() == "[]"
