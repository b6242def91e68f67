"""Reading artifacts from the hosts that Sume names: streamed, bounded, without any credentials.

The URL comes from outside, so only https to public addresses is followed, and that is checked
on the address that was really connected to. Knows no tables.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from sume_jobs import __version__
from sume_jobs.deadline import DeadlineResponse, call
from sume_jobs.decisions import artifact_rules
from sume_jobs.decisions.artifact_rules import ArtifactRefused

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

CONNECT_SECONDS: Final = 3.0
# A host that says nothing for this long is given up.
SILENCE_SECONDS: Final = 15.0
REDIRECTS: Final = 3
_CHUNK: Final = 64 * 1024
_BEGINNING: Final = 4096
_DEAD: Final = (401, 403, 404, 410)


class Download:
    """One artifact under way, to be read like a file. Its end is only reached if it is whole.

    `content_type` is known at once; `size` (bytes) and `sha256` (hexadecimal) at the end.
    """

    def __init__(self, response: requests.Response, declared: object, max_bytes: int) -> None:
        self._raw = response.raw
        self._max_bytes = max_bytes
        self._expected = _content_length(response)
        if self._expected is not None and self._expected > max_bytes:
            raise ArtifactRefused("too_large")
        self._digest = hashlib.sha256()
        self._is_over = False
        self.size = 0
        self.content_type = artifact_rules.check_type(
            declared, response.headers.get("Content-Type")
        )
        self._ahead = self._fill(_BEGINNING)
        artifact_rules.check_beginning(self._ahead, self.content_type)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def read(self, amount: int = -1) -> bytes:
        """Read so many bytes, fewer only at the end. Raises ArtifactRefused."""
        ahead, self._ahead = self._ahead, b""
        if 0 <= amount < len(ahead):
            self._ahead = ahead[amount:]
            return ahead[:amount]
        return ahead + self._fill(None if amount < 0 else amount - len(ahead))

    def _fill(self, amount: int | None) -> bytes:
        parts: list[bytes] = []
        wanted = amount
        while not self._is_over and wanted != 0:
            chunk = self._next(_CHUNK if wanted is None else min(wanted, _CHUNK))
            parts.append(chunk)
            if wanted is not None:
                wanted -= len(chunk)
        return b"".join(parts)

    def _next(self, amount: int) -> bytes:
        if time.monotonic() > call.deadline:
            raise ArtifactRefused("time_is_over")
        try:
            chunk: bytes = self._raw.read(amount)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ArtifactRefused(f"cut_short ({type(error).__name__})") from None
        self.size += len(chunk)
        self._digest.update(chunk)
        if self.size > self._max_bytes:
            raise ArtifactRefused("too_large")
        if not chunk:
            self._is_over = True
            if self._expected is not None and self.size != self._expected:
                raise ArtifactRefused("cut_short")
        return chunk


@contextmanager
def download(
    url: str, declared: object, max_bytes: int, seconds: float, may_be_local: bool
) -> Iterator[Download]:
    """Open an artifact within `seconds` in all, following a few redirects to https.

    `declared` is the content type that Sume announced. Raises ArtifactRefused; its code never
    holds the URL, whose query may be a credential.
    """
    call.deadline = time.monotonic() + seconds
    call.silence = SILENCE_SECONDS
    call.may_be_local = may_be_local
    session = requests.Session()
    # No netrc, no cookies of another call, nothing but what is set here.
    session.trust_env = False
    session.headers.update(
        {"User-Agent": f"sume-jobs/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
    )
    adapter = _Adapter(max_retries=0)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    try:
        with session, _open(session, url) as response:
            if response.status_code != 200:
                code = f"http_{response.status_code}"
                raise ArtifactRefused(code, is_dead=response.status_code in _DEAD)
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise ArtifactRefused("encoded")
            yield Download(response, declared, max_bytes)
    except (urllib3.exceptions.HTTPError, requests.RequestException) as error:
        raise ArtifactRefused(f"unreachable ({type(error).__name__})") from None


def _open(session: requests.Session, url: str) -> requests.Response:
    for _ in range(REDIRECTS + 1):
        artifact_rules.check_url(url, call.may_be_local)
        session.proxies = requests.utils.get_environ_proxies(url)
        response = session.get(
            url, stream=True, allow_redirects=False, timeout=(CONNECT_SECONDS, SILENCE_SECONDS)
        )
        if not response.is_redirect:
            return response
        url = urljoin(url, response.headers["Location"])
        response.close()
        session.cookies.clear()
    raise ArtifactRefused("too_many_redirects")


def _content_length(response: requests.Response) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isascii() and length.isdigit() else None


class _Checked:
    """Looks at the address that was connected to before a byte leaves: names can be rebound."""

    def _new_conn(self) -> socket.socket:
        made: socket.socket = super()._new_conn()  # type: ignore[misc]
        try:
            artifact_rules.check_address(made.getpeername()[0], call.may_be_local)
        except ArtifactRefused:
            made.close()
            raise
        return made


class _Connection(_Checked, HTTPConnection):
    response_class = DeadlineResponse


class _SecureConnection(_Checked, HTTPSConnection):
    response_class = DeadlineResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class _Adapter(HTTPAdapter):
    # With a proxy, the proxy makes the connection and has rules of its own.
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
