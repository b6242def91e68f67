"""Settings from the environment: typed, validated, every fault named at once."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

# Besides the HTTP call a claim needs time to be recorded, also on a fresh connection.
RECORD_SECONDS: Final = 3.0

PREFIX: Final = re.compile(r"[!-~]{1,200}", re.ASCII)


class SettingsError(ValueError):
    """One or more environment variables are missing or wrong; the message names each."""


class Settings(NamedTuple):
    """Everything a function reads from its environment. Times are in seconds."""

    database_url: str | None = None
    database_secret_arn: str | None = None
    database_host: str | None = None
    database_port: int = 5432
    database_name: str | None = None
    database_user: str | None = None
    database_iam_auth: bool = False

    sume_base_url: str = "https://api.sume.com"
    sume_submit_path: str = "/v1/images"
    sume_api_key: str | None = None
    sume_api_key_secret_arn: str | None = None
    sume_timeout: float = 20.0

    webhook_url: str | None = None
    webhook_secrets: tuple[str, ...] = ()
    webhook_secrets_arn: str | None = None
    webhook_verification: str = "signature"
    webhook_tolerance: float = 300.0

    idempotency_prefix: str = "render-job"
    idempotency_retention: int = 86400
    writes_per_minute: int = 120
    reads_per_minute: int = 120
    submit_concurrency: int = 16
    daily_limit: int = 0
    anomaly_limit: int = 3
    linger: float = 0.0
    claim_timeout: int = 600
    max_attempts: int = 8
    max_generations: int = 1
    in_flight_deadline: int = 86400
    follow_up_queue_url: str | None = None
    follow_up_event_bus: str | None = None
    archive_bucket: str | None = None
    archive_max_bytes: int = 250 * 1024 * 1024
    retention_days: int = 30

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read and check the environment. Raises SettingsError, which lists every fault."""
        read = _Reader(environment)
        settings = cls(
            database_url=read.text("DATABASE_URL"),
            database_secret_arn=read.text("DATABASE_SECRET_ARN"),
            database_host=read.text("DATABASE_HOST"),
            database_port=read.whole("DATABASE_PORT", 5432, 1, 65535),
            database_name=read.text("DATABASE_NAME"),
            database_user=read.text("DATABASE_USER"),
            database_iam_auth=read.flag("DATABASE_IAM_AUTH"),
            sume_base_url=read.base_url("SUME_BASE_URL", "https://api.sume.com"),
            sume_submit_path=read.path("SUME_SUBMIT_PATH", "/v1/images"),
            sume_api_key=read.header("SUME_API_KEY"),
            sume_api_key_secret_arn=read.text("SUME_API_KEY_SECRET_ARN"),
            sume_timeout=read.number("SUME_TIMEOUT_SECONDS", 20.0, 0.1, 300.0),
            webhook_url=read.url("SUME_WEBHOOK_URL"),
            webhook_secrets=parse_secrets(read.text("SUME_WEBHOOK_SECRETS") or ""),
            webhook_secrets_arn=read.text("SUME_WEBHOOK_SECRETS_ARN"),
            webhook_verification=read.word(
                "WEBHOOK_VERIFICATION", "signature", ("signature", "reread")
            ),
            webhook_tolerance=read.number("WEBHOOK_TOLERANCE_SECONDS", 300.0, 1.0, 86400.0),
            idempotency_prefix=read.prefix("IDEMPOTENCY_PREFIX", "render-job"),
            idempotency_retention=read.whole("IDEMPOTENCY_RETENTION_SECONDS", 86400, 1, 10**9),
            writes_per_minute=read.whole("SUME_WRITES_PER_MINUTE", 120, 1, 10**7),
            reads_per_minute=read.whole("SUME_READS_PER_MINUTE", 120, 1, 10**7),
            submit_concurrency=read.whole("SUBMIT_CONCURRENCY", 16, 1, 200),
            daily_limit=read.whole("SUBMIT_DAILY_LIMIT", 0, 0, 10**9),
            anomaly_limit=read.whole("ANOMALY_LIMIT", 3, 0, 1000),
            linger=read.number("LINGER_SECONDS", 0.0, 0.0, 900.0),
            claim_timeout=read.whole("CLAIM_TIMEOUT_SECONDS", 600, 1, 86400),
            max_attempts=read.whole("MAX_ATTEMPTS", 8, 1, 1000),
            max_generations=read.whole("MAX_GENERATIONS", 1, 1, 100),
            in_flight_deadline=read.whole("IN_FLIGHT_DEADLINE_SECONDS", 86400, 1, 10**8),
            follow_up_queue_url=read.text("FOLLOW_UP_QUEUE_URL"),
            follow_up_event_bus=read.text("FOLLOW_UP_EVENT_BUS"),
            archive_bucket=read.text("ARCHIVE_BUCKET"),
            archive_max_bytes=read.whole("ARCHIVE_MAX_BYTES", 250 * 1024 * 1024, 1, 5 * 10**12),
            retention_days=read.whole("RETENTION_DAYS", 30, 1, 36500),
        )
        read.faults += settings._faults_together()
        if read.faults:
            raise SettingsError("wrong settings: " + "; ".join(read.faults))
        return settings

    @property
    def has_target(self) -> bool:
        """Whether follow-ups are handed on to anywhere (`targets.names` tells where to)."""
        return bool(self.follow_up_queue_url or self.follow_up_event_bus)

    def _faults_together(self) -> list[str]:
        faults = []
        if not (self.database_url or self.database_secret_arn or self.database_host):
            faults.append(
                "no database: set DATABASE_URL, or DATABASE_SECRET_ARN, or DATABASE_HOST with "
                "DATABASE_NAME, DATABASE_USER and DATABASE_IAM_AUTH=true"
            )
        if self.database_iam_auth and not (
            self.database_host and self.database_name and self.database_user
        ):
            faults.append(
                "DATABASE_IAM_AUTH=true needs DATABASE_HOST, DATABASE_NAME and DATABASE_USER"
            )
        if self.claim_timeout <= self.sume_timeout + RECORD_SECONDS:
            faults.append(
                f"CLAIM_TIMEOUT_SECONDS={self.claim_timeout} must exceed SUME_TIMEOUT_SECONDS + "
                f"{RECORD_SECONDS:g} s, or a claim is reaped while its request is still running"
            )
        return faults


