"""The Sume API over HTTP: one request a call, one total deadline, nothing hidden.

Knows no tables. Whatever happens becomes an `Answer` or a `NoAnswer`; nothing is raised for
what the network or the server does.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from requests.exceptions import InvalidURL
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from sume_jobs import __version__
from sume_jobs.deadline import DeadlineResponse, call
from sume_jobs.decisions.outcomes import Answer, NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_SECONDS: Final = 3.0
LARGEST_BODY: Final = 1024 * 1024
_CHUNK: Final = 64 * 1024

# It warns of a malformed answer by quoting it, and an answer may hold a prompt.
logging.getLogger("urllib3").setLevel(logging.ERROR)


class SumeClient:
    """Calls Sume with one API key. Safe to use from several threads; open one for each invocation.

    A fresh one each time, because sockets that were kept while a container was frozen are dead.
    """

    def __init__(
        self, base_url: str, submit_path: str, api_key: str, timeout: float, concurrency: int
    ) -> None:
        self._base_url = base_url
        self._submit_url = base_url + submit_path
        self._timeout = timeout
        self._session = requests.Session()
        # Set as an auth object, because a netrc file would replace a plain header.
        self._session.auth = _Bearer(api_key)
        self._session.proxies = requests.utils.get_environ_proxies(base_url)
        self._session.trust_env = False
        self._session.headers.update(
            {"User-Agent": f"sume-jobs/{__version__}", "Accept": "application/json"}
        )
        adapter = _Adapter(pool_maxsize=concurrency, max_retries=0)
        self._session.mount("https://", adapter)
        self._session.mount("http://", adapter)
        self._submit_request: requests.PreparedRequest | None = None

    def use_key(self, api_key: str) -> bool:
        """Use another API key from now on; tells whether it is another."""
        bearer = _Bearer(api_key)
        changed = bearer != self._session.auth
        self._session.auth = bearer
        self._submit_request = None
        return changed

    def close(self) -> None:
        """Close the sockets."""
        self._session.close()

    def submit(self, key: str, body: str) -> Answer | NoAnswer:
        """Submit a generation: the frozen body under the row's own Idempotency-Key."""
        return self._call(lambda: self._prepare_submit(key, body.encode()))

    def job(self, job_id: str) -> Answer | NoAnswer:
        """Read a job's record."""
        return self._call(lambda: self._prepare("GET", self._job_url(job_id)))

    def result(self, job_id: str) -> Answer | NoAnswer:
        """Read a completed job's result."""
        return self._call(lambda: self._prepare("GET", self._job_url(job_id) + "/result"))

    def cancel(self, job_id: str) -> Answer | NoAnswer:
        """Ask for a job to be canceled."""
        return self._call(lambda: self._prepare("POST", self._job_url(job_id) + "/cancel", b"{}"))

    def jobs(self, limit: int, cursor: str | None = None) -> Answer | NoAnswer:
        """List up to `limit` (1 to 100) of the workspace's jobs, from a page's cursor on."""
        query = urlencode({"limit": limit} | ({"cursor": cursor} if cursor else {}))
        return self._call(lambda: self._prepare("GET", f"{self._base_url}/v1/jobs?{query}"))

    def balance(self) -> Answer | NoAnswer:
        """Read what is left of the workspace's balance."""
        return self._call(lambda: self._prepare("GET", self._base_url + "/v1/balance"))

    def _job_url(self, job_id: str) -> str:
        return f"{self._base_url}/v1/jobs/{quote(job_id, safe='')}"

    def _prepare(self, method: str, url: str, body: bytes = b"") -> requests.PreparedRequest:
        headers = {"Content-Type": "application/json"} if body else None
        return self._session.prepare_request(
            requests.Request(method, url, headers=headers, data=body or None)
        )

    def _prepare_submit(self, key: str, body: bytes) -> requests.PreparedRequest:
        """Copy the one prepared submit: preparing each anew took a quarter of a call's work."""
        template = self._submit_request
        if template is None:
            self._submit_request = template = self._prepare("POST", self._submit_url, b"{}")
        request = template.copy()
        requests.utils.check_header_validity(("Idempotency-Key", key))
        request.headers["Idempotency-Key"] = key
        request.headers["Content-Length"] = str(len(body))
        request.body = body
        return request

    def _call(self, prepare: Callable[[], requests.PreparedRequest]) -> Answer | NoAnswer:
        call.deadline = deadline = time.monotonic() + self._timeout
        call.silence = self._timeout
        call.sent = False
        try:
            with self._session.send(
                prepare(),
                timeout=(min(CONNECT_SECONDS, self._timeout), self._timeout),
                allow_redirects=False,
                stream=True,
            ) as response:
                content, complete = _read_body(response, deadline)
                return Answer(
                    status=response.status_code,
                    headers={name.lower(): value for name, value in response.headers.items()},
                    body=content,
                    complete=complete,
                )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # ValueError: a header that cannot be sent (also UnicodeError).
            unsendable = isinstance(error, ValueError) and not isinstance(error, InvalidURL)
            return NoAnswer(sent=call.sent, reason=_reason(error), unsendable=unsendable)


class _Bearer(AuthBase):
    def __init__(self, api_key: str) -> None:
        self._value = f"Bearer {api_key}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bearer) and other._value == self._value

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = self._value
        return request


def _read_body(response: requests.Response, deadline: float) -> tuple[bytes, bool]:
    """Read the body up to the size cap and the deadline; tells whether it is all there."""
    parts: list[bytes] = []
    size = 0
    try:
        while chunk := response.raw.read1(_CHUNK, decode_content=True):
            parts.append(chunk)
            size += len(chunk)
            if size > LARGEST_BODY or time.monotonic() > deadline:
                return b"".join(parts), False
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        return b"".join(parts), False
    length = response.headers.get("Content-Length", "")
    encoded = "Content-Encoding" in response.headers
    cut = length.isascii() and length.isdigit() and not encoded and size < int(length)
    return b"".join(parts), not cut


def _reason(error: BaseException) -> str:
    """Name what went wrong, innermost cause first; the text may hold a URL, so only the kind."""
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    reason = getattr(error, "reason", None)
    return type(reason if isinstance(reason, BaseException) else error).__name__


class _Sends:
    """Notes the moment from which bytes may have left."""

    def send(self, data: Any) -> None:
        if getattr(self, "sock", None) is None:
            self.connect()  # type: ignore[attr-defined]
        call.sent = True
        super().send(data)  # type: ignore[misc]


class _Connection(_Sends, HTTPConnection):
    response_class = DeadlineResponse


class _SecureConnection(_Sends, HTTPSConnection):
    response_class = DeadlineResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS: Final = {"http": _Pool, "https": _SecurePool}


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager
