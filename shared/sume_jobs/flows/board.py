"""The board: one page without anything from elsewhere, which the browser is told to enforce."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Page(NamedTuple):
    """A page and the headers that go with it."""

    html: str
    headers: dict[str, str]


@lru_cache(maxsize=1)
def page(file: Path) -> Page:
    """Read the page and put its one style and one script, by their digests, into the policy."""
    html = file.read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; "
        f"script-src {_digest(html, 'script')}; style-src {_digest(html, 'style')}"
    )
    return Page(
        html,
        {
            "content-security-policy": policy,
            "cache-control": "no-cache",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        },
    )


def _digest(html: str, tag: str) -> str:
    """Give the digest of the content of the only `tag`."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
