"""Settings: each variable missing, blank, wrong and at its bounds; every fault named at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sume_jobs.settings import (
    RECORD_SECONDS,
    Settings,
    SettingsError,
    is_header_value,
    parse_secrets,
)

LEAST = {"DATABASE_URL": "postgresql://localhost/app"}


def read(**environment: str) -> Settings:
    return Settings.from_environment({**LEAST, **environment})


def faults(**environment: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read(**environment)
    return str(caught.value)


DEFAULTS: dict[str, tuple[str, Any]] = {
    "DATABASE_SECRET_ARN": ("database_secret_arn", None),
    "DATABASE_HOST": ("database_host", None),
    "DATABASE_PORT": ("database_port", 5432),
    "DATABASE_NAME": ("database_name", None),
    "DATABASE_USER": ("database_user", None),
    "DATABASE_IAM_AUTH": ("database_iam_auth", False),
    "SUME_BASE_URL": ("sume_base_url", "https://api.sume.com"),
    "SUME_SUBMIT_PATH": ("sume_submit_path", "/v1/images"),
    "SUME_API_KEY": ("sume_api_key", None),
    "SUME_API_KEY_SECRET_ARN": ("sume_api_key_secret_arn", None),
    "SUME_TIMEOUT_SECONDS": ("sume_timeout", 20.0),
    "SUME_WEBHOOK_URL": ("webhook_url", None),
    "SUME_WEBHOOK_SECRETS": ("webhook_secrets", ()),
    "SUME_WEBHOOK_SECRETS_ARN": ("webhook_secrets_arn", None),
    "WEBHOOK_VERIFICATION": ("webhook_verification", "signature"),
    "WEBHOOK_TOLERANCE_SECONDS": ("webhook_tolerance", 300.0),
    "IDEMPOTENCY_PREFIX": ("idempotency_prefix", "render-job"),
    "IDEMPOTENCY_RETENTION_SECONDS": ("idempotency_retention", 86400),
    "SUME_WRITES_PER_MINUTE": ("writes_per_minute", 120),
    "SUME_READS_PER_MINUTE": ("reads_per_minute", 120),
    "SUBMIT_CONCURRENCY": ("submit_concurrency", 16),
    "SUBMIT_DAILY_LIMIT": ("daily_limit", 0),
    "ANOMALY_LIMIT": ("anomaly_limit", 3),
    "LINGER_SECONDS": ("linger", 0.0),
    "CLAIM_TIMEOUT_SECONDS": ("claim_timeout", 600),
    "MAX_ATTEMPTS": ("max_attempts", 8),
    "MAX_GENERATIONS": ("max_generations", 1),
    "IN_FLIGHT_DEADLINE_SECONDS": ("in_flight_deadline", 86400),
    "FOLLOW_UP_QUEUE_URL": ("follow_up_queue_url", None),
    "FOLLOW_UP_EVENT_BUS": ("follow_up_event_bus", None),
    "RETENTION_DAYS": ("retention_days", 30),
}


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("value", [None, "", " ", "\t\n"])
def test_missing_and_blank_mean_the_default(name: str, value: str | None) -> None:
    field, default = DEFAULTS[name]
    settings = read(**({} if value is None else {name: value}))
    assert getattr(settings, field) == default


WHOLE = {
    "DATABASE_PORT": (1, 65535),
    "IDEMPOTENCY_RETENTION_SECONDS": (1, 10**9),
    "SUME_WRITES_PER_MINUTE": (1, 10**7),
    "SUME_READS_PER_MINUTE": (1, 10**7),
    "SUBMIT_CONCURRENCY": (1, 200),
    "SUBMIT_DAILY_LIMIT": (0, 10**9),
    "ANOMALY_LIMIT": (0, 1000),
    "CLAIM_TIMEOUT_SECONDS": (int(20 + RECORD_SECONDS) + 1, 86400),
    "MAX_ATTEMPTS": (1, 1000),
    "MAX_GENERATIONS": (1, 100),
    "IN_FLIGHT_DEADLINE_SECONDS": (1, 10**8),
    "RETENTION_DAYS": (1, 36500),
}


@pytest.mark.parametrize(("name", "bounds"), WHOLE.items())
def test_whole_numbers(name: str, bounds: tuple[int, int]) -> None:
    field, _ = DEFAULTS[name]
    for value in bounds:
        assert getattr(read(**{name: f" {value} "}), field) == value
    wrong = ["-1", "1.5", "1e3", "ten", "0x10", "1 0", "+5", "\u0665", "9" * 30, "true"]
    for text in (*wrong, str(bounds[0] - 1), str(bounds[1] + 1)):
        assert name in faults(**{name: text}), text


NUMBERS = {
    "SUME_TIMEOUT_SECONDS": (0.1, 300.0),
    "WEBHOOK_TOLERANCE_SECONDS": (1.0, 86400.0),
    "LINGER_SECONDS": (0.0, 900.0),
}


@pytest.mark.parametrize(("name", "bounds"), NUMBERS.items())
def test_numbers(name: str, bounds: tuple[float, float]) -> None:
    field, _ = DEFAULTS[name]
    for value in (*bounds, 2.5):
        found = getattr(read(**{name: str(value), "CLAIM_TIMEOUT_SECONDS": "900"}), field)
        assert found == value
    for text in ("-1", "nan", "inf", "-inf", "ten", "1,5", str(bounds[1] + 1)):
        assert name in faults(**{name: text, "CLAIM_TIMEOUT_SECONDS": "900"}), text


def test_flags_and_words() -> None:
    host = {"DATABASE_HOST": "h", "DATABASE_NAME": "n", "DATABASE_USER": "u"}
    for word, value in (("true", True), ("1", True), ("YES", True), ("no", False), ("0", False)):
        assert read(DATABASE_IAM_AUTH=word, **host).database_iam_auth is value
    assert "DATABASE_IAM_AUTH" in faults(DATABASE_IAM_AUTH="on")
    assert read(WEBHOOK_VERIFICATION="Reread").webhook_verification == "reread"
    assert "WEBHOOK_VERIFICATION" in faults(WEBHOOK_VERIFICATION="none")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("https://api.sume.com/", "https://api.sume.com"),
        ("https://api.sume.com/v1", "https://api.sume.com"),
        ("https://api.sume.com/v1/", "https://api.sume.com"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://host/base", "https://host/base"),
    ],
)
def test_the_base_url_with_or_without_v1(value: str, expected: str) -> None:
    assert read(SUME_BASE_URL=value).sume_base_url == expected


@pytest.mark.parametrize("name", ["SUME_BASE_URL", "SUME_WEBHOOK_URL"])
@pytest.mark.parametrize(
    "value", ["api.sume.com", "ftp://host", "https://", "http://[", "https://é", "/v1", "x" * 3000]
)
def test_what_is_no_url(name: str, value: str) -> None:
    assert f"{name} must be an http(s) URL" in faults(**{name: value})


def test_paths_prefixes_and_headers() -> None:
    assert read(SUME_SUBMIT_PATH="/v1/videos").sume_submit_path == "/v1/videos"
    for value in ("v1/images", "/with space", "/é"):
        assert "SUME_SUBMIT_PATH" in faults(SUME_SUBMIT_PATH=value)
    assert read(IDEMPOTENCY_PREFIX="x" * 200).idempotency_prefix == "x" * 200
    for value in ("x" * 201, "a b", "é", "a\nb"):
        assert "IDEMPOTENCY_PREFIX" in faults(IDEMPOTENCY_PREFIX=value)
    assert read(SUME_API_KEY=" key\n").sume_api_key == "key"
    for value in ("a\nb", "é", "a\x7fb"):
        assert "SUME_API_KEY" in faults(SUME_API_KEY=value)


@pytest.mark.parametrize("text", ["a", "a b", "~", " "])
def test_a_header_value_is_printable_ascii(text: str) -> None:
    assert is_header_value(text)
    assert not is_header_value(text + "\n")
    assert not is_header_value(text + "é")


# ------------------------------------------------------------------------- together


def test_a_database_is_needed() -> None:
    with pytest.raises(SettingsError, match="no database: set DATABASE_URL"):
        Settings.from_environment({"DATABASE_URL": " "})
    for name in ("DATABASE_URL", "DATABASE_SECRET_ARN", "DATABASE_HOST"):
        Settings.from_environment({name: "x"})


@pytest.mark.parametrize("missing", ["DATABASE_HOST", "DATABASE_NAME", "DATABASE_USER"])
def test_iam_needs_host_name_and_user(missing: str) -> None:
    given = {"DATABASE_HOST": "h", "DATABASE_NAME": "n", "DATABASE_USER": "u"}
    assert read(DATABASE_IAM_AUTH="true", **given).database_iam_auth
    del given[missing]
    assert "DATABASE_IAM_AUTH=true needs" in faults(DATABASE_IAM_AUTH="true", **given)


def test_a_claim_must_outlive_its_request() -> None:
    least = int(60 + RECORD_SECONDS) + 1
    assert read(SUME_TIMEOUT_SECONDS="60", CLAIM_TIMEOUT_SECONDS=str(least)).claim_timeout == least
    message = faults(SUME_TIMEOUT_SECONDS="60", CLAIM_TIMEOUT_SECONDS=str(least - 1))
    assert "CLAIM_TIMEOUT_SECONDS" in message
    assert "must exceed SUME_TIMEOUT_SECONDS" in message


def test_every_fault_is_named_at_once_and_no_value_is_shown() -> None:
    wrong = {
        "DATABASE_PORT": "mark-1",
        "DATABASE_IAM_AUTH": "mark-2",
        "SUME_BASE_URL": "mark-3",
        "SUME_SUBMIT_PATH": "mark-4",
        "SUME_API_KEY": "mark-5\u00e9",
        "SUME_TIMEOUT_SECONDS": "mark-6",
        "SUME_WEBHOOK_URL": "mark-7",
        "WEBHOOK_VERIFICATION": "mark-8",
        "WEBHOOK_TOLERANCE_SECONDS": "mark-9",
        "IDEMPOTENCY_PREFIX": "mark 10",
        "IDEMPOTENCY_RETENTION_SECONDS": "mark-11",
        "SUME_WRITES_PER_MINUTE": "mark-12",
        "SUME_READS_PER_MINUTE": "mark-13",
        "SUBMIT_CONCURRENCY": "mark-14",
        "LINGER_SECONDS": "mark-15",
        "CLAIM_TIMEOUT_SECONDS": "mark-16",
        "MAX_ATTEMPTS": "mark-17",
        "MAX_GENERATIONS": "mark-18",
        "IN_FLIGHT_DEADLINE_SECONDS": "mark-19",
        "RETENTION_DAYS": "mark-20",
    }
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({**wrong, "SUME_WEBHOOK_SECRETS": "mark-21"})
    message = str(caught.value)
    assert [name for name in wrong if name not in message] == []
    assert "no database" in message
    assert "mark" not in message


def test_the_environment_of_others_does_not_matter() -> None:
    assert read(PATH="/bin", SUME_UNKNOWN="x") == read()


# ------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    ("value", "secrets"),
    [
        ("", ()),
        (" , ,", ()),
        ("one", ("one",)),
        (" one , two ", ("one", "two")),
        ("one,one", ("one",)),
        ('["one", "two", ""]', ("one", "two")),
        ('["with,comma"]', ("with,comma",)),
        ('{"current": "one", "previous": "two"}', ("one", "two")),
        ('{"all": ["one", "two"]}', ("one", "two")),
        ('{"n": 5, "o": {"deep": "x"}, "s": "one"}', ("one",)),
        ('"quoted"', ("quoted",)),
        ("null", ()),
        ("[]", ()),
        ("{}", ()),
        ("[null, 5]", ()),
        ("12345", ("12345",)),
        ("{not json", ("{not json",)),
    ],
)
def test_parsing_secrets(value: str, secrets: tuple[str, ...]) -> None:
    assert parse_secrets(value) == secrets


@given(st.text())
def test_a_parsed_secret_is_never_blank(value: str) -> None:
    found = parse_secrets(value)
    assert all(secret == secret.strip() != "" for secret in found)
    assert len(set(found)) == len(found)


def test_secrets_nested_without_end_are_no_json() -> None:
    assert len(parse_secrets("[" * 100_000)) == 1
