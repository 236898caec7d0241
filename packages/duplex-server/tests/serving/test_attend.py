"""One socket's task, step by step: cancelled anywhere, or losing its client in each way. No network, and in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import WebSocket

from duplex_core.commands import SessionHeartbeat, SessionResume
from duplex_core.events import SessionHeartbeatAck
from duplex_core.wire import encode_command
from duplex_server.engine.omni import DuplexOmni
from duplex_server.serving import realtime
from duplex_server.serving.keys import Keys
from tests.support.talking import Listener, opened, talking
from tests.support.virtual_loop import in_virtual_time, settle


class Peer:
    """A client at the other end of an ASGI WebSocket: what it says is put in, what it is told stands in ``told``."""

    def __init__(self, query: str = "") -> None:
        self.told: list[dict[str, Any]] = []
        self.closed: int | None = None
        self.gone = False
        self.blocked = False
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said.put_nowait({"type": "websocket.connect"})
        scope = {
            "type": "websocket",
            "path": "/v1/realtime",
            "query_string": query.encode(),
            "headers": [],
            "subprotocols": [],
        }
        self.socket = WebSocket(scope, self._said.get, self._send)

    def say(self, text: str) -> None:
        self._said.put_nowait({"type": "websocket.receive", "text": text})

    def leave(self, code: int, **more: Any) -> None:
        self._said.put_nowait({"type": "websocket.disconnect", "code": code, **more})

    async def _send(self, message: Any) -> None:
        await asyncio.sleep(0)
        if self.blocked:
            await asyncio.Event().wait()
        if self.gone:
            raise OSError("the connection is gone")
        if message["type"] == "websocket.send":
            self.told.append(json.loads(message["text"]))
        elif message["type"] == "websocket.close":
            self.closed = message["code"]

    def types(self) -> list[str]:
        return [event["type"] for event in self.told]


def attend(peer: Peer, engine: DuplexOmni) -> asyncio.Task[None]:
    return asyncio.create_task(realtime.attend(peer.socket, engine, Keys(None)))


def resume_of(listener: Listener) -> str:
    return encode_command(
        SessionResume(
            session_id=listener.handle.session_id,
            resume_token=listener.token,
            last_server_event_seq=listener.last_seq,
        )
    )


@in_virtual_time
async def test_a_resuming_socket_that_is_cancelled_at_any_step_leaves_no_orphan() -> None:
    """After each number of steps: the earlier owner has the session still, or the session waits in grace and ends."""
    outcomes = []
    for steps in range(40):
        async with talking() as engine:
            first = await opened(engine)
            await first.ask()
            peer = Peer("autostart=0")
            peer.say(resume_of(first))
            task = attend(peer, engine)
            await settle(steps)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await settle()
            if first.handle.attached:
                await first.handle.submit(SessionHeartbeat())
                await first.until(SessionHeartbeatAck)
                first.handle.detach()
            else:
                assert engine.sessions.detached == 1
            outcomes.append("session.resumed" in peer.types())
            begun = asyncio.get_running_loop().time()
            await first.handle.wait_ended()
            assert asyncio.get_running_loop().time() - begun == pytest.approx(30.0, abs=0.01)
    assert outcomes[0] is False
    assert outcomes[-1] is True


@in_virtual_time
async def test_an_opening_socket_that_is_cancelled_at_any_step_leaves_no_slot() -> None:
    for steps in range(40):
        async with talking() as engine:
            peer = Peer()
            task = attend(peer, engine)
            await settle(steps)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(31.0)
            assert engine.sessions.taken == 0, steps


@pytest.mark.parametrize(
    ("code", "more", "ends"),
    [
        (1000, {"reason": ""}, True),
        (1005, {"reason": ""}, True),
        (1005, {}, False),
        (1006, {}, False),
        (1001, {"reason": "tab closed"}, False),
        (1012, {}, False),
    ],
)
@pytest.mark.parametrize("writer_first", [False, True])
def test_how_a_client_went_decides_whether_its_session_waits(
    code: int, more: dict[str, Any], ends: bool, writer_first: bool
) -> None:
    """Also when the sending side sees first that it has gone."""

    @in_virtual_time
    async def run() -> None:
        async with talking() as engine:
            peer = Peer()
            task = attend(peer, engine)
            await settle()
            assert peer.types() == ["session.created"]
            if writer_first:
                peer.gone = True
                peer.say('{"type": "session.heartbeat"}')
                await settle()
                assert engine.sessions.detached == 0, "how it went is not known yet"
            peer.leave(code, **more)
            await task
            await settle()
            assert (engine.sessions.taken, engine.sessions.detached) == ((0, 0) if ends else (1, 1))
            await asyncio.sleep(31.0)

    run()


@in_virtual_time
async def test_a_client_that_takes_nothing_any_more_is_not_waited_for_at_the_end() -> None:
    async with talking() as engine:
        peer = Peer()
        task = attend(peer, engine)
        await settle()
        peer.blocked = True
        peer.say('{"type": "session.close"}')
        begun = asyncio.get_running_loop().time()
        await task
        assert asyncio.get_running_loop().time() - begun == pytest.approx(realtime.LINGER_S)
        assert engine.sessions.taken == 0


@in_virtual_time
async def test_a_socket_that_cannot_be_served_ends_its_session_with_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with talking() as engine:
        peer = Peer()
        task = attend(peer, engine)
        await settle()

        def broken(*_args: Any, **_more: Any) -> str:
            raise ValueError("this cannot be written")

        monkeypatch.setattr(realtime, "encode_event", broken)
        peer.say('{"type": "session.heartbeat"}')
        with pytest.raises(ValueError, match="cannot be written"):
            await task
        await settle()
        assert engine.sessions.taken == 0
        assert "this cannot be written" in caplog.text


@in_virtual_time
async def test_a_socket_that_says_nothing_is_given_up() -> None:
    async with talking() as engine:
        peer = Peer("autostart=0")
        begun = asyncio.get_running_loop().time()
        await attend(peer, engine)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(realtime.FIRST_COMMAND_S)
        assert peer.types() == ["error"]
        assert peer.closed == 1008
