"""Webhook signatures: HMAC-SHA256 over `<timestamp>.<raw body>`, sent as `v1=<hex>`."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

TIMESTAMP_HEADER: Final = "x-sume-timestamp"
SIGNATURE_HEADER: Final = "x-sume-signature"
EVENT_ID_HEADER: Final = "x-sume-event-id"
_LONGEST_HEADER: Final = 4096


def sign(timestamp: int | str, body: bytes, secret: str) -> str:
    """Sign a body: `v1=` and the lower-case hex HMAC, with the secret's UTF-8 bytes as the key."""
    key = secret.encode("utf-8", "surrogatepass")
    message = str(timestamp).encode() + b"." + body
    return "v1=" + hmac.new(key, message, hashlib.sha256).hexdigest()


def verify(
    body: bytes,
    timestamp: str | None,
    signature: str | None,
    secrets: Iterable[str],
    now: float,
    tolerance: float,
) -> bool:
    """Tell whether any secret made any `v1=` part of the signature header for exactly this body.

    `now` and `tolerance` are seconds; the window is closed at both ends. Every secret is tried
    against every part without stopping early, so timing says nothing about which one fits.
    """
    if timestamp is None or signature is None or len(signature) > _LONGEST_HEADER:
        return False
    if not re.fullmatch(r"[0-9]{1,15}", timestamp, re.ASCII):
        return False
    # In bytes: compare_digest raises TypeError on text outside ASCII.
    offered = [
        part.strip()[3:].lower().encode("utf-8", "replace")
        for part in signature.split(",")
        if part.strip().startswith("v1=")
    ]
    genuine = False
    for secret in secrets:
        if not secret.strip():
            continue
        expected = sign(timestamp, body, secret)[3:].encode()
        for candidate in offered:
            genuine |= hmac.compare_digest(expected, candidate)
    return genuine and abs(now - int(timestamp)) <= tolerance
