"""A session's socket spoken to byte by byte, as no client library would.

Owns the bytes of a handshake and of masked frames, and a connection that buffers little. For tests of what a server makes of
them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from typing import Any

HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
TEXT, LAST = 0x1, 0x80


def frame(
    payload: bytes, opcode: int = TEXT, *, last: bool = True, mask: bytes = bytes(4), size_bytes: int = 0
) -> bytes:
    """One masked frame; the mask is nothing by default. Its size takes 0, 2 or 8 bytes, ``size_bytes`` at least."""
    size = len(payload)
    if size < 126 and not size_bytes:
        told = bytes([0x80 | size])
    elif size < 2**16 and size_bytes <= 2:
        told = b"\xfe" + struct.pack("!H", size)
    else:
        told = b"\xff" + struct.pack("!Q", size)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if any(mask) else payload
    return bytes([opcode | (LAST if last else 0)]) + told + mask + masked


def event(type: str, **fields: Any) -> bytes:
    return frame(json.dumps({"type": type, **fields}).encode())


class Line:
    """A connection whose bytes are read and written by hand."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._left = b""

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._connection, data)

    async def send_in(self, pieces: Iterable[bytes]) -> None:
        """Send pieces so that a server on this loop reads each by itself, unless it has something else to do."""
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            await self.send(piece)
            for _ in range(2):  # one to see that it came, one to read it
                await asyncio.sleep(0)

    async def until(self, wanted: bytes) -> None:
        """Read on to ``wanted``, and no further."""
        while wanted not in self._left:
            self._left = self._left[-len(wanted) :] + await self._more()
        self._left = self._left.partition(wanted)[2]

    async def events(self, count: int) -> list[dict[str, Any]]:
        """The next ``count`` events, from where a frame begins."""
        return [json.loads(payload) for _, payload in await self.frames(count)]

    async def frames(self, count: int) -> list[tuple[int, bytes]]:
        """The next ``count`` frames, opcode and payload, from where one begins."""
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            while (cut := _split(self._left)) is None:
                self._left += await self._more()
            found.append((self._left[0] & 0xF, cut[0]))
            self._left = cut[1]
        return found

    async def rest(self) -> bytes:
        """All that comes until the other side closes; of it the end."""
        with contextlib.suppress(ConnectionError):
            while piece := await self._loop.sock_recv(self._connection, 2**20):
                self._left = (self._left + piece)[-200:]
        return self._left

    async def _more(self) -> bytes:
        piece = await self._loop.sock_recv(self._connection, 65536)
        assert piece, f"the other side has closed: {self._left[-500:]!r}"
        return piece


def _split(data: bytes) -> tuple[bytes, bytes] | None:
    """The payload of the first frame of a server's and what comes after it; ``None`` when it is not whole yet."""
    head = {126: 4, 127: 10}.get(data[1], 2) if len(data) > 1 else 2
    if len(data) < head:
        return None
    size = int.from_bytes(data[2:head], "big") if head > 2 else data[1]
    return (data[head : head + size], data[head + size :]) if len(data) >= head + size else None


@contextlib.asynccontextmanager
async def line(port: int) -> AsyncIterator[Line]:
    """A session's socket, behind its first event; what it buffers is little."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        made = Line(connection)
        async with asyncio.timeout(30):
            await made.send(HANDSHAKE)
            await made.until(b"\r\n\r\n")
            assert [each["type"] for each in await made.events(1)] == ["session.created"]
            yield made
