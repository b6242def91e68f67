"""Sume's client with the API key in hand, for every flow that calls Sume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sume_jobs import telemetry
from sume_jobs.secrets import SecretUnavailable
from sume_jobs.sume_client import SumeClient

if TYPE_CHECKING:
    from sume_jobs.runtime import Runtime


def client_of(runtime: Runtime) -> SumeClient:
    """Open a client with the API key. Raises SettingsError, SecretUnavailable."""
    settings = runtime.settings
    return SumeClient(
        settings.sume_base_url,
        settings.sume_submit_path,
        runtime.secrets.api_key(),
        settings.sume_timeout,
        settings.submit_concurrency,
    )


def key_was_rotated(runtime: Runtime, client: SumeClient) -> bool:
    """After a 401: read the API key past the cache and use it; tells whether it is another."""
    try:
        rotated = client.use_key(runtime.secrets.api_key(refresh=True))
    except SecretUnavailable as error:
        telemetry.warn("secret_unavailable", reason=str(error))
        return False
    if rotated:
        telemetry.event("api_key_rotated")
    return rotated
