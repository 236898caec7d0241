"""The client through a line that breaks, with the real server, the real engine and real speech."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from demo.user import spoken
from duplex_client import (
    BaseDuplexClient,
    ConnectionClosed,
    DuplexClient,
    HeardAnswer,
    InlineDuplexClient,
    Player,
    Reconnecting,
    ReconnectPolicy,
    Resumed,
    ResumePoint,
    ResyncRequired,
    ServerRefused,
    SessionExpired,
    SessionReplaced,
)
from duplex_client.audio import SESSION_RATE_HZ
from duplex_client.transport import Transport
from duplex_core.errors import ErrorCode, error
from duplex_core.events import CloseReason, Event, OutputAudioDelta, ResponseDone, SessionClosed
from duplex_server.engine.lease import Lifetime
from duplex_server.engine.omni import DuplexOmni, EngineSettings
from duplex_server.serving.app import create_app
from duplex_server.serving.server import Server, listen
from tests.clients.resuming import Changes, Cutter, cutting

pytestmark = pytest.mark.slow

QUICK = ReconnectPolicy(first_ms=20.0, longest_ms=200.0, give_up_after_s=20.0)
BY_HAND = {"audio": {"input": {"turn_detection": None}}, "options": {"pace": 0.2}}


@asynccontextmanager
async def echoing(lifetime: Lifetime | None = None) -> AsyncIterator[tuple[DuplexOmni, Cutter]]:
    """An engine, and the server on it behind a line that can be cut."""
    settings = EngineSettings(lifetime=lifetime or Lifetime())
    async with DuplexOmni.start("echo", settings=settings) as engine:
        listener, ready = listen("127.0.0.1", 0), asyncio.Event()
        with listener:
            server = Server(create_app(engine), ready.set)
            serving = asyncio.create_task(server.serve([listener]))
            await ready.wait()
            try:
                async with cutting(listener.getsockname()[1]) as cutter:
                    yield engine, cutter
            finally:
                server.should_exit = True
                await serving


@pytest.fixture(scope="module")
def question() -> bytes:
    (line,) = spoken([("statement", "I would like to hear this sentence again, all of it and in one piece.")])
    return line.pcm


async def ask(client: BaseDuplexClient, question: bytes) -> None:
    await client.update_session(BY_HAND)
    await client.stream_pcm(question, SESSION_RATE_HZ, paced=False, chunk_ms=100.0)
    await client.commit(response_create=True)


@pytest.mark.parametrize("cuts", [1, 3])
async def test_an_answer_is_heard_whole_although_the_line_is_cut_in_its_middle(question: bytes, cuts: int) -> None:
    async with echoing() as (engine, cutter):
        async with InlineDuplexClient(engine) as near:
            await ask(near, question)
            answer = await anext(near.responses())
            uncut = b"".join([pcm async for pcm in answer.audio()])
            transcript = answer.transcript
        changes, seen, heard = Changes(), list[Event](), list[HeardAnswer]()

        class Ears:
            def heard(self, answer: HeardAnswer) -> None:
                heard.append(answer)

        client = DuplexClient(cutter.url, reconnect=QUICK)
        client.on_connection(changes)
        async with client:
            client.observe(lambda event, _at_ms: seen.append(event))
            async with Player(client, sinks=[Ears()]) as player:
                await ask(client, question)
                answer = await anext(client.responses())
                pieces: list[bytes] = []
                made = 0
                async for pcm in answer.audio():
                    pieces.append(pcm)
                    if made < cuts and len(pieces) >= 2 + 3 * made and len(changes.told) == 2 * made:
                        cutter.cut()
                        made += 1
                assert (await answer.wait()).value == "completed"
                await player.idle()
            assert not answer.events_lost
        assert b"".join(pieces) == uncut
        assert answer.transcript == transcript
        assert b"".join(span.pcm for span in heard[0].spans) == uncut
        assert heard[0].cut_at_ms is None
        assert changes.kinds == [Reconnecting, Resumed] * cuts
        assert [event.server_event_seq for event in seen] == list(range(2, len(seen) + 2))
        assert cutter.connections == 1 + cuts
        assert engine.sessions.taken == 0


async def test_the_conversation_goes_on_after_the_line_broke_while_the_user_spoke(question: bytes) -> None:
    async with echoing() as (engine, cutter):
        changes = Changes()
        client = DuplexClient(cutter.url, reconnect=QUICK)
        client.on_connection(changes)
        async with client:
            await client.update_session(BY_HAND)
            sent = 0

            def cut_in_the_middle(_chunk: object) -> None:
                nonlocal sent
                sent += 1
                if sent == 20:
                    cutter.up.clear()
                    cutter.cut()
                    asyncio.get_running_loop().call_later(0.2, cutter.up.set)

            await client.stream_pcm(question, SESSION_RATE_HZ, on_chunk=cut_in_the_middle)
            await client.commit(response_create=True)
            answer = await anext(client.responses())
            assert (await answer.wait()).value == "completed"
            spoken_ms = 1000.0 * len(question) / (2 * SESSION_RATE_HZ)
            lost_ms = changes.back.dropped_audio_ms
            assert 100.0 < lost_ms < 2000.0
            assert 0.0 < answer.received_ms <= spoken_ms - lost_ms + 100.0
            assert changes.kinds == [Reconnecting, Resumed]
        assert engine.sessions.taken == 0


async def test_a_session_is_taken_over_by_another_client_and_in_process(question: bytes) -> None:
    async with echoing() as (engine, cutter):
        async with DuplexClient(cutter.url, reconnect=QUICK) as first:
            await ask(first, question)
            await first.wait_for(OutputAudioDelta)
            point = first.resume_point
            assert point is not None
            args = (point.session_id, point.resume_token, point.last_server_event_seq)
            async with DuplexClient.resume(cutter.url, *args, reconnect=QUICK) as second:
                done = second.wait_for(ResponseDone)
                with pytest.raises(SessionReplaced):
                    await first.wait_for(ResponseDone)
                await done
                point = await second.detach()
        assert engine.sessions.taken == 1
        args = (point.session_id, point.resume_token, point.last_server_event_seq)
        async with InlineDuplexClient.resume(engine, *args) as third:
            await third.say_text("once more")
            answer = await third.create_response()
            assert (await answer.wait()).value == "completed"
            assert third.session.attachment_generation == 3
        assert engine.sessions.taken == 0


class Late(DuplexClient):
    """Comes back when its session is gone."""

    def __init__(self, url: str) -> None:
        super().__init__(url, reconnect=QUICK)
        self.gone = asyncio.Event()

    async def _open(self, resume: ResumePoint | None) -> Transport:
        if resume is not None:
            await self.gone.wait()
        return await super()._open(resume)


async def test_a_session_that_expired_meanwhile_is_given_up_and_says_so_once() -> None:
    async with echoing(Lifetime(disconnect_grace_s=0.1)) as (engine, cutter):
        changes, seen = Changes(), list[Event]()
        client = Late(cutter.url)
        client.on_connection(changes)
        async with client:
            client.observe(lambda event, _at_ms: seen.append(event))
            session = engine.get_session(client.session.id)
            assert session is not None
            cutter.cut()
            await session.wait_ended()
            client.gone.set()
            with client.events() as events:
                last = await anext(events)
                with pytest.raises(SessionExpired) as caught:
                    await anext(events)
            assert isinstance(last, SessionClosed)
            assert caught.value.reason is CloseReason.EXPIRED
            with pytest.raises(SessionExpired):
                await client.wait_for(ResponseDone)
            assert not client.connected
        assert [type(event) for event in seen] == [SessionClosed]
        assert changes.kinds == [Reconnecting, ResyncRequired], "session.expired was missed"
        assert engine.sessions.taken == 0


async def test_a_session_that_failed_meanwhile_says_why() -> None:
    async with echoing() as (engine, cutter), Late(cutter.url) as client:
        session = engine.get_session(client.session.id)
        assert session is not None
        cutter.cut()
        async with asyncio.timeout(10):
            while session.attached and not engine.sessions.detached:  # noqa: ASYNC110 - of the engine's own
                await asyncio.sleep(0)
        session.close(CloseReason.ERROR, error(ErrorCode.ENGINE_ERROR, "a stage died"))
        await session.wait_ended()
        client.gone.set()
        with pytest.raises(ConnectionClosed) as caught:
            await client.wait_for(ResponseDone)
        assert caught.value.reason is CloseReason.ERROR
        assert caught.value.info is not None
        assert caught.value.info.code is ErrorCode.ENGINE_ERROR


@pytest.mark.parametrize("kind", ["socket", "inline"])
async def test_taking_over_a_session_that_has_ended_is_refused_with_its_end(kind: str) -> None:
    async with echoing() as (engine, cutter):
        async with DuplexClient(cutter.url) as client:
            point = await client.detach()
        await engine.close_session(point.session_id)
        args = (point.session_id, point.resume_token, point.last_server_event_seq)
        late: BaseDuplexClient
        late = DuplexClient.resume(cutter.url, *args) if kind == "socket" else InlineDuplexClient.resume(engine, *args)
        with pytest.raises(ServerRefused, match="has ended \\(client_closed\\)"):
            await late.connect()
