"""One total deadline for an HTTP call, however its bytes drip.

The timeouts of requests and urllib3 count for each read of the socket alone.
"""

from __future__ import annotations

import http.client
import io
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import socket


class _Call(threading.local):
    """What this thread's call may take, and what it has done."""

    # The end of the call in monotonic seconds, and the longest silence within it in seconds.
    deadline: float = 0.0
    silence: float = 3600.0
    # Whether bytes may have left.
    sent: bool = False
    # Whether the call may go to this machine itself.
    may_be_local: bool = False


call: Final = _Call()


class _DeadlineReader(io.RawIOBase):
    """Reads a socket with what is left of the call's time, however the bytes drip.

    requests' timeout counts for each read of the socket alone.
    """

    def __init__(self, raw: Any, connection: socket.socket) -> None:
        self._raw = raw
        self._socket = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = call.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the call's time is over")
        self._socket.settimeout(min(left, call.silence))
        return int(self._raw.readinto(buffer))

    def close(self) -> None:
        self._raw.close()
        super().close()


class DeadlineResponse(http.client.HTTPResponse):
    """The response class of a connection whose calls end at `call.deadline`."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock))
