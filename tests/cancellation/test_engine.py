"""Every public coroutine of the engine, cancelled at each of its suspensions, in both moments: the engine is whole after it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from duplex_core.commands import (
    Command,
    ConversationItemCreate,
    InputAudioBufferClear,
    ResponseCreate,
    SessionHeartbeat,
)
from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.events import (
    Event,
    OutputTranscriptDelta,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    SessionClosed,
    SessionCreated,
)
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.stages import StagePlan
from duplex_server.engine.chat import AsyncOmni, ChatDone, ChatRequest, ChatText
from duplex_server.engine.lease import Lifetime
from duplex_server.engine.omni import DuplexOmni, DuplexSessionHandle, EngineSettings
from duplex_server.engine.runner import MAX_COMMANDS
from tests.support.cancellation import Belongings, Cut, everywhere
from tests.support.serving import engine_of, plugins_with
from tests.support.stages import Gated, gated_model, spec_of


def written(text: str) -> MessageItem:
    return MessageItem(role=Role.USER, content=(InputText(text=text),))


def asking(text: str) -> tuple[Command, ...]:
    return ConversationItemCreate(item=written(text)), ResponseCreate()


async def until(events: AsyncIterator[Event], kind: type) -> Any:
    async with asyncio.timeout(20):
        async for event in events:
            if isinstance(event, kind):
                return event
    raise AssertionError(f"the events ended without a {kind.__name__}")


async def converse(handle: DuplexSessionHandle, events: AsyncIterator[Event]) -> None:
    for command in asking("all is well"):
        await handle.submit(command)
    done = await until(events, ResponseDone)
    assert done.response.status is ResponseStatus.COMPLETED


class Bench:
    """An engine with one slot, and what must be true of it between two cuts."""

    def __init__(self, engine: DuplexOmni, gated: Gated, belongings: Belongings) -> None:
        self.engine = engine
        self.gated = gated
        self._belongings = belongings

    async def open(self) -> tuple[DuplexSessionHandle, AsyncIterator[Event]]:
        handle = await self.engine.open_session()
        events = handle.events()
        await until(events, SessionCreated)
        return handle, events

    async def whole(self) -> None:
        """Nothing is held, and the next session and the next chat are served."""
        engine = self.engine
        async with asyncio.timeout(20):
            while engine.sessions.taken or engine.chats or engine.sessions._runners:  # noqa: ASYNC110 - of the engine's own
                await asyncio.sleep(0)
        assert engine._stages.open_requests == 0, "stage work is left"
        assert engine._stages._stages["work"]._jobs == {}  # type: ignore[attr-defined]
        handle, events = await self.open()
        await converse(handle, events)
        await handle.aclose()
        assert engine.sessions.taken == 0
        # The reaper's one alarm is the engine's own and may stand between sessions.
        if (alarm := engine.sessions._reaper._alarm) is not None:
            alarm.cancel()
            engine.sessions._reaper._alarm = None
        await self._belongings.gone()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    gated = gated_model()
    async with engine_of(gated.spec, max_sessions=1) as engine:
        warm = await engine.open_session()
        await warm.aclose()
        engine.sessions._reaper._cancel()
        yield Bench(engine, gated, Belongings())


async def holding(bench: Bench, *, text: str = "hold") -> tuple[DuplexSessionHandle, AsyncIterator[Event]]:
    """A session whose answer is being made and comes to no end by itself."""
    handle, events = await bench.open()
    for command in asking(text):
        await handle.submit(command)
    await until(events, ResponseCreated)
    return handle, events


async def test_opening(bench: Bench) -> None:
    async def scene(cut: Cut[DuplexSessionHandle]) -> None:
        await cut(bench.engine.open_session())
        if cut.reached:
            assert bench.engine.sessions.taken == 0, f"{cut}: the slot is held after the cancellation came out"
        else:
            await cut.result.aclose()
        await bench.whole()

    assert await everywhere(scene) >= 1


async def test_resuming(bench: Bench) -> None:
    """It is one step: there is nowhere to cancel it."""

    async def scene(cut: Cut[DuplexSessionHandle]) -> None:
        handle = await bench.engine.open_session()
        created = await until(handle.events(), SessionCreated)
        handle.detach()
        token = created.session.resume_token
        await cut(bench.engine.resume_session(handle.session_id, token, 1))
        assert not cut.reached
        await converse(cut.result, cut.result.events())
        await cut.result.aclose()
        await bench.whole()

    assert await everywhere(scene) == 0


@pytest.mark.parametrize("way", ["aclose", "close_session", "wait_ended"])
async def test_closing_in_the_middle_of_an_answer(bench: Bench, way: str) -> None:
    async def scene(cut: Cut[None]) -> None:
        handle, events = await holding(bench)
        ways: dict[str, Callable[[], Any]] = {
            "aclose": handle.aclose,
            "close_session": lambda: bench.engine.close_session(handle.session_id),
            "wait_ended": handle.wait_ended,
        }
        await cut(ways[way](), meanwhile=handle.close)
        seen = [event async for event in events]
        assert [type(event) for event in seen].count(SessionClosed) == 1
        assert isinstance(seen[-1], SessionClosed)
        assert sum(isinstance(event, ResponseDone) for event in seen) == 1
        await bench.whole()

    assert await everywhere(scene) >= 1


async def test_saying_something_to_a_session_that_has_too_much_to_do(bench: Bench) -> None:
    async def scene(cut: Cut[None]) -> None:
        handle, events = await bench.open()

        async def flood() -> None:
            for _ in range(MAX_COMMANDS):
                handle.offer(InputAudioBufferClear())
            await handle.submit(InputAudioBufferClear())

        await cut(flood())
        await converse(handle, events)
        await handle.aclose()
        await bench.whole()

    assert await everywhere(scene) >= 1


async def test_reading_events(bench: Bench) -> None:
    """Whoever is cancelled while it waits for the next event has lost none: another reads on from there."""

    async def scene(cut: Cut[Any]) -> None:
        handle, _ = await bench.open()
        attachment = handle._attachment
        assert attachment is not None

        async def read() -> Event | None:
            return await attachment.get()

        await cut(read(), meanwhile=lambda: handle.offer(SessionHeartbeat()))
        if cut.reached:
            told = await attachment.get()
            assert told is not None
            assert told.server_event_seq == 2
        await handle.aclose()
        await bench.whole()

    assert await everywhere(scene) >= 1


@pytest.mark.parametrize("text", ["one two three", "one hold"])
async def test_answering_a_chat(bench: Bench, text: str) -> None:
    async def ask() -> list[Any]:
        request = ChatRequest(history=(written(text),))
        async with contextlib.aclosing(bench.engine.generate(request)) as events:
            said: list[Any] = []
            async for event in events:
                said.append(event)
                if "hold" in text and said == [ChatText(text="one ")]:
                    bench.gated.gate.let_go.set()
            return said

    async def scene(cut: Cut[Any]) -> None:
        bench.gated.gate.let_go.clear()
        await cut(ask())
        assert bench.engine.chats == 0, f"{cut}: the request runs after its cancellation came out"
        assert cut.reached or isinstance(cut.result[-1], ChatDone)
        bench.gated.gate.let_go.clear()
        await bench.whole()

    assert await everywhere(scene) >= 2


async def test_closing_a_chat_in_its_middle(bench: Bench) -> None:
    async def scene(cut: Cut[None]) -> None:
        events = bench.engine.generate(ChatRequest(history=(written("one hold"),)))
        await anext(events)
        await cut(events.aclose())
        await bench.whole()

    await everywhere(scene)


async def chat_with(engine: AsyncOmni) -> None:
    """Ask for an answer that does not end by itself."""
    async for _ in engine.generate(ChatRequest(history=(written("hold"),))):
        pass


# -- start and end -----------------------------------------------------------------------------------------------------


def two_stages() -> Gated:
    """A model with two stages, of which the second is idle."""
    gated = gated_model()
    plan = StagePlan(stages=(spec_of(gated.gate), msgspec.structs.replace(spec_of(gated.gate), name="idle")))
    return Gated(dataclasses.replace(gated.spec, stage_plan=lambda checkpoint, deploy: plan), gated.gate)


@pytest.mark.parametrize("kind", [AsyncOmni, DuplexOmni])
async def test_starting_and_ending_an_engine(kind: type[AsyncOmni]) -> None:
    """With a session and a chat in the middle of their answers, when it came so far."""
    settings: dict[str, Any] = {"settings": EngineSettings(detector="energy")} if kind is DuplexOmni else {}

    async def scene(cut: Cut[None]) -> None:
        belongings, gated = Belongings(), two_stages()
        plugins = plugins_with(gated.spec)
        handles: list[DuplexSessionHandle] = []
        chats: list[asyncio.Task[None]] = []

        async def run() -> None:
            starting: Any = kind.start("gated", plugins=plugins, **settings)
            async with starting as engine:
                if isinstance(engine, DuplexOmni):
                    handles.append(await engine.open_session())
                    for command in asking("hold"):
                        handles[-1].offer(command)
                chats.append(asyncio.create_task(chat_with(engine)))
                await asyncio.sleep(0)

        await cut(run())
        async with asyncio.timeout(20):
            for handle in handles:
                await handle.wait_ended()
            for chat in chats:
                with pytest.raises(DuplexError) as caught:
                    await chat
                assert caught.value.info.code is ErrorCode.SHUTDOWN
        await belongings.gone()
        assert gated.gate.closed == len(gated.gate.threads), "a stage's worker was made and never closed"

    assert await everywhere(scene) >= 4


async def test_shutting_down(bench: Bench) -> None:
    """Cut while it waits for a session that answers and for a chat; the shutting down that follows ends both."""

    async def scene(cut: Cut[None]) -> None:
        belongings = Belongings()
        gated = gated_model(concurrency=2)
        async with engine_of(gated.spec, max_sessions=2, lifetime=Lifetime()) as engine:
            handle = await engine.open_session()
            for command in asking("hold"):
                await handle.submit(command)
            chatting = asyncio.create_task(chat_with(engine))
            for _ in range(2):
                await asyncio.to_thread(gated.gate.holding.acquire)
            stopping = asyncio.create_task(cut(engine.shutdown(0.05)))
            await stopping
            assert not engine.ready
            await engine.shutdown(0.0)
            assert engine.sessions.taken == 0
            assert handle.ended
            chatting.cancel()
            await asyncio.wait([chatting])
            assert engine.chats == 0
        await belongings.gone()

    assert await everywhere(scene) >= 1


async def test_ending_a_session_before_its_first_step(bench: Bench) -> None:
    """The task of a session is cancelled from outside at each of its own suspensions: never without a last event."""
    handle, _ = await holding(bench, text="one hold")
    (task,) = [each for each in asyncio.all_tasks() if each.get_name() == handle.session_id]
    task.cancel()
    async with asyncio.timeout(20):
        await handle.wait_ended()
    await bench.whole()


async def test_waiting_for_text_of_an_answer(bench: Bench) -> None:
    """A reader that is cancelled leaves the answer alone: it goes on and ends once."""

    async def scene(cut: Cut[Any]) -> None:
        handle, _ = await bench.open()
        for command in asking("one two"):
            await handle.submit(command)
        attachment = handle._attachment
        assert attachment is not None
        seen: list[Any] = []

        async def read() -> None:
            while (event := await attachment.get()) is not None:
                seen.append(event)
                if isinstance(event, ResponseDone):
                    return

        await cut(read())
        if cut.reached:
            await read()
        assert [type(event) for event in seen].count(OutputTranscriptDelta) == 2
        assert [event.server_event_seq for event in seen] == list(range(2, len(seen) + 2))
        await handle.aclose()
        await bench.whole()

    assert await everywhere(scene) >= 1
