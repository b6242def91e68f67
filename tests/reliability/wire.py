"""The two wires of a function, PostgreSQL's and Sume's, with one count over both.

Each message that crosses is a point: a statement (a connection's start-up included) or an HTTP
call. At the point that is chosen the process at one end is killed, or the connection is cut; either
before the message is handed on, or when its answer is here and not yet handed back. Nothing in the
process is touched: what is counted is what really leaves it.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tests.support.proxies import Proxy

Side = Literal["before", "after"]
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect: *100-continue\r\n", re.IGNORECASE)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# The answer is on its way back only when the server has said that it is ready again.
_READY = re.compile(rb"Z\x00\x00\x00\x05[ITE]$")


@dataclass
class Points:
    """What crossed, in order; and what is to happen at which of it."""

    names: list[str] = field(default_factory=list)
    at: int | None = None
    side: Side = "before"
    action: Callable[[], None] = lambda: None
    struck: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, at: int, side: Side, action: Callable[[], None]) -> None:
        self.names, self.at, self.side, self.action, self.struck = [], at, side, action, False

    def reached(self, name: str) -> bool:
        """Count one message; tells whether it is the chosen one."""
        with self._guard:
            self.names.append(name)
            return self.at == len(self.names)

    def strike(self) -> None:
        self.struck = True
        self.action()


class DatabaseWire(Proxy):
    """Between the process and PostgreSQL."""

    def __init__(self, target: tuple[str, int], points: Points) -> None:
        self.points = points
        super().__init__(target)

    def pump(self, client: socket.socket, server: socket.socket) -> None:
        asked, answered = b"", b""
        started = False
        waiting: str | None = None  # "doomed" when the answer of this statement is to be kept
        while self._running:
            ready, _, _ = select.select([client, server], [], [], 1.0)
            for source in ready:
                data = source.recv(1 << 16)
                if not data:
                    return
                if source is client:
                    asked += data
                    name = self._asked(asked, started)
                    if name is None:
                        # Not whole yet; a start-up message asks nothing until it is.
                        server.sendall(data)
                        continue
                    asked = b""
                    started = True
                    if self.points.reached(name):
                        if self.points.side == "before":
                            self.points.strike()
                            return
                        waiting = "doomed"
                    server.sendall(data)
                    continue
                answered = (answered + data)[-6:]
                if waiting == "doomed":
                    if _READY.search(answered):
                        self.points.strike()
                        return
                    continue
                client.sendall(data)

    @staticmethod
    def _asked(data: bytes, started: bool) -> str | None:
        """Name what the client asks for when its message is whole; None before that."""
        if not started:
            whole = len(data) >= 4 and len(data) >= struct.unpack("!I", data[:4])[0]
            is_request = len(data) == 8 and data[4:8] in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30")
            return "connect" if whole and not is_request else None
        if data[:1] == b"X":
            return None
        ends = data[:1] == b"Q" or data[-5:] == b"S\x00\x00\x00\x04"
        return "sql " + _statement(data) if ends else None


def _statement(data: bytes) -> str:
    """The tables and verbs of a statement, in few words."""
    text = data.decode("utf-8", "replace")
    words = re.findall(r"(insert into|update|delete from) (\w+)", text)
    said = dict.fromkeys(f"{verb.split()[0]} {table}" for verb, table in words)
    return ", ".join(list(said)[:4]) or "select"


class HttpWire(Proxy):
    """Between the process and Sume (or another HTTP service)."""

    def __init__(self, target: tuple[str, int], points: Points, name: str = "http") -> None:
        self.points, self.name = points, name
        super().__init__(target)

    def pump(self, client: socket.socket, server: socket.socket) -> None:
        while self._running:
            request = _message(client, _CONTINUE)
            if not request:
                return
            line = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            path = re.sub(r"job_[0-9a-f-]+", "<job>", line[1].partition("?")[0])
            chosen = self.points.reached(f"{self.name} {line[0]} {path}")
            if chosen and self.points.side == "before":
                self.points.strike()
                return
            server.sendall(request)
            answer = _message(server)
            if chosen:
                # Sume has accepted and answered; nobody has read it.
                self.points.strike()
                return
            if not answer:
                return
            with contextlib.suppress(OSError):
                client.sendall(answer)


def _message(source: socket.socket, go_on: bytes = b"") -> bytes:
    """One whole HTTP/1.1 message with a content-length (or without a body).

    Who announces a body and waits is told to `go_on`, and the other side never hears of it.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        more = source.recv(1 << 16)
        if not more:
            return data
        data += more
    if go_on and _EXPECT.search(data):
        source.sendall(go_on)
        data = _EXPECT.sub(b"\r\n", data)
    head, _, body = data.partition(b"\r\n\r\n")
    found = _LENGTH.search(head)
    left = (int(found[1]) if found else 0) - len(body)
    while left > 0:
        more = source.recv(1 << 16)
        if not more:
            return data
        data += more
        left -= len(more)
    return data
