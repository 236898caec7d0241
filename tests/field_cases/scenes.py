"""What the tests of the field cases share: sounds, sentences, and clients that leave in bad ways.

Owns no expectation. Everything goes over the real socket of :mod:`tests.support.serving`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

from duplex_core.testing.speech import burst, silence
from tests.support.serving import Caller, Served

RATE_HZ = 24_000
"""The rate of a session that was told nothing else."""
IMMEDIATE = {"mode": "immediate"}
"""``session.overlap`` under which any speech interrupts at once."""
AT_ONCE = {"pace": 0.0}
"""Echo's options under which it gives an answer out faster than it sounds."""


def speech(ms: float) -> bytes:
    """What goes for speech."""
    return burst(ms, RATE_HZ)


def quiet(ms: float) -> bytes:
    """Silence."""
    return silence(ms, RATE_HZ)


async def update(caller: Caller, **session: Any) -> dict[str, Any]:
    """Change the session and wait until it is so; the session then."""
    await caller.say("session.update", session={"type": "realtime", **session})
    event = await caller.until("session.updated", "error")
    assert event["type"] == "session.updated", event
    shown: dict[str, Any] = event["session"]
    return shown


async def detecting(caller: Caller, *, overlap: dict[str, Any] | None = None, options: Any = None, **vad: Any) -> None:
    """Have the detector take the turns, with these settings."""
    session: dict[str, Any] = {"audio": {"input": {"turn_detection": {"type": "server_vad", **vad}}}}
    if overlap is not None:
        session["overlap"] = overlap
    if options is not None:
        session["options"] = options
    await update(caller, **session)


async def write(caller: Caller, text: str) -> None:
    """Put a message of the user's into the conversation."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await caller.say("conversation.item.create", item=item)


async def ask(caller: Caller, text: str) -> str:
    """Ask in writing; the id of the response, which has begun."""
    await write(caller, text)
    await caller.say("response.create")
    created = await caller.until("response.created", "error")
    assert created["type"] == "response.created", created
    response_id: str = created["response"]["id"]
    return response_id


async def done(caller: Caller, response_id: str | None = None) -> dict[str, Any]:
    """Wait for the end of a response, or of the next one to end; the response as it ended."""
    event = await caller.until(
        "response.done", where=lambda event: response_id is None or event["response"]["id"] == response_id
    )
    response: dict[str, Any] = event["response"]
    return response


async def answers(caller: Caller, text: str = "all is well") -> None:
    """The session is alive: it answers."""
    response = await done(caller, await ask(caller, text))
    assert response["status"] == "completed", response


async def refused(caller: Caller, type: str, event_id: str = "mine", **fields: Any) -> dict[str, Any]:
    """Say something that must be refused with an error that names it; the error."""
    await caller.say(type, event_id=event_id, **fields)
    error: dict[str, Any] = (await caller.until("error"))["error"]
    assert error["event_id"] == event_id, error
    return error


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something of the engine's holds, of which nobody is told."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


def break_off(caller: Caller) -> None:
    """Lose the connection, without a word."""
    caller.socket.transport.abort()


def reset(writer: asyncio.StreamWriter) -> None:
    """Leave as a process that was killed does: whatever is on its way is thrown away, in both directions."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def knock(served: Served) -> asyncio.StreamWriter:
    """Ask for a session as a socket's handshake does, and read nothing; the connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        b"GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    return writer


def token_of(caller: Caller) -> tuple[str, str]:
    """The session's id and the token that was told last."""
    told = [e["session"] for e in caller.seen if e["type"] in {"session.created", "session.resumed"}][-1]
    return told["id"], told["resume_token"]


@contextlib.asynccontextmanager
async def resumed(served: Served, session_id: str, token: str, last: int) -> AsyncIterator[Caller]:
    """A socket that takes a session up."""
    async with served.call("/v1/realtime?autostart=0") as caller:
        await caller.say("session.resume", session_id=session_id, resume_token=token, last_server_event_seq=last)
        told = await caller.next()
        assert told["type"] == "session.resumed", told
        yield caller
