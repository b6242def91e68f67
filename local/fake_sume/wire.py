"""Sends an answer the way a behaviour wants it: late, slowly, in part, or not at all."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    import threading

    from .behaviour import Behaviour
    from .views import Answer

# How often events that answers are held for are looked at.
HOLD_LOOK_SECONDS = 0.005
PAD_PIECE = b" " * 65536


def reset(transport: asyncio.BaseTransport | None) -> None:
    """Close a connection with RST, as a dying server does, not with an orderly FIN."""
    if transport is None or transport.is_closing():
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if isinstance(transport, asyncio.Transport):
        transport.abort()


async def send(
    request: web.BaseRequest, answer: Answer, behaviour: Behaviour
) -> web.StreamResponse:
    """Send the answer; what is returned is already sent, or is sent by the server as it is."""
    body = answer.body[: len(answer.body) // 2] if behaviour.cut else answer.body
    if behaviour.drop is not None and behaviour.drop != "mid_body":
        reset(request.transport)
        return web.Response(status=499)
    if behaviour.drop is None and behaviour.drip is None and not behaviour.pad:
        return web.Response(status=answer.status, body=body, headers=answer.headers)
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.content_length = len(body) + behaviour.pad
    try:
        await response.prepare(request)
        if behaviour.drop == "mid_body":
            await response.write(body[: len(body) // 2])
            response.force_close()
            if request.transport is not None:
                request.transport.close()
            return response
        await _drip(response, body, behaviour.drip)
        left = behaviour.pad
        while left > 0:
            await response.write(PAD_PIECE[:left])
            left -= len(PAD_PIECE)
        await response.write_eof()
    except ConnectionError:
        # The client gave up, which is what such an answer is for.
        pass
    return response


async def _drip(response: web.StreamResponse, body: bytes, bytes_a_second: float | None) -> None:
    if bytes_a_second is None:
        await response.write(body)
        return
    # Ten pieces a second at most; below ten bytes a second, one byte at a time.
    piece = max(1, int(bytes_a_second / 10))
    for start in range(0, len(body), piece):
        await response.write(body[start : start + piece])
        await asyncio.sleep(piece / bytes_a_second)


class Holds:
    """Waits for `threading.Event`s inside the event loop: one look at each event for any number
    of held answers, so that hundreds of them cost no threads."""

    def __init__(self) -> None:
        self._waiting: dict[threading.Event, asyncio.Future[None]] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def wait(self, event: threading.Event) -> None:
        if event.is_set():
            return
        loop = asyncio.get_running_loop()
        future = self._waiting.setdefault(event, loop.create_future())
        if self._watcher is None or self._watcher.done():
            self._watcher = loop.create_task(self._watch())
        await asyncio.shield(future)

    def end(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()

    async def _watch(self) -> None:
        while self._waiting:
            for event in [event for event in self._waiting if event.is_set()]:
                self._waiting.pop(event).set_result(None)
            await asyncio.sleep(HOLD_LOOK_SECONDS)