def parse_secrets(value: str) -> tuple[str, ...]:
    """Read secrets from a comma-separated list, a JSON list or a JSON object; blanks are dropped.

    A secret of Secrets Manager made in its console is an object: its values are the secrets.
    """
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        parsed = list(parsed.values())
    elif isinstance(parsed, str) or value.strip() == "null":
        parsed = [parsed]
    if isinstance(parsed, list):
        flat = [part for item in parsed for part in (item if isinstance(item, list) else [item])]
        candidates = [item for item in flat if isinstance(item, str)]
    else:
        candidates = value.split(",")
    return tuple(dict.fromkeys(item.strip() for item in candidates if item.strip()))


class _Reader:
    """Reads one variable at a time and collects what is wrong, without showing any value."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.faults: list[str] = []

    def text(self, name: str) -> str | None:
        return self.environment.get(name, "").strip() or None

    def _parsed(self, name: str, default: T, parse: Callable[[str], T | None], expected: str) -> T:
        value = self.text(name)
        if value is None:
            return default
        try:
            parsed = parse(value)
        except ValueError:
            parsed = None
        if parsed is None:
            self.faults.append(f"{name} must be {expected}")
            return default
        return parsed

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        def parse(value: str) -> int | None:
            if not re.fullmatch(r"[0-9]{1,12}", value, re.ASCII):
                return None
            return int(value) if least <= int(value) <= most else None

        return self._parsed(name, default, parse, f"a whole number from {least} to {most}")

    def number(self, name: str, default: float, least: float, most: float) -> float:
        def parse(value: str) -> float | None:
            return float(value) if least <= float(value) <= most else None

        return self._parsed(name, default, parse, f"a number from {least:g} to {most:g}")

    def flag(self, name: str) -> bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        return self._parsed(name, False, lambda value: words.get(value.lower()), "true or false")

    def word(self, name: str, default: str, words: tuple[str, ...]) -> str:
        def parse(value: str) -> str | None:
            return value.lower() if value.lower() in words else None

        return self._parsed(name, default, parse, "one of " + ", ".join(words))

    def url(self, name: str) -> str | None:
        def parse(value: str) -> str | None:
            parts = urlsplit(value)
            plain = parts.scheme in ("http", "https") and parts.hostname
            return value if plain and value.isascii() and len(value) <= 2000 else None

        value = self.text(name)
        return self._parsed(name, value, parse, "an http(s) URL") if value else None

    def base_url(self, name: str, default: str) -> str:
        # Accepted with or without the /v1 that the paths begin with.
        value = (self.url(name) or default).rstrip("/")
        return value.removesuffix("/v1")

    def path(self, name: str, default: str) -> str:
        def parse(value: str) -> str | None:
            return value if re.fullmatch(r"/[!-~]*", value, re.ASCII) else None

        return self._parsed(name, default, parse, "a path that starts with /")

    def header(self, name: str) -> str | None:
        value = self.text(name)
        if value is None or is_header_value(value):
            return value
        self.faults.append(f"{name} holds characters that no HTTP header can carry")
        return None

    def prefix(self, name: str, default: str) -> str:
        def parse(value: str) -> str | None:
            return value if PREFIX.fullmatch(value) else None

        return self._parsed(name, default, parse, "1 to 200 printable ASCII characters, no space")


def is_header_value(value: str) -> bool:
    """Tell whether the text can be sent in an HTTP header as it is: printable ASCII."""
    return re.fullmatch(r"[ -~]+", value, re.ASCII) is not None
