"""The doctor's look at settings and secrets: needs neither the database nor Sume.

No value is ever shown: a variable's value may be a secret that was put into the wrong one.
"""

from __future__ import annotations

import difflib
import re
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sume_jobs.decisions import signature
from sume_jobs.flows.webhook import read_delivery
from sume_jobs.secrets import Secrets, SecretUnavailable
from sume_jobs.settings import Settings, SettingsError

from local.command_line.doctor_finding import Finding, number, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Variables that begin so are meant for this bundle; others are where they look like one of its own.
PREFIXES: Final = (
    "SUME_",
    "SUBMIT_",
    "WEBHOOK_",
    "IDEMPOTENCY_",
    "FOLLOW_UP_",
    "CLAIM_",
    "IN_FLIGHT_",
    "ARCHIVE_",
    "RETENTION_",
)
# How like a known name another must be to be taken for a slip of the pen.
LIKENESS: Final = 0.88
# What Sume's documentation says a key may write in a minute: Free, Pro (sume-api 8).
FREE_WRITES: Final = 120
PRO_WRITES: Final = 300


class _Asked(dict[str, str]):
    """An environment that remembers which variables it was asked for."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(environment)
        self.names: set[str] = set()

    def get(self, name: str, default: str | None = None) -> str:  # type: ignore[override]
        self.names.add(name)
        return super().get(name, default or "")


def known_variables() -> set[str]:
    """Name every variable that the settings read."""
    asked = _Asked({"DATABASE_URL": "postgresql:///"})
    Settings.from_environment(asked)
    return asked.names


def usable_settings(environment: Mapping[str, str]) -> Settings | None:
    """Read the settings, the default in the place of what is wrong; None without a database."""
    left = dict(environment)
    while True:
        try:
            return Settings.from_environment(left)
        except SettingsError as error:
            named = {name for name in left if re.search(rf"\b{re.escape(name)}\b", str(error))}
            if not named or "no database" in str(error):
                return None
            for name in named:
                del left[name]


def check_settings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Look at every variable: wrong ones, unknown ones that look like known ones, bad company."""
    known = known_variables()
    given = sorted(name for name in known if environment.get(name, "").strip())
    try:
        Settings.from_environment(environment)
    except SettingsError as error:
        for fault in str(error).removeprefix("wrong settings: ").split("; "):
            yield problem("settings", fault, "correct the variable; every function refuses to run")
    else:
        shown = ", ".join(given)
        yield ok("settings", f"{number(len(given), 'variable')} given, all valid: {shown}")
    for name in sorted(set(environment) - known):
        if like := _looks_like(name, known):
            yield warning(
                "settings",
                f"{name} is set, but nothing reads it",
                f"did you mean {like}? Rename it, or remove it",
            )
    settings = usable_settings(environment)
    if settings is not None:
        yield from _company(settings)


def _looks_like(name: str, known: set[str]) -> str | None:
    close = difflib.get_close_matches(name.upper(), sorted(known), 1, LIKENESS)
    if not close and name.startswith(PREFIXES):
        close = difflib.get_close_matches(name, sorted(known), 1, 0.0)
    return close[0] if close else None


def _company(settings: Settings) -> Iterator[Finding]:
    """Settings that are valid alone and wrong together, or with what the public API says."""
    if _is_open(settings.sume_base_url):
        yield problem(
            "settings",
            "SUME_BASE_URL is plain http, so the API key travels unencrypted",
            "use https",
        )
    if settings.webhook_url and _is_open(settings.webhook_url):
        yield warning(
            "settings",
            "SUME_WEBHOOK_URL is plain http, and Sume delivers to public https hosts only",
            "use the https address of the stack's output WebhookUrl",
        )
    if settings.writes_per_minute > FREE_WRITES:
        plan = "the Pro plan" if settings.writes_per_minute <= PRO_WRITES else "no documented plan"
        yield warning(
            "budget",
            f"SUME_WRITES_PER_MINUTE is {settings.writes_per_minute}, which {plan} allows "
            f"(Sume documents {FREE_WRITES} for Free and {PRO_WRITES} for Pro, and no harmless "
            "call tells this key's own limit)",
            "compare it with the plan of this key; above it Sume answers 429 and the gate closes",
        )
    else:
        yield ok(
            "budget",
            f"SUME_WRITES_PER_MINUTE is {settings.writes_per_minute}, within what every documented "
            "plan allows",
        )


