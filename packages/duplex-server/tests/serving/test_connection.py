"""The short way between a socket's frames and its session: used wherever it can be, and never out of turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from duplex_core.errors import ErrorCode, error
from duplex_core.testing.speech import burst
from duplex_server.engine.mailbox import TURN_ENTRIES, Mailbox
from duplex_server.engine.runner import MAX_COMMANDS
from duplex_server.serving.app import create_app
from duplex_server.serving.server import listen
from tests.support.lines import event, frame, line
from tests.support.serving import Served, engine_of

TEXT, CONTINUATION, BINARY, PING = 0x1, 0x0, 0x2, 0x9


def item(number: int) -> bytes:
    """A frame from which one item, and one event of each of three types, come."""
    part = {"type": "input_text", "text": f"line {number}"}
    content = {"type": "message", "role": "user", "id": f"item_{number}", "content": [part]}
    return event("conversation.item.create", item=content)


def items(events: list[dict[str, Any]]) -> list[str]:
    return [each["item"]["id"] for each in events if each["type"] == "conversation.item.added"]


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes the long way: the types of ASGI's messages."""
    seen: list[str] = []
    send, receive = WebSocketsSansIOProtocol.send, WebSocketsSansIOProtocol.receive

    async def noted_send(self: WebSocketsSansIOProtocol, message: Any) -> None:
        seen.append(message["type"])
        await send(self, message)

    async def noted_receive(self: WebSocketsSansIOProtocol) -> Any:
        message = await receive(self)
        seen.append(message["type"])
        return message

    monkeypatch.setattr(WebSocketsSansIOProtocol, "send", noted_send)
    monkeypatch.setattr(WebSocketsSansIOProtocol, "receive", noted_receive)
    return seen


async def test_a_conversation_takes_the_short_way(served: Served, long_way: list[str]) -> None:
    async with served.session() as caller:
        await caller.by_hand()
        del long_way[:]
        await caller.append(burst(300, 24_000))
        await caller.say("input_audio_buffer.commit")
        await caller.say("response.create")
        await caller.until("response.done")
        assert not long_way


async def test_a_flood_in_one_piece_is_taken_whole_and_in_order(served: Served, long_way: list[str]) -> None:
    count = 2 * MAX_COMMANDS
    async with line(served.port) as client:
        sending = asyncio.create_task(client.send(b"".join(map(item, range(count)))))
        told = await client.events(3 * count)
        await sending
    assert items(told) == [f"item_{number}" for number in range(count)]
    assert {each["type"] for each in told} == {f"conversation.item.{what}" for what in ("added", "created", "done")}, (
        "nothing was refused"
    )
    assert [each["server_event_seq"] for each in told] == list(range(2, 3 * count + 2))
    assert "websocket.receive" in long_way, "what does not fit into the mailbox waits in uvicorn's queue"


async def test_kinds_of_frames_keep_their_order(served: Served) -> None:
    whole = item(2)
    payload = whole[whole.index(b"{") :]
    pieces = frame(payload[:7], TEXT, last=False) + frame(b"", PING) + frame(payload[7:30], CONTINUATION, last=False)
    mixed = (
        item(1) + frame(b"sound", BINARY) + pieces + frame(payload[30:], CONTINUATION) + item(3) + frame(b"", BINARY)
    )
    async with line(served.port) as client:
        await client.send(mixed)
        await client.until(b"\x8a\x00")  # the pong, which may overtake; what came before it is not looked at
        await client.send(item(4))
        told: list[dict[str, Any]] = []
        while "item_4" not in items(told):
            told += await client.events(1)
    kinds = [each["item"]["id"] if "item" in each else each["error"]["code"] for each in told if _first(each)]
    assert kinds[kinds.index("binary_frame") :] == ["binary_frame", "item_2", "item_3", "binary_frame", "item_4"]


def _first(told: dict[str, Any]) -> bool:
    return told["type"] in {"conversation.item.added", "error"}


async def test_behind_a_plain_uvicorn_there_is_the_long_way() -> None:
    async with engine_of() as engine:
        config = uvicorn.Config(create_app(engine), ws="websockets-sansio", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        with listen("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            try:
                async with line(listener.getsockname()[1]) as client:
                    count = 2 * TURN_ENTRIES
                    await client.send(b"".join(map(item, range(count))))
                    assert items(await client.events(3 * count)) == [f"item_{number}" for number in range(count)]
            finally:
                server.should_exit = True
                await serving


async def test_a_flood_of_what_is_no_event_lets_its_session_run(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[int] = []
    note = Mailbox.note

    def noted(self: Mailbox[Any], entry: Any, size: int) -> None:
        note(self, entry, size)
        waiting.append(len(self))

    monkeypatch.setattr(Mailbox, "note", noted)
    count = 4 * MAX_COMMANDS
    async with line(served.port) as client:
        sending = asyncio.create_task(client.send(frame(b"sound", BINARY) * count))
        assert {each["error"]["code"] for each in await client.events(count)} == {"binary_frame"}
        await sending
    assert max(waiting) <= MAX_COMMANDS // 2 + TURN_ENTRIES


async def test_an_event_that_cannot_be_written_ends_its_socket_and_fails_no_session_in_its_work(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async with served.session() as caller:
        runner = served.engine.sessions.get(caller.seen[0]["session"]["id"])
        assert runner is not None
        runner.reject(error(ErrorCode.ENGINE_ERROR, "half a character: \ud800"))
        assert await caller.rest() == []
        async with asyncio.timeout(10):
            await runner.ended.wait()
    assert served.engine.sessions.taken == 0
    assert f"the socket of {runner.session_id} failed" in caplog.text
    assert f"session {runner.session_id} failed" not in caplog.text
