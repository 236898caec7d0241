"""A client of the wire for the conversations: it speaks in real time, and keeps what it gets. Owns no expectation."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection

RATE_HZ = 24_000
"""Of what a session begins with."""
CHUNK_MS = 100
TRANSCRIPTION = "conversation.item.input_audio_transcription."


class Caller:
    """A client of the wire that speaks in real time and keeps what it gets."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def say(self, type_: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type_, **fields}))

    async def until(self, type_: str) -> dict[str, Any]:
        while True:
            async with asyncio.timeout(20):
                event: dict[str, Any] = json.loads(await self.socket.recv())
            self.seen.append(event)
            if event["type"] == type_:
                return event

    async def has(self, type_: str) -> bool:
        """Whether an event of this type has come, of all that the session has sent until now."""
        await self.say("session.heartbeat")
        await self.until("session.heartbeat_ack")
        return bool(self.of(type_))

    async def speak(self, pcm: bytes) -> None:
        """Send speech at the pace at which it sounds."""
        size = RATE_HZ * 2 * CHUNK_MS // 1000
        due = asyncio.get_running_loop().time()
        for at in range(0, len(pcm), size):
            await self.say("input_audio_buffer.append", audio=base64.b64encode(pcm[at : at + size]).decode())
            due += CHUNK_MS / 1000
            await asyncio.sleep(due - asyncio.get_running_loop().time())

    def of(self, type_: str) -> list[dict[str, Any]]:
        return [event for event in self.seen if event["type"] == type_]

    def deltas(self, item_id: str) -> str:
        return "".join(event["delta"] for event in self.of(TRANSCRIPTION + "delta") if event["item_id"] == item_id)


@contextlib.asynccontextmanager
async def call(address: str, **audio_input: Any) -> AsyncIterator[Caller]:
    """A session with transcripts, and with these settings of its input."""
    async with websockets.connect(f"ws://{address}/v1/realtime") as socket:
        caller = Caller(socket)
        await caller.until("session.created")
        audio = {"input": {"transcription": {"model": "moonshine"}, **audio_input}}
        await caller.say("session.update", session={"type": "realtime", "audio": audio})
        await caller.until("session.updated")
        yield caller


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return re.findall(r"[a-z']+", text.lower())
