"""A model of two linked stages through the engine: one answer of both, stopped on both at once, its seats given back always."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import generate_latest

from duplex_core.commands import ConversationItemCreate, ResponseCancel, ResponseCreate
from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.events import (
    CloseReason,
    ErrorEvent,
    OutputAudioDelta,
    ResponseDone,
    ResponseStatus,
    SessionClosed,
)
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.stages import LinkKind, Purpose, StageMetrics
from duplex_server.engine.chat import ChatDone, ChatRequest, ChatText
from duplex_server.engine.omni import DuplexOmni, DuplexSessionHandle
from duplex_server.engine.served import ModelUnavailable
from tests.support.linked import Linked, LinkedSession, linked_model
from tests.support.serving import engine_of, serving


@contextlib.asynccontextmanager
async def running(model: Linked, **settings: Any) -> AsyncIterator[DuplexOmni]:
    async with engine_of(model.spec, extra=(model.runtime,), **settings) as engine:
        yield engine
    assert all(stage.closed for stage in model.runtime.stages.values())


def message(text: str) -> MessageItem:
    return MessageItem(role=Role.USER, content=(InputText(text=text),))


class Client:
    """One session, and what it was told."""

    def __init__(self, handle: DuplexSessionHandle) -> None:
        self.handle = handle
        self.seen: list[Any] = []
        self._events = handle.events()

    async def ask(self, text: str = "what is new?") -> None:
        await self.handle.submit(ConversationItemCreate(item=message(text)))
        await self.handle.submit(ResponseCreate())

    async def until(self, kind: type) -> Any:
        async with asyncio.timeout(20):
            async for event in self._events:
                self.seen.append(event)
                if isinstance(event, kind):
                    return event
        raise AssertionError(f"the events ended without {kind.__name__}")


async def opened(engine: DuplexOmni) -> Client:
    return Client(await engine.open_session())


async def refused(opening: Any) -> DuplexError:
    with pytest.raises(DuplexError) as caught:
        await opening
    return caught.value


def asking(text: str = "what is new?") -> ChatRequest:
    return ChatRequest(history=(message(text),))


# -- one answer of two stages ------------------------------------------------------------------------------------------


async def test_what_is_forwarded_along_a_link_of_another_kind_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = linked_model()
    async with running(model) as engine:
        client = await opened(engine)
        await client.ask()
        thinker = model.runtime.thinker
        thought = await thinker.asked()
        thinker.say(thought, "All is well.", forward=[1, 2], kind=LinkKind.EMBEDDINGS)
        thinker.say(thought, forward=[3], kind=LinkKind.EMBEDDINGS, final=True)
        done = await client.until(ResponseDone)
        assert done.response.status is ResponseStatus.COMPLETED
    told = [each.getMessage() for each in caplog.records if "goes nowhere" in each.getMessage()]
    assert told == ["stage thinker forwards embeddings, which goes nowhere: its links are for tokens"]


async def test_an_answer_is_made_by_both_stages_and_tells_what_each_did() -> None:
    model = linked_model()
    async with running(model) as engine:
        client = await opened(engine)
        await client.ask()
        thinker, talker = model.runtime.thinker, model.runtime.talker
        thought = await thinker.asked()
        thinker.say(thought, "All is ", forward=[1, 2])
        first = await talker.asked()
        assert (first.payload, first.fence, first.purpose) == ([1, 2], thought.fence, Purpose.SESSION)
        talker.say(first, bytes(960))
        told = StageMetrics(stage="thinker", queue_ms=1.0, first_ms=5.0, total_ms=9.0, input_tokens=3, output_tokens=2)
        thinker.say(thought, "well.", forward=[3], final=True, metrics=(told,))
        second = await talker.asked()
        talker.say(first, final=True)
        talker.say(second, bytes(480), final=True)
        done = await client.until(ResponseDone)
        assert done.response.status is ResponseStatus.COMPLETED
        assert done.response.output[0].content[0].transcript == "All is well."
        assert sum(len(each.delta) for each in client.seen if isinstance(each, OutputAudioDelta)) == 1440
        of_thinker, of_talker = done.metrics.stages
        assert of_thinker.stage == "thinker"
        assert (of_thinker.input_tokens, of_thinker.output_tokens, of_thinker.total_ms) == (3, 2, 9.0)
        assert of_talker.stage == "talker"
        assert 0 <= of_thinker.begun_ms <= of_talker.begun_ms
        assert of_talker.first_ms is not None
        assert of_talker.begun_ms + of_talker.total_ms <= done.metrics.total_ms
        assert of_thinker.whole
        assert of_talker.whole
        text = generate_latest(engine.metrics.registry).decode()
        assert 'duplex_stage_seconds_count{stage="talker"} 1.0' in text


async def test_an_interruption_stops_both_stages_at_once_and_tells_what_is_known() -> None:
    model = linked_model()
    async with running(model) as engine:
        client = await opened(engine)
        await client.ask()
        thinker, talker = model.runtime.thinker, model.runtime.talker
        thought = await thinker.asked()
        thinker.say(thought, "All is well.", forward=[1])
        speech = await talker.asked()
        talker.say(speech, bytes(960))
        told = StageMetrics(stage="thinker", first_ms=5.0, total_ms=9.0, output_tokens=40)
        thinker.say(thought, final=True, metrics=(told,))
        await client.until(OutputAudioDelta)
        await client.handle.submit(ResponseCancel())
        done = await client.until(ResponseDone)
        assert done.response.status is ResponseStatus.CANCELLED
        assert talker.aborted == [speech]
        assert thinker.open == talker.open == {}
        of_thinker, of_talker = done.metrics.stages
        assert (of_thinker.output_tokens, of_thinker.whole) == (40, True), "what had ended is told in full"
        assert (of_talker.stage, of_talker.whole) == ("talker", False)
        assert of_talker.first_ms is not None
        assert of_talker.total_ms >= of_talker.first_ms
        await client.ask("and now?")
        again = await thinker.asked()
        assert again.fence.epoch == thought.fence.epoch + 1


async def test_a_stage_that_fails_ends_the_answer_on_all_stages_and_not_the_session() -> None:
    model = linked_model()
    async with running(model) as engine:
        client = await opened(engine)
        await client.ask()
        thinker, talker = model.runtime.thinker, model.runtime.talker
        thought = await thinker.asked()
        thinker.say(thought, "All is", forward=[1])
        speech = await talker.asked()
        talker.fail(speech, "no voice today")
        done = await client.until(ResponseDone)
        assert done.response.status is ResponseStatus.FAILED
        assert done.response.status_details.error.message == "no voice today"
        assert thinker.aborted == [thought]
        assert {each.stage for each in done.metrics.stages} == {"thinker", "talker"}
        await client.ask("once more")
        thinker.say(await thinker.asked(), "Yes.", final=True)
        assert (await client.until(ResponseDone)).response.status is ResponseStatus.COMPLETED


async def test_a_part_that_fails_at_once_keeps_the_next_from_being_given_out() -> None:
    """A stage may answer while it is being asked: then what was to be asked next is not wanted any more."""
    model = linked_model(talkers=2)
    async with running(model) as engine:
        client = await opened(engine)
        thinker, hasty, other = model.runtime.stages.values()

        def refuse(request: Any) -> None:
            hasty.open[request.fence.session_id, request.request_id] = request
            hasty.fail(request, "not now")

        hasty.submit = refuse  # type: ignore[method-assign]
        await client.ask()
        thought = await thinker.asked()
        thinker.say(thought, forward=[1])
        done = await client.until(ResponseDone)
        assert done.response.status_details.error.message == "not now"
        assert thinker.aborted == [thought]
        assert other.open == {}
        assert engine._stages.open_requests == 0


# -- seats -------------------------------------------------------------------------------------------------------------


async def test_a_session_holds_a_seat_on_every_stage_from_its_admission_to_its_end() -> None:
    model = linked_model()
    async with running(model) as engine:
        client = await opened(engine)
        stages = model.runtime.stages.values()
        assert all(stage.placed == {client.handle.session_id} for stage in stages)
        await client.handle.aclose()
        assert all(stage.placed == set() for stage in stages)
        assert engine.sessions.taken == 0


async def test_a_session_that_one_stage_has_no_seat_for_has_none_at_all() -> None:
    model = linked_model(sessions=2)
    async with running(model, max_sessions=2) as engine:
        thinker, talker = model.runtime.thinker, model.runtime.talker
        talker.placed.add("somebody else's")
        await opened(engine)
        failure = await refused(engine.open_session())
        assert failure.info.code is ErrorCode.RESOURCE_EXHAUSTED
        assert failure.info.message == "stage talker: all 2 seats are taken"
        assert failure.info.retryable
        assert (len(thinker.placed), engine.sessions.taken) == (1, 1)
        text = generate_latest(engine.metrics.registry).decode()
        assert 'duplex_admissions_total{outcome="resource_exhausted"} 1.0' in text
        talker.placed.discard("somebody else's")
        await opened(engine)
        assert engine.sessions.taken == 2


async def test_seats_are_given_back_when_an_open_is_cancelled_or_goes_wrong() -> None:
    begun, let_go, broken = threading.Event(), threading.Event(), threading.Event()

    def slow() -> LinkedSession:
        begun.set()
        assert let_go.wait(20)
        if broken.is_set():
            raise OSError("no reference voice")
        return LinkedSession()

    model = linked_model(sessions=1, create=slow)
    async with running(model) as engine:
        assert engine.sessions.max_sessions == 1
        opening = asyncio.create_task(engine.open_session())
        await asyncio.to_thread(begun.wait, 20)
        assert len(model.runtime.talker.placed) == 1
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert model.runtime.talker.placed == set()
        let_go.set()
        broken.set()
        assert (await refused(engine.open_session())).info.code is ErrorCode.INTERNAL_ERROR
        assert model.runtime.thinker.placed == set()
        broken.clear()
        await opened(engine)


class Breaking(LinkedSession):
    """A model that raises when it is asked anything."""

    def handle(self, event: Any, now_ms: float) -> Any:
        if self.asked:
            raise KeyError("a rule that was forgotten")
        return super().handle(event, now_ms)


async def test_seats_are_given_back_when_a_session_crashes() -> None:
    model = linked_model(sessions=1, create=Breaking)
    async with running(model) as engine:
        client = await opened(engine)
        await client.ask()
        thinker = model.runtime.thinker
        thinker.say(await thinker.asked(), "All is well.")
        closed = await client.until(SessionClosed)
        assert closed.reason is CloseReason.ERROR
        assert thinker.placed == model.runtime.talker.placed == set()
        assert thinker.open == {}
        await opened(engine)


@pytest.mark.parametrize(("replicas", "held"), [(1, 2), (3, 6)])
async def test_there_are_no_more_sessions_than_the_stages_hold(replicas: int, held: int) -> None:
    model = linked_model(sessions=4, talker_sessions=2, replicas=replicas)
    async with running(model) as engine:
        assert engine.sessions.max_sessions == min(held, model.spec.max_sessions)
    with pytest.raises(ModelUnavailable, match=rf"stage talker holds {held} sessions \({replicas} x 2\)"):
        async with running(linked_model(sessions=9, talker_sessions=2, replicas=replicas), max_sessions=held + 1):
            pass


# -- loss --------------------------------------------------------------------------------------------------------------


async def test_a_lost_stage_ends_its_sessions_busy_or_not_and_no_other() -> None:
    model = linked_model()
    async with running(model) as engine:
        busy, parked, other = [await opened(engine) for _ in range(3)]
        await busy.ask()
        thinker, talker = model.runtime.thinker, model.runtime.talker
        thought = await thinker.asked()
        thinker.say(thought, "All is", forward=[1])
        await talker.asked()
        for client in (busy, parked):
            talker.lose(client.handle.session_id)
        done = await busy.until(ResponseDone)
        assert done.response.status is ResponseStatus.FAILED
        assert {each.stage for each in done.metrics.stages} == {"thinker", "talker"}
        for client in (busy, parked):
            failure = (await client.until(ErrorEvent)).error
            assert (failure.code, failure.retryable) == (ErrorCode.ENGINE_ERROR, True)
            closed = await client.until(SessionClosed)
            assert (closed.reason, closed.error) == (CloseReason.ERROR, failure)
        assert engine.sessions.taken == 1
        assert thinker.placed == talker.placed == {other.handle.session_id}
        assert thinker.aborted == [thought]
        await other.ask()
        thinker.say(await thinker.asked(), "Still here.", final=True)
        assert (await other.until(ResponseDone)).response.status is ResponseStatus.COMPLETED


async def test_a_session_whose_seat_is_lost_while_it_opens_is_refused_and_leaves_nothing() -> None:
    begun, let_go = threading.Event(), threading.Event()

    def slow() -> LinkedSession:
        begun.set()
        assert let_go.wait(20)
        return LinkedSession()

    model = linked_model(sessions=1, create=slow)
    async with running(model) as engine:
        opening = asyncio.create_task(engine.open_session())
        await asyncio.to_thread(begun.wait, 20)
        talker = model.runtime.talker
        (session_id,) = talker.placed
        talker.lose(session_id)
        let_go.set()
        failure = await refused(opening)
        assert (failure.info.code, failure.info.retryable) == (ErrorCode.ENGINE_ERROR, True)
        assert "lost the session" in failure.info.message
        assert (engine.sessions.taken, talker.placed) == (0, set())
        await opened(engine)


async def test_while_a_stage_is_down_nobody_gets_in_and_then_everybody_does_again() -> None:
    import httpx

    model = linked_model()
    async with (
        serving(model.spec, extra=(model.runtime,)) as served,
        httpx.AsyncClient(base_url=served.http) as client,
    ):
        engine, talker = served.engine, model.runtime.talker
        talker.up = False
        health = await client.get("/health")
        assert (health.status_code, health.json()["ready"], health.json()["alive"]) == (503, False, True)
        assert health.json()["stages_down"] == ["talker"]
        for failure in (
            await refused(engine.open_session()),
            await refused(anext(engine.generate(asking()))),
        ):
            assert (failure.info.code, failure.info.retryable) == (ErrorCode.ENGINE_ERROR, True)
            assert "stage talker of the model is down" in failure.info.message
        body = {"model": "linked", "messages": [{"role": "user", "content": "hello"}]}
        answer = await client.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        talker.up = True
        health = await client.get("/health")
        assert (health.status_code, health.json()["ready"], health.json()["stages_down"]) == (200, True, [])
        await (await engine.open_session()).aclose()


# -- chat --------------------------------------------------------------------------------------------------------------


async def answer(engine: DuplexOmni) -> str:
    said = [event async for event in engine.generate(asking())]
    assert isinstance(said[-1], ChatDone)
    return "".join(event.text for event in said if isinstance(event, ChatText))


async def test_a_chat_says_that_it_is_one_takes_no_seat_of_a_session_and_gives_its_own_back() -> None:
    model = linked_model(sessions=1)
    async with running(model) as engine:
        client = await opened(engine)
        await client.ask()
        thinker, talker = model.runtime.thinker, model.runtime.talker
        turn = await thinker.asked()
        asked = asyncio.create_task(answer(engine))
        chat = await thinker.asked()
        assert (turn.purpose, chat.purpose) == (Purpose.SESSION, Purpose.CHAT)
        thinker.say(chat, "All is well.", forward=[1], final=True)
        spoken = await talker.asked()
        assert spoken.purpose is Purpose.CHAT
        talker.say(spoken, final=True)
        assert await asked == "All is well."
        for stage in (thinker, talker):
            assert stage.released == [chat.fence.session_id]
            assert stage.placed == {client.handle.session_id}
        thinker.say(turn, "So it is.", final=True)
        assert (await client.until(ResponseDone)).response.status is ResponseStatus.COMPLETED


@pytest.mark.parametrize("how", ["fails", "is lost"])
async def test_a_chat_whose_stage_dies_fails_and_leaves_nothing(how: str) -> None:
    model = linked_model()
    async with running(model) as engine:
        asked = asyncio.create_task(answer(engine))
        thinker = model.runtime.thinker
        chat = await thinker.asked()
        if how == "fails":
            thinker.fail(chat, "the replica died", fatal=True)
        else:
            thinker.lose(chat.fence.session_id)
        failure = await refused(asked)
        assert (failure.info.code, failure.info.retryable) == (ErrorCode.ENGINE_ERROR, True)
        assert engine.chats == 0
        assert thinker.released == model.runtime.talker.released == [chat.fence.session_id]


async def test_a_chat_that_nobody_waits_for_stops_on_both_stages_and_its_neighbour_goes_on() -> None:
    model = linked_model()
    async with running(model) as engine:
        thinker, talker = model.runtime.thinker, model.runtime.talker
        leaving, staying = engine.generate(asking("one")), asyncio.create_task(answer(engine))
        stays = await thinker.asked()
        first = asyncio.ensure_future(anext(leaving))
        leaves = await thinker.asked()
        thinker.say(leaves, "All ", forward=[1])
        spoken = await talker.asked()
        assert await first == ChatText(text="All ")
        await leaving.aclose()
        assert (thinker.aborted, talker.aborted) == ([leaves], [spoken])
        thinker.say(stays, "Here.", final=True)
        assert await staying == "Here."
