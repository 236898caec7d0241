"""Every public coroutine of both clients, cancelled at each of its suspensions: client, server and engine are whole after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from duplex_client import BaseDuplexClient, DuplexClient, InlineDuplexClient, ResumePoint
from duplex_core.commands import SessionHeartbeat
from duplex_core.events import ResponseDone, ResponseStatus, SessionHeartbeatAck
from duplex_core.testing.speech import burst
from duplex_server.engine.lease import Lifetime
from tests.support.cancellation import Belongings, Cut, everywhere
from tests.support.serving import Served, serving

GRACE_S = 0.1
"""How long the server waits for a client that went away without hanging up, as one does whose connecting was cancelled."""
SPEECH = burst(400, 24_000)


class World:
    """A server with one slot, and what must be true of it between two cuts."""

    def __init__(self, served: Served, kind: str) -> None:
        self.served = served
        self.kind = kind
        self._belongings: Belongings | None = None

    def client(self) -> BaseDuplexClient:
        """A new one. It neither beats nor acknowledges by itself: the cut is all that happens to it."""
        if self.kind == "inline":
            return InlineDuplexClient(self.served.engine, heartbeat_s=None, ack_every=None)
        return DuplexClient(self.served.http, heartbeat_s=None, ack_every=None, reconnect=None)

    def resuming(self, point: ResumePoint) -> BaseDuplexClient:
        """A client that takes a session over."""
        args = (point.session_id, point.resume_token, point.last_server_event_seq)
        if self.kind == "inline":
            return InlineDuplexClient.resume(self.served.engine, *args, heartbeat_s=None, ack_every=None)
        return DuplexClient.resume(self.served.http, *args, heartbeat_s=None, ack_every=None, reconnect=None)

    async def connected(self) -> BaseDuplexClient:
        client = self.client()
        await client.connect()
        await client.update_session({"audio": {"input": {"turn_detection": None}}, "options": {"pace": 0.0}})
        return client

    async def free(self) -> None:
        """No session is held."""
        sessions = self.served.engine.sessions
        async with asyncio.timeout(20):
            while sessions.taken or sessions._runners:  # noqa: ASYNC110 - of the engine's own
                await asyncio.sleep(0)

    async def whole(self) -> None:
        """Nothing is held, nothing runs, and the next client's turn is answered."""
        await self.free()
        client = await self.connected()
        await turn(client)
        await client.close()
        await self.free()
        self.served.engine.sessions._reaper._cancel()
        if self._belongings is None:
            self._belongings = Belongings()
        await self._belongings.gone()


async def turn(client: BaseDuplexClient) -> None:
    await client.say_text("all is well")
    answer = await client.create_response()
    assert (await answer.wait()).value == "completed"


