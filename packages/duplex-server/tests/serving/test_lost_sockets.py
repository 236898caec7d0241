"""Sockets that break from outside, whatever way: the session waits for its client, and nothing is logged as a fault.

Real sockets, spoken to byte by byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.lines import HANDSHAKE, event, frame, line


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - a state of uvicorn's, which tells nobody
            await asyncio.sleep(0.01)


def protocols(served: Any) -> list[Any]:
    """Uvicorn's side of the sockets that are open."""
    return [each for each in served.server.server_state.connections if hasattr(each, "close_sent")]


async def test_a_client_that_answers_no_ping_and_then_reads_on_is_one_that_was_lost(
    served: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its socket is closed while an event waits for room in it, which then goes nowhere."""
    part = {"type": "input_text", "text": "x" * 7_500_000}
    item = {"type": "message", "role": "user", "content": [part]}
    async with line(served.port) as client:
        (protocol,) = protocols(served)
        await client.send(event("conversation.item.create", item=item))
        await eventually(lambda: not protocol.writable.is_set())
        protocol.keepalive_timeout()  # what uvicorn calls 40 s later
        waiting = protocol.transport.get_write_buffer_size()
        protocol.transport.set_write_buffer_limits(
            high=waiting, low=waiting - 1
        )  # wakes who waits long before all is out
        await client.rest()
    await eventually(lambda: served.engine.sessions.detached == 1)
    assert served.engine.sessions.taken == 1
    assert not caplog.records


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (frame(b"\xff\xfe"), 1007),
        (frame(b"{}", 0x3), 1002),
        (frame(b"more", 0x0), 1002),
        (b"\xff\xff" + b"\xff" * 64, 1002),
        (b"\x81\xff" + struct.pack("!Q", 2**40) + bytes(4), 1009),
    ],
    ids=["no UTF-8", "an unknown opcode", "a continuation of nothing", "reserved bits", "a frame without end"],
)
async def test_a_client_that_breaks_the_protocol_in_mid_answer_is_one_that_was_lost(
    served: Any, broken: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    words = {"type": "input_text", "text": "one two three four five six seven eight nine ten"}
    async with line(served.port) as client:
        await client.send(
            event("conversation.item.create", item={"type": "message", "role": "user", "content": [words]})
            + event("response.create")
        )
        await client.until(b"response.output_audio.delta")
        await client.send(broken)
        assert struct.pack("!H", code) in await client.rest()
    await eventually(lambda: served.engine.sessions.detached == 1)
    assert served.engine.sessions.taken == 1
    assert not caplog.records


LONG = b"x" * 10_000
HANDSHAKES = {
    "many cookies": HANDSHAKE[:-2] + b"Cookie: " + LONG + b"\r\n\r\n",
    "a long key": HANDSHAKE[:-2] + b"Authorization: Bearer " + LONG + b"\r\n\r\n",
    "a body": HANDSHAKE[:-2] + b"Content-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("name", HANDSHAKES)
async def test_a_handshake_that_cannot_be_read_is_answered(served: Any, name: str) -> None:
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(HANDSHAKES[name])
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    told = json.loads(body)["error"]
    assert told["type"] == "invalid_request_error"
    assert "the WebSocket handshake cannot be read" in told["message"]
    assert served.engine.sessions.taken == 0


@pytest.mark.parametrize("endless", [b"X-Long: ", b"GET /" + LONG], ids=["a header", "an address"])
async def test_a_request_that_never_ends_is_given_up(served: Any, endless: bytes) -> None:
    """Whatever is asked for, and long before it has cost much memory."""
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(endless if endless.startswith(b"GET") else b"GET /health HTTP/1.1\r\n" + endless)
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                writer.write(LONG)
                await writer.drain()
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
        writer.close()
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    await eventually(lambda: not served.server.server_state.connections)
