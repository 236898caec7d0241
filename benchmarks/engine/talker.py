"""One client of the benchmark: a WebSocket that costs the load generator as little as it can.

Owns its connection and what it noted: when each frame went out and came in. It reads no JSON of the frames that come all the
time: their first bytes tell them apart. Driven by :mod:`benchmarks.engine.rounds`; the protocol is `websockets`' sans-I/O one.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

AUDIO = b'{"type":"response.output_audio.delta"'
ACK = b'{"type":"session.heartbeat_ack"'
HEARTBEAT = b'{"type":"session.heartbeat"}'
LARGE = 1000
"""Bytes from which on an answer of the echo is one to audio."""


class Talker(asyncio.Protocol):
    """A client. Times are of ``time.perf_counter``, in seconds."""

    def __init__(self, uri: str) -> None:
        """Prepare to connect to ``uri``."""
        self._client = ClientProtocol(parse_uri(uri), max_size=None)
        self._transport: asyncio.Transport | None = None
        self._echo = "audio=" in uri
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent_appends: list[float] = []
        self.sent_heartbeats: list[float] = []
        self.audio_at: list[float] = []
        self.ack_at: list[float] = []
        self.audio_bytes = 0
        self.ack_bytes = 0
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.last_audio = b""
        self._waiting: list[tuple[str, asyncio.Future[dict[str, Any]]]] = []

    # -- what the rounds do with it -----------------------------------------------------------------------------------

    def append(self, text: bytes) -> None:
        """Send a frame that carries audio."""
        self.sent_appends.append(time.perf_counter())
        self.send(text)

    def heartbeat(self) -> None:
        """Send a frame to which there is one answer."""
        self.sent_heartbeats.append(time.perf_counter())
        self.send(HEARTBEAT)

    def send(self, text: bytes) -> None:
        """Send a text frame."""
        self._client.send_text(text)
        self._flush()

    async def event(self, kind: str) -> dict[str, Any]:
        """The next event of this type; of the kinds that are not sent all the time."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((kind, future))
        return await future

    def forget(self) -> None:
        """Begin to note anew; when appends went out is kept, by their number."""
        for noted in (self.sent_heartbeats, self.audio_at, self.ack_at, self.events):
            noted.clear()

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    # -- what asyncio tells it ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Shake hands."""
        self._transport = cast("asyncio.Transport", transport)
        self._client.send_request(self._client.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Note what has come."""
        now = time.perf_counter()
        self._client.receive_data(data)
        for event in self._client.events_received():
            if isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:
                    self._note(bytes(event.data), now)
            elif isinstance(event, Response) and self._client.handshake_exc is None and not self.opened.done():
                self.opened.set_result(None)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if not self.opened.done():
            self.opened.set_exception(exc or ConnectionError("the server hung up before the handshake was over"))
        self.lost.set_result(None)

    def _note(self, text: bytes, now: float) -> None:
        if text.startswith(AUDIO) or (self._echo and len(text) > LARGE):
            self.audio_at.append(now)
            self.audio_bytes = len(text)
            self.last_audio = text
        elif text.startswith(ACK) or self._echo:
            self.ack_at.append(now)
            self.ack_bytes = len(text)
        else:
            event = json.loads(text)
            self.events.append((now, event))
            for kind, future in self._waiting:
                if kind == event["type"] and not future.done():
                    future.set_result(event)
            self._waiting = [(kind, future) for kind, future in self._waiting if not future.done()]

    def _flush(self) -> None:
        if self._transport is not None:
            data = b"".join(self._client.data_to_send())
            if data:
                self._transport.write(data)


async def connect(host: str, port: int, query: str = "") -> Talker:
    """A connected client.

    Raises:
        OSError: the server does not listen, or hung up.
    """
    loop = asyncio.get_running_loop()
    uri = f"ws://{host}:{port}/v1/realtime{query}"
    _, talker = await loop.create_connection(lambda: Talker(uri), host, port)
    await talker.opened
    return talker
