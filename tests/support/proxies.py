"""TCP in the middle: cut, hang up, and count, between the product and what it talks to."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Self


def reset(connection: socket.socket) -> None:
    """Close with RST, as a firewall that forgot the connection does."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        connection.close()


class Proxy:
    """Forwards connections on a loopback port to `target` until told otherwise."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.connections = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._running = True
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while self._running:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = self.connect(client)
        except OSError:
            reset(client)
            return
        if server is None:
            reset(client)
            return
        self._pairs.append((client, server))
        with contextlib.suppress(OSError, ValueError):
            self.pump(client, server)
        reset(client)
        reset(server)

    def connect(self, client: socket.socket) -> socket.socket | None:
        """Open the other side; None refuses the client."""
        return socket.create_connection(self.target, timeout=10)

    def pump(self, client: socket.socket, server: socket.socket) -> None:
        server.settimeout(None)
        while self._running:
            ready, _, _ = select.select([client, server], [], [], 1.0)
            for source in ready:
                data = source.recv(1 << 16)
                if not data:
                    return
                (server if source is client else client).sendall(data)

    def reset_all(self) -> None:
        """Cut every connection with RST."""
        for pair in self._pairs:
            for side in pair:
                with contextlib.suppress(OSError):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with contextlib.suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)
                with contextlib.suppress(OSError):
                    side.close()
        self._pairs.clear()

    def close(self) -> None:
        self._running = False
        self._listener.close()
        self.reset_all()


class Silencer(Proxy):
    """Falls silent: what it is sent is still acknowledged, and nothing ever comes back.

    `fall_silent` begins with the connections that are open; with `newcomers` those that are opened
    later are accepted and never served either. `speak` serves newcomers again.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._dumb: set[socket.socket] = set()
        self._refuses_newcomers = False
        super().__init__(target)

    def fall_silent(self, newcomers: bool = True) -> None:
        self._refuses_newcomers = newcomers
        self._dumb |= {client for client, _ in self._pairs}

    def speak(self) -> None:
        self._refuses_newcomers = False

    def connect(self, client: socket.socket) -> socket.socket | None:
        if self._refuses_newcomers:
            self._dumb.add(client)
        return super().connect(client)

    def pump(self, client: socket.socket, server: socket.socket) -> None:
        while self._running:
            ready, _, _ = select.select([client, server], [], [], 1.0)
            for source in ready:
                data = source.recv(1 << 16)
                if not data:
                    return
                if client not in self._dumb:
                    (server if source is client else client).sendall(data)


class ReplyCutter(Proxy):
    """Between the product and PostgreSQL: the n-th statement arrives, its reply never comes back.

    A statement ends where the server says ReadyForQuery; the start-up is not counted. `cut_at(n)`
    counts from that moment on, over all connections; `before=True` drops the statement itself.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(target)
        self._guard = threading.Lock()
        self._left: int | None = None
        self._before = False
        self.statements = 0
        self.cuts = 0

    def cut_at(self, number: int, before: bool = False) -> None:
        with self._guard:
            self._left, self._before, self.cuts = number, before, 0

    def disarm(self) -> int:
        """Cut no more; how many replies were cut since `cut_at` (0 or 1)."""
        with self._guard:
            self._left = None
            return self.cuts

    def _counts(self) -> bool:
        """Count one statement; True when it is the one to cut."""
        with self._guard:
            self.statements += 1
            if self._left is None:
                return False
            self._left -= 1
            if self._left:
                return False
            self._left = None
            self.cuts += 1
            return True

    def pump(self, client: socket.socket, server: socket.socket) -> None:
        server.settimeout(None)
        started, doomed = False, False
        pending = b""
        while self._running:
            ready, _, _ = select.select([client, server], [], [], 1.0)
            for source in ready:
                data = source.recv(1 << 16)
                if not data:
                    return
                if source is client:
                    # One message of the client's ends a statement: Query ('Q') or Sync ('S').
                    if started and _ends_statement(data) and self._counts():
                        if self._before:
                            return
                        doomed = True
                    server.sendall(data)
                    continue
                # The server's side: ReadyForQuery is 'Z', length 5, one state byte.
                pending = (pending + data)[-6:]
                finished = pending[:5] == b"Z\x00\x00\x00\x05"
                if finished and doomed:
                    return
                if not doomed:
                    client.sendall(data)
                started = started or finished


def _ends_statement(data: bytes) -> bool:
    return data[:1] == b"Q" or data[-5:] == b"S\x00\x00\x00\x04"


class PasswordRecorder(Proxy):
    """Stands before PostgreSQL, asks each client for its password in clear, and keeps it."""

    def __init__(
        self, target: tuple[str, int], translate: Callable[[bytes], bytes] | None = None
    ) -> None:
        self.passwords: list[str] = []
        self.translate = translate or (lambda start: start)
        super().__init__(target)

    def connect(self, client: socket.socket) -> socket.socket | None:
        while True:
            start = self._message(client)
            code = struct.unpack("!I", start[4:8])[0]
            if code in (80877103, 80877104):  # SSLRequest, GSSENCRequest
                client.sendall(b"N")
                continue
            break
        client.sendall(b"R" + struct.pack("!II", 8, 3))
        kind = client.recv(1)
        if kind != b"p":
            return None
        self.passwords.append(self._message(client)[4:].rstrip(b"\0").decode())
        server = socket.create_connection(self.target, timeout=10)
        server.sendall(self.translate(start))
        return server

    @staticmethod
    def _message(client: socket.socket) -> bytes:
        head = _exactly(client, 4)
        return head + _exactly(client, struct.unpack("!I", head)[0] - 4)


def _exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        if not more:
            raise OSError("the client hung up")
        data += more
    return data


class BlackHole:
    """A port where connections are neither accepted nor refused (`mode="connect"`), or are accepted
    and never answered (`mode="read"`).
    """

    def __init__(self, mode: str = "connect") -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._kept: list[Any] = []
        self._running = True
        self.connections = 0
        if mode == "connect":
            # With the queue of not yet accepted connections full, the kernel drops further SYNs.
            self._listener.listen(0)
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    filler.connect(self._listener.getsockname())
                self._kept.append(filler)
        else:
            self._listener.listen(64)
            threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while self._running:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._kept.append(client)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running = False
        self._listener.close()
        for kept in self._kept:
            kept.close()


class RawServer:
    """Reads a request's head, and lets `answer(connection)` send whatever bytes it likes."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(30)
            client.recv(1 << 16)
            self._answer(client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
