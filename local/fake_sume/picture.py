"""A small, real PNG, so that copies of artifacts can be opened and compared."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache

SIZE = 64


@lru_cache(maxsize=512)
def png(name: str) -> bytes:
    """A picture of 64 by 64 pixels in two colours that depend on the name alone."""
    number = zlib.crc32(name.encode())
    first = number.to_bytes(4, "big")[:3]
    second = (~number & 0xFFFFFFFF).to_bytes(4, "big")[:3]
    rows = b"".join(
        b"\x00" + b"".join(first if (x // 8 + y // 8) % 2 else second for x in range(SIZE))
        for y in range(SIZE)
    )
    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