def _is_open(url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_here = host in ("localhost", "::1") or host.startswith("127.")
    return parts.scheme == "http" and not is_here


def check_secrets(settings: Settings, secrets: Secrets) -> Iterator[Finding]:
    """Read every secret that is named, and tell only whether that worked."""
    try:
        secrets.api_key()
    except (SettingsError, SecretUnavailable) as error:
        yield problem("secrets", f"the API key cannot be read: {error}", "mend it; nothing is sent")
    else:
        yield ok("secrets", f"the API key is readable ({_from(settings.sume_api_key_secret_arn)})")
    if settings.database_secret_arn:
        try:
            secrets.database()
        except (SettingsError, SecretUnavailable) as error:
            yield problem("secrets", f"the database's secret cannot be read: {error}", "mend it")
        else:
            yield ok("secrets", "the database's secret is readable")


def _from(arn: str | None) -> str:
    return f"from {arn}" if arn else "from the environment"


def check_signature(settings: Settings, secrets: Secrets) -> Iterator[Finding]:
    """Sign a delivery with each secret and let the webhook's own code read and verify it."""
    try:
        configured = secrets.webhook_secrets()
    except SecretUnavailable as error:
        yield problem(
            "webhook signature",
            f"the signing secrets cannot be read: {error}",
            "mend it; until then Sume is answered 503 and polling carries the results",
        )
        return
    if not configured:
        unsigned = settings.webhook_verification == "reread"
        if settings.webhook_url and not unsigned:
            yield problem(
                "webhook signature",
                "SUME_WEBHOOK_URL asks for webhooks, but there is no secret to verify them with",
                "set SUME_WEBHOOK_SECRETS or SUME_WEBHOOK_SECRETS_ARN; until then each delivery "
                "is answered 401",
            )
        else:
            yield ok(
                "webhook signature",
                "no signing secret: deliveries are hints to read the job again"
                if unsigned
                else "no webhook is asked for: polling alone carries the results",
            )
        return
    refused = [n for n, secret in enumerate(configured, 1) if not _round_trip(secret, settings)]
    if refused:
        numbers = ", ".join(map(str, refused))
        yield problem(
            "webhook signature",
            f"a delivery signed with secret {numbers} of {len(configured)} does not verify, or a "
            "changed one does",
            "this is a fault of the bundle: report it, and rely on polling meanwhile",
        )
    else:
        yield ok(
            "webhook signature",
            f"a delivery signed with each of {number(len(configured), 'secret')} verifies; with "
            "another body, another secret or an old timestamp it does not",
        )


def _round_trip(secret: str, settings: Settings) -> bool:
    """Whether the verifier takes what the secret signs, and nothing else."""
    now = time.time()
    old = now - settings.webhook_tolerance - 60
    body = b'{"id": "evt_doctor", "type": "doctor.round_trip"}'
    good = _verifies(body, body, secret, (secret,), now, settings)
    tampered = _verifies(body, body + b" ", secret, (secret,), now, settings)
    foreign = _verifies(body, body, secret + "x", (secret,), now, settings)
    late = _verifies(body, body, secret, (secret,), old, settings)
    return good and not (tampered or foreign or late)


def _verifies(
    signed: bytes,
    sent: bytes,
    secret: str,
    configured: tuple[str, ...],
    at: float,
    settings: Settings,
) -> bool:
    # As API Gateway hands it on, so that reading the event is part of the round trip.
    stamp = str(int(at))
    delivery = read_delivery(
        {
            "version": "2.0",
            "headers": {
                signature.TIMESTAMP_HEADER: stamp,
                signature.SIGNATURE_HEADER: signature.sign(stamp, signed, secret),
            },
            "body": sent.decode(),
            "isBase64Encoded": False,
        }
    )
    return signature.verify(
        delivery.body,
        delivery.timestamp,
        delivery.signature,
        configured,
        time.time(),
        settings.webhook_tolerance,
    )
