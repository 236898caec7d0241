"""The same application code, over a socket and in process, with the real engine, real speech and real time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from demo.user import Line, spoken
from duplex_client import (
    BaseDuplexClient,
    CommandRefused,
    ConnectionClosed,
    DuplexClient,
    HeardAnswer,
    InlineDuplexClient,
    Player,
    ServerRefused,
)
from duplex_client.audio import SESSION_RATE_HZ
from duplex_core.errors import ErrorCode
from duplex_core.events import CloseReason, OutputBufferCleared, SessionClosed, SpeechStarted, SpeechStopped
from duplex_server.engine.omni import DuplexOmni, EngineSettings
from duplex_server.serving.app import create_app
from duplex_server.serving.server import Server, address_of, listen

pytestmark = pytest.mark.slow

SILENCE = bytes(SESSION_RATE_HZ * 2 * 4 // 10)
BRIEF = {"type": "server_vad", "silence_duration_ms": 250}


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return spoken([("statement", "I would like to hear this sentence again."), ("interruption", "Stop it now.")])


@asynccontextmanager
async def echoing(settings: EngineSettings | None = None) -> AsyncIterator[DuplexOmni]:
    async with DuplexOmni.start("echo", settings=settings) as engine:
        yield engine


@pytest.fixture
async def engine() -> AsyncIterator[DuplexOmni]:
    async with echoing() as running:
        yield running


@asynccontextmanager
async def over_a_socket(engine: DuplexOmni) -> AsyncIterator[BaseDuplexClient]:
    listener, ready = listen("127.0.0.1", 0), asyncio.Event()
    with listener:
        server = Server(create_app(engine), ready.set)
        serving = asyncio.create_task(server.serve([listener]))
        await ready.wait()
        try:
            async with DuplexClient(address_of(listener)) as client:
                yield client
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def in_process(engine: DuplexOmni) -> AsyncIterator[BaseDuplexClient]:
    async with InlineDuplexClient(engine) as client:
        yield client


@dataclass(kw_only=True)
class Outcome:
    """What an application got out of a conversation."""

    heard: list[HeardAnswer] = field(default_factory=list)
    audio: list[bytes] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    refused: ErrorCode | None = None
    order: list[str] = field(default_factory=list)


async def application(client: BaseDuplexClient, lines: list[Line]) -> Outcome:
    """Speak and be answered, interrupt, ask in writing, be refused: everything that an application does."""
    outcome = Outcome()

    class Sink:
        def heard(self, answer: HeardAnswer) -> None:
            outcome.heard.append(answer)

    kinds = (SpeechStarted, SpeechStopped, OutputBufferCleared)
    client.observe(lambda event, _at: outcome.order.append(type(event).__name__) if isinstance(event, kinds) else None)
    await client.update_session({"audio": {"input": {"turn_detection": BRIEF}}})
    async with Player(client, sinks=[Sink()]) as player:
        await client.stream_pcm(lines[0].pcm + SILENCE, SESSION_RATE_HZ)
        first = await anext(client.responses())
        outcome.audio.append(b"".join([chunk async for chunk in first.audio()]))
        outcome.statuses.append((await first.wait()).value)
        await player.idle()

        await client.stream_pcm(lines[0].pcm + SILENCE, SESSION_RATE_HZ)
        second = await anext(client.responses())
        assert await player.reached(second.response_id, 300.0)
        await client.stream_pcm(lines[1].pcm + SILENCE, SESSION_RATE_HZ)
        outcome.statuses.append((await second.wait()).value)
        third = await anext(client.responses())
        outcome.statuses.append((await third.wait()).value)
        await player.idle()

        await client.say_text("in writing")
        fourth = await client.create_response()
        outcome.statuses.append((await fourth.wait()).value)
        await player.idle()
        outcome.said = [first.transcript, fourth.transcript]
        try:
            await client.update_session({"audio": {"output": {"voice": "nobody"}}})
        except CommandRefused as exc:
            outcome.refused = exc.info.code
    return outcome


@pytest.mark.parametrize("connect", [over_a_socket, in_process])
async def test_the_same_application_runs_on_both(connect: object, engine: DuplexOmni, lines: list[Line]) -> None:
    assert callable(connect)
    async with connect(engine) as client:
        outcome = await application(client, lines)
        events = client.events()
        await client.close()
        ending = [event async for event in events][-1]
    assert isinstance(ending, SessionClosed)
    assert ending.reason is CloseReason.CLIENT
    assert engine.sessions.taken == 0

    assert outcome.statuses == ["completed", "cancelled", "completed", "completed"]
    assert outcome.said[0].startswith("You said ")
    assert outcome.said[1] == "in writing"
    assert outcome.refused is ErrorCode.INVALID_VALUE
    spoken_part = ["SpeechStarted", "SpeechStopped"]
    assert outcome.order == [*spoken_part, *spoken_part, "SpeechStarted", "OutputBufferCleared", "SpeechStopped"]

    whole, cut, *_ = outcome.heard
    assert whole.cut_at_ms is None
    assert b"".join(span.pcm for span in whole.spans) == outcome.audio[0]
    assert whole.played_ms == pytest.approx(lines[0].voiced_ms[1], rel=0.35), "echo says back what it heard"
    assert cut.cut_at_ms is not None
    assert 300.0 <= cut.played_ms < cut.received_ms


async def test_a_full_engine_refuses_the_same_way_on_both() -> None:
    async with echoing(EngineSettings(max_sessions=1)) as engine:
        async with InlineDuplexClient(engine) as _taken:
            for connect in (over_a_socket, in_process):
                with pytest.raises(ServerRefused) as caught:
                    async with connect(engine):
                        pass
                assert caught.value.info is not None
                assert caught.value.info.code is ErrorCode.RESOURCE_EXHAUSTED
                assert caught.value.retryable
        async with over_a_socket(engine) as client:
            assert client.session.model == "echo"


async def test_an_engine_that_stops_tells_both_the_same() -> None:
    for connect in (over_a_socket, in_process):
        async with echoing() as engine, connect(engine) as client:
            waiting = asyncio.ensure_future(client.wait_for(OutputBufferCleared))
            await asyncio.sleep(0)
            await engine.shutdown(0.0)
            with pytest.raises(ConnectionClosed) as caught:
                await waiting
            assert caught.value.reason is CloseReason.SHUTDOWN