@pytest.fixture(params=["inline", "socket"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with serving(max_sessions=1, lifetime=Lifetime(disconnect_grace_s=GRACE_S)) as served:
        world = World(served, request.param)
        await world.whole()
        yield world


async def test_connecting(world: World) -> None:
    async def scene(cut: Cut[Any]) -> None:
        client = world.client()
        await cut(client.connect())
        await client.close()
        await world.whole()

    assert await everywhere(scene) >= 1


async def test_taking_a_session_over(world: World) -> None:
    """The session that was to be taken over is another client's, or waits: it is not ended by a cancelled attempt."""

    async def scene(cut: Cut[Any]) -> None:
        first = await world.connected()
        point = await first.detach()
        second = world.resuming(point)
        await cut(second.connect())
        if cut.reached:
            assert not second.connected
        else:
            await turn(second)
        await second.close()
        await world.whole()

    suspensions = await everywhere(scene)
    assert suspensions >= 1 or world.kind == "inline", "in the same process it is one step"


Verb = Callable[[BaseDuplexClient], Awaitable[Any]]
VERBS: dict[str, Verb] = {
    "update_session": lambda client: client.update_session({"instructions": "Be brief."}),
    "say_text": lambda client: client.say_text("hello"),
    "create_response": lambda client: client.create_response(),
    "clear_input": lambda client: client.clear_input(),
    "append_audio": lambda client: client.append_audio(SPEECH),
    "stream_pcm": lambda client: client.stream_pcm(SPEECH, 24_000, paced=False, chunk_ms=100),
    "stream_pcm, paced": lambda client: client.stream_pcm(SPEECH[: 24_000 * 2 // 10], 24_000, chunk_ms=20),
    "cancel_response": lambda client: client.cancel_response(),
    "ack_playback": lambda client: client.ack_playback(10.0),
    "clear_output": lambda client: client.clear_output(),
    "request": lambda client: client.request(SessionHeartbeat(), SessionHeartbeatAck),
    "send": lambda client: client.send(SessionHeartbeat()),
}


async def test_each_verb(world: World, subtests: pytest.Subtests) -> None:
    """The session goes on, whether the command was sent before the cancellation or not."""

    async def scene(cut: Cut[Any], verb: Verb) -> None:
        client = await world.connected()
        await cut(_of(verb, client))
        assert client.connected
        await client.cancel_response()  # refused when none was asked for
        await turn(client)
        await client.close()
        await world.whole()

    for name, verb in VERBS.items():
        with subtests.test(name):
            await everywhere(partial(scene, verb=verb))


async def _answer(client: BaseDuplexClient) -> ResponseStatus:
    return await (await anext(client.responses())).wait()


async def _audio(client: BaseDuplexClient) -> bytes:
    return b"".join([pcm async for pcm in (await anext(client.responses())).audio()])


async def _events(client: BaseDuplexClient) -> None:
    async for event in client.events():
        if isinstance(event, ResponseDone):
            return


WAITS: dict[str, Verb] = {
    "wait_for": lambda client: client.wait_for(ResponseDone),
    "events": _events,
    "an answer's end": _answer,
    "an answer's audio": _audio,
}


async def test_waiting(world: World, subtests: pytest.Subtests) -> None:
    """Who is cancelled while it waits takes nothing from those who wait beside it."""

    async def scene(cut: Cut[Any], wait: Verb) -> None:
        client = await world.connected()
        await client.append_audio(SPEECH)
        beside = client.wait_for(ResponseDone)
        asked: list[asyncio.Task[Any]] = []

        def ask() -> None:
            asked.append(asyncio.create_task(client.commit(response_create=True)))

        await cut(_of(wait, client), meanwhile=ask)
        done = await beside
        assert done.response.status is ResponseStatus.COMPLETED
        await asyncio.gather(*asked)
        await turn(client)
        await client.close()
        await world.whole()

    for name, wait in WAITS.items():
        with subtests.test(name):
            assert await everywhere(partial(scene, wait=wait)) >= 1


async def test_waiting_for_the_end(world: World) -> None:
    async def scene(cut: Cut[Any]) -> None:
        client = await world.connected()
        closing: list[asyncio.Task[None]] = []
        await cut(client.wait_closed(), meanwhile=lambda: closing.append(asyncio.create_task(client.close())))
        await asyncio.gather(*closing)
        await world.whole()

    assert await everywhere(scene) >= 1


@pytest.mark.parametrize("answering", [False, True])
async def test_closing(world: World, answering: bool) -> None:
    async def scene(cut: Cut[Any]) -> None:
        client = await world.connected()
        if answering:
            await client.update_session({"options": {"pace": 1.0}})
            await client.append_audio(SPEECH)
            await client.commit(response_create=True)
        await cut(client.close())
        await client.close()
        assert not client.connected
        await world.whole()

    assert await everywhere(scene) >= 1


async def test_letting_go(world: World) -> None:
    """A session that was let go of can be taken up by the token that is known; a cut in the midst costs no more than itself."""

    async def scene(cut: Cut[Any]) -> None:
        client = await world.connected()
        await cut(client.detach())
        await client.close()
        assert not client.connected
        await world.whole()

    assert await everywhere(scene) >= 1


async def test_the_whole_of_it(world: World) -> None:
    """From `async with` to the end of the block, around a spoken turn."""

    async def talk() -> None:
        async with world.client() as client:
            await client.update_session({"audio": {"input": {"turn_detection": None}}, "options": {"pace": 0.0}})
            await client.stream_pcm(SPEECH, 24_000, paced=False, chunk_ms=200)
            await client.commit(response_create=True)
            assert (await (await anext(client.responses())).wait()).value == "completed"

    async def scene(cut: Cut[Any]) -> None:
        await cut(talk())
        await world.whole()

    assert await everywhere(scene) >= 4


async def _of(verb: Verb, client: BaseDuplexClient) -> Any:
    return await verb(client)
