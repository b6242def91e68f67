"""Secrets from AWS Secrets Manager, cached for a few minutes and read anew when refused.

Only ARNs stand in the environment. boto3 is imported when the first secret is needed.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from sume_jobs.settings import SettingsError, is_header_value, parse_secrets

if TYPE_CHECKING:
    from sume_jobs.settings import Settings

CACHE_SECONDS: Final = 300
FORCED_READ_SECONDS: Final = 5.0


class SecretUnavailable(RuntimeError):
    """The secret store did not give the secret; the message names the secret, never its value."""


class Secrets:
    """The secrets of one function. `refresh` reads past the cache (rotation, refusal)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._provider: Any = None
        self._signing_read_at = -FORCED_READ_SECONDS

    def api_key(self, refresh: bool = False) -> str:
        """Give the Sume API key. Raises SettingsError without one, SecretUnavailable."""
        settings = self._settings
        key = settings.sume_api_key
        if settings.sume_api_key_secret_arn:
            found = parse_secrets(self._read(settings.sume_api_key_secret_arn, refresh))
            key = found[0] if found else None
        if not key:
            raise SettingsError(
                "no Sume API key: set SUME_API_KEY, or SUME_API_KEY_SECRET_ARN to a secret that "
                "holds the key as plain text"
            )
        if not is_header_value(key):
            raise SettingsError("the Sume API key holds characters that no HTTP header can carry")
        return key

    def webhook_secrets(self, refresh: bool = False) -> tuple[str, ...]:
        """Give every signing secret that is accepted; none means that nothing verifies.

        `refresh` is heeded only every few seconds: anybody can send what does not verify.
        """
        secrets = self._settings.webhook_secrets
        if self._settings.webhook_secrets_arn:
            refresh = refresh and time.monotonic() - self._signing_read_at >= FORCED_READ_SECONDS
            if refresh:
                self._signing_read_at = time.monotonic()
            secrets += parse_secrets(self._read(self._settings.webhook_secrets_arn, refresh))
        return secrets

    def database(self, refresh: bool = False) -> dict[str, str]:
        """Give the RDS-style secret: host, port, dbname, username, password as text."""
        arn = self._settings.database_secret_arn or ""
        try:
            content = json.loads(self._read(arn, refresh))
            return {str(key): str(value) for key, value in content.items()}
        except (ValueError, AttributeError):
            raise SettingsError(
                "the secret of DATABASE_SECRET_ARN is not a JSON object with username and password"
            ) from None

    def _read(self, arn: str, refresh: bool) -> str:
        try:
            if self._provider is None:
                self._provider = _provider()
            value = self._provider.get(arn, max_age=CACHE_SECONDS, force_fetch=refresh)
        except Exception as error:
            # The message of the error may hold parts of the request: only its kind is passed on.
            raise SecretUnavailable(
                f"secret {arn} could not be read ({type(error).__name__}): check the function's "
                "permission, its network path to Secrets Manager and the secret's name"
            ) from None
        return value.decode() if isinstance(value, bytes) else str(value)


def _provider() -> Any:
    from aws_lambda_powertools.utilities.parameters import SecretsProvider
    from botocore.config import Config

    # Short: a function in a VPC without a way out must say so within its time.
    patience = Config(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 2})
    return SecretsProvider(boto_config=patience)
