"""Sessions through the Python API: admission, cancellation, closing, faults, drains, observers. No socket."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import generate_latest

from duplex_core.commands import (
    ConversationItemCreate,
    InputAudioBufferAppend,
    ResponseCancel,
    ResponseCreate,
    SessionClose,
    SessionHeartbeat,
    SessionUpdate,
    VideoFrame,
)
from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.events import (
    STREAM_DELTAS,
    CloseReason,
    ErrorEvent,
    Event,
    OutputTranscriptDelta,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    SessionClosed,
    SessionCreated,
    SessionHeartbeatAck,
)
from duplex_core.hookspecs import hookimpl
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.model import Closed, Configured, ModelInput, ModelOutput, Respond, Submit
from duplex_core.observers import ObservedSession, SessionObserverSpec
from duplex_core.patch import SessionPatch
from duplex_core.stages import Lane, StagePlan, StageRequest, StageSpec
from duplex_server.engine import mailbox as mailbox_module
from duplex_server.engine.outbox import MAX_EVENTS
from duplex_server.engine.served import ModelUnavailable
from duplex_server.engine.stages.host import StageStartError


def say(text: str) -> ConversationItemCreate:
    return ConversationItemCreate(item=MessageItem(role=Role.USER, content=(InputText(text=text),)))


async def until(events: Any, kind: type, seen: list[Event] | None = None) -> Any:
    async with asyncio.timeout(10):
        async for event in events:
            if seen is not None:
                seen.append(event)
            if isinstance(event, kind):
                return event
    raise AssertionError(f"the events ended without a {kind.__name__}")


async def rest(events: Any) -> list[Any]:
    async with asyncio.timeout(10):
        return [event async for event in events]


async def test_a_session_from_its_first_event_to_its_last(engine: Any) -> None:
    handle = await engine.open_session()
    events = handle.events()
    created = await until(events, SessionCreated)
    assert created.session.id == handle.session_id
    assert engine.get_session(handle.session_id).session_id == handle.session_id
    await handle.submit(SessionHeartbeat())
    await until(events, SessionHeartbeatAck)
    await engine.close_session(handle.session_id)
    assert engine.sessions.taken == 0
    closed = (await rest(events))[-1]
    assert isinstance(closed, SessionClosed)
    assert closed.reason is CloseReason.CLIENT
    await engine.close_session(handle.session_id)
    await handle.aclose()
    assert engine.get_session(handle.session_id) is None
    with pytest.raises(DuplexError) as caught:
        await handle.submit(SessionHeartbeat())
    assert caught.value.info.code is ErrorCode.SESSION_CLOSED


async def test_ids_are_never_reused(engine: Any) -> None:
    handles = [await engine.open_session() for _ in range(20)]
    for handle in handles:
        await handle.aclose()
    handles += [await engine.open_session() for _ in range(20)]
    assert len({handle.session_id for handle in handles}) == 40


async def test_two_closings_race_to_one_terminal_event(engine: Any) -> None:
    handle = await engine.open_session()
    events = handle.events()
    await until(events, SessionCreated)
    await handle.submit(SessionClose())
    handle.close(CloseReason.DISCONNECTED)
    await asyncio.gather(handle.aclose(), engine.close_session(handle.session_id), handle.aclose())
    assert [type(event) for event in await rest(events)] == [SessionClosed]


async def test_an_open_cancelled_at_any_step_leaves_no_slot(engine_of: Any) -> None:
    """Cancel after 0, 1, 2… steps of the loop, until an open gets through uncancelled."""
    async with engine_of(max_sessions=1) as engine:
        for steps in range(1000):
            opening = asyncio.create_task(engine.open_session())
            for _ in range(steps):
                await asyncio.sleep(0)
            if opening.done():
                await (await opening).aclose()
                break
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert engine.sessions.taken == 0
        else:
            pytest.fail("no open ever got through")
        assert steps > 1
        await (await engine.open_session()).aclose()


async def test_an_open_cancelled_while_the_model_prepares_leaves_no_slot(engine_of: Any, parrot: Any) -> None:
    begun, let_go = threading.Event(), threading.Event()

    def slow(context: Any) -> Any:
        begun.set()
        assert let_go.wait(20)
        return parrot.create_session(context)

    async with engine_of(dataclasses.replace(parrot, create_session=slow), max_sessions=1) as engine:
        opening = asyncio.create_task(engine.open_session())
        await asyncio.to_thread(begun.wait, 20)
        with pytest.raises(DuplexError) as caught:
            await engine.open_session()
        assert caught.value.info.code is ErrorCode.RESOURCE_EXHAUSTED
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert engine.sessions.taken == 0
        let_go.set()
        await (await engine.open_session()).aclose()


async def test_an_open_that_fails_leaves_no_slot_and_says_why(engine_of: Any, parrot: Any) -> None:
    def broken(context: Any) -> Any:
        raise OSError("voice.wav is missing")

    async with engine_of(dataclasses.replace(parrot, create_session=broken), max_sessions=1) as engine:
        for _ in range(3):
            with pytest.raises(DuplexError) as caught:
                await engine.open_session()
            assert caught.value.info.code is ErrorCode.INTERNAL_ERROR
            assert "voice.wav is missing" in caught.value.info.message
        assert engine.sessions.taken == 0


class Faulty:
    """A model session that raises when it is asked to answer, or told to close."""

    def __init__(self, on: type) -> None:
        self.on = on

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if isinstance(event, self.on):
            raise KeyError("a rule that was forgotten")
        return ()


@pytest.mark.parametrize("on", [Configured, Respond, Closed])
async def test_a_model_that_raises_ends_its_session_and_no_other(
    engine_of: Any, stages: Any, on: type, caplog: pytest.LogCaptureFixture
) -> None:
    models = iter([Faulty(on), stages.Session()])
    gated = stages.gated_model(lambda: next(models))
    async with engine_of(gated.spec) as engine:
        bad, good = await engine.open_session(), await engine.open_session()
        bad_events, good_events = bad.events(), good.events()
        await bad.submit(SessionUpdate(session=SessionPatch()))
        await bad.submit(say("hello"))
        await bad.submit(ResponseCreate())
        if on is Closed:
            bad.close()
        seen = await rest(bad_events)
        assert isinstance(seen[-1], SessionClosed)
        assert sum(isinstance(event, SessionClosed) for event in seen) == 1
        created = [event for event in seen if isinstance(event, ResponseCreated)]
        done = [event for event in seen if isinstance(event, ResponseDone)]
        assert len(created) == len(done)
        if on is not Closed:
            assert seen[-1].reason is CloseReason.ERROR
            assert seen[-1].error is not None
            assert seen[-1].error.code is ErrorCode.INTERNAL_ERROR
            assert any(isinstance(e, ErrorEvent) and e.error.code is ErrorCode.INTERNAL_ERROR for e in seen)
        if on is Respond:
            assert done[0].response.status is ResponseStatus.FAILED
        assert "a rule that was forgotten" in caplog.text
        assert engine.sessions.taken == 1
        await good.submit(say("still here"))
        await good.submit(ResponseCreate())
        answer = await until(good_events, ResponseDone)
        assert answer.response.status is ResponseStatus.COMPLETED


class Lost:
    """A model session that names a stage which the plan does not have."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if not isinstance(event, Respond):
            return ()
        request = StageRequest(stage="cellar", request_id="r", fence=event.fence, lane=Lane.OUTPUT, payload=None)
        return (Submit(request=request),)


async def test_work_for_a_stage_that_is_not_there_ends_the_session(
    engine_of: Any, stages: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gated = stages.gated_model(Lost)
    async with engine_of(gated.spec) as engine:
        handle = await engine.open_session()
        await handle.submit(say("hello"))
        await handle.submit(ResponseCreate())
        closed = (await rest(handle.events()))[-1]
        assert closed.reason is CloseReason.ERROR
        assert "cellar" in caplog.text
        assert engine.sessions.taken == 0


async def test_a_cancelled_task_frees_everything_and_says_so(engine_of: Any, gated: Any) -> None:
    """Whether it is cancelled before its first step or in the middle of an answer."""
    async with engine_of(gated.spec, max_sessions=2) as engine:
        early = await engine.open_session()
        late = await engine.open_session()
        events = late.events()
        (early_task,) = [task for task in asyncio.all_tasks() if task.get_name() == early.session_id]
        early_task.cancel()
        await late.submit(say("hold"))
        await late.submit(ResponseCreate())
        await asyncio.to_thread(gated.begun.acquire)
        (late_task,) = [task for task in asyncio.all_tasks() if task.get_name() == late.session_id]
        late_task.cancel()
        await asyncio.to_thread(gated.stopped.acquire)
        for handle, stream in ((early, early.events()), (late, events)):
            async with asyncio.timeout(10):
                await handle.wait_ended()
            seen = await rest(stream)
            assert isinstance(seen[-1], SessionClosed)
            assert seen[-1].reason is CloseReason.SHUTDOWN
            created = sum(isinstance(event, ResponseCreated) for event in seen)
            assert created == sum(isinstance(event, ResponseDone) for event in seen)
        assert engine.sessions.taken == 0


async def test_a_failing_stage_fails_the_answer_and_the_session_goes_on(engine_of: Any, gated: Any) -> None:
    async with engine_of(gated.spec) as engine:
        handle = await engine.open_session()
        events = handle.events()
        for text, status in (("fail after a word", ResponseStatus.FAILED), ("all is well", ResponseStatus.COMPLETED)):
            await handle.submit(say(text))
            await handle.submit(ResponseCreate())
            done = await until(events, ResponseDone)
            assert done.response.status is status


async def test_a_stage_that_dies_ends_the_sessions_it_served_and_admits_no_more(engine_of: Any, gated: Any) -> None:
    async with engine_of(gated.spec) as engine:
        first, second = await engine.open_session(), await engine.open_session()
        first_events, second_events = first.events(), second.events()
        await first.submit(say("die"))
        await first.submit(ResponseCreate())
        seen = await rest(first_events)
        assert seen[-1].reason is CloseReason.ERROR
        assert seen[-1].error.code is ErrorCode.ENGINE_ERROR
        assert seen[-1].error.retryable
        done = [event for event in seen if isinstance(event, ResponseDone)]
        assert [each.response.status for each in done] == [ResponseStatus.FAILED]
        assert not engine.ready
        with pytest.raises(DuplexError) as caught:
            await engine.open_session()
        assert caught.value.info.code is ErrorCode.ENGINE_ERROR
        await second.submit(say("anyone?"))
        await second.submit(ResponseCreate())
        seen = await rest(second_events)
        assert seen[-1].error.code is ErrorCode.ENGINE_ERROR
        assert engine.sessions.taken == 0


async def test_a_cancel_drops_what_was_not_sent_and_stops_the_stage(engine_of: Any, gated: Any) -> None:
    async with engine_of(gated.spec) as engine:
        handle = await engine.open_session()
        events = handle.events()
        await handle.submit(say("a b c d hold"))
        await handle.submit(ResponseCreate())
        await asyncio.to_thread(gated.gate.holding.acquire)
        await until(events, OutputTranscriptDelta)  # the others wait in the outbox, unsent
        await handle.submit(ResponseCancel())
        await asyncio.to_thread(gated.stopped.acquire)
        seen: list[Event] = []
        done = await until(events, ResponseDone, seen)
        assert done.response.status is ResponseStatus.CANCELLED
        await handle.aclose()
        seen += await rest(events)
        assert not [event for event in seen if isinstance(event, STREAM_DELTAS)]
        assert b"duplex_purged_events_total 0.0" not in generate_latest(engine.metrics.registry)


async def test_a_session_whose_commands_take_long_lets_others_run_after_each(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_module, "TURN_S", 0.0)
    handle = await engine.open_session()
    outbox = engine.sessions.get(handle.session_id).outbox
    await asyncio.sleep(0)
    told = [len(outbox)]
    for _ in range(6):
        handle.offer(SessionHeartbeat())
        told.append(len(outbox))
    while told[-1] < told[0] + 6:
        await asyncio.sleep(0)
        told.append(len(outbox))
    assert max(after - before for before, after in itertools.pairwise(told)) == 1
    await handle.aclose()


async def test_pictures_that_wait_are_bounded_as_sound_is(engine: Any) -> None:
    handle = await engine.open_session()
    picture = VideoFrame(data=bytes(12_000_000))
    handle.offer(InputAudioBufferAppend(audio=b"", video_frames=(picture,) * 4))
    with pytest.raises(DuplexError) as caught:
        handle.offer(InputAudioBufferAppend(audio=b"", video_frames=(picture,)))
    assert caught.value.info.code is ErrorCode.RESOURCE_EXHAUSTED
    await handle.aclose()


async def test_a_slow_reader_is_dropped_and_its_memory_given_back(engine_of: Any, gated: Any) -> None:
    async with engine_of(gated.spec) as engine:
        handle = await engine.open_session()
        outbox = engine.sessions.get(handle.session_id).outbox
        waiting = []

        async def flood() -> None:
            for _ in range(10 * MAX_EVENTS):
                await handle.submit(SessionHeartbeat())
                waiting.append(len(outbox))

        with pytest.raises(DuplexError) as caught:
            await flood()
        assert caught.value.info.code is ErrorCode.SESSION_CLOSED
        assert max(waiting) <= MAX_EVENTS
        await handle.wait_ended()
        assert len(outbox) <= 2
        seen = await rest(handle.events())
        assert [type(event) for event in seen] == [ErrorEvent, SessionClosed]
        assert seen[0].error.code is seen[1].error.code is ErrorCode.SLOW_READER
        assert engine.sessions.taken == 0


async def test_a_drain_lets_the_answer_end_and_idle_sessions_go_at_once(engine_of: Any, gated: Any) -> None:
    async with engine_of(gated.spec) as engine:
        idle, busy = await engine.open_session(), await engine.open_session()
        idle_events, busy_events = idle.events(), busy.events()
        await busy.submit(say("hold"))
        await busy.submit(ResponseCreate())
        await asyncio.to_thread(gated.begun.acquire)
        stopping = asyncio.create_task(engine.shutdown(20.0))
        assert (await rest(idle_events))[-1].reason is CloseReason.SHUTDOWN
        assert not busy.ended
        with pytest.raises(DuplexError) as caught:
            await engine.open_session()
        assert caught.value.info.code is ErrorCode.SHUTDOWN
        gated.gate.let_go.set()
        seen = await rest(busy_events)
        done = next(event for event in seen if isinstance(event, ResponseDone))
        assert done.response.status is ResponseStatus.COMPLETED
        assert seen[-1].reason is CloseReason.SHUTDOWN
        async with asyncio.timeout(10):
            await stopping


async def test_a_drain_that_runs_out_ends_the_answer(engine_of: Any, gated: Any) -> None:
    async with engine_of(gated.spec) as engine:
        handle = await engine.open_session()
        events = handle.events()
        await handle.submit(say("hold"))
        await handle.submit(ResponseCreate())
        await asyncio.to_thread(gated.begun.acquire)
        async with asyncio.timeout(10):
            await engine.shutdown(0.05)
        seen = await rest(events)
        assert [e.response.status for e in seen if isinstance(e, ResponseDone)] == [ResponseStatus.FAILED]
        assert seen[-1].reason is CloseReason.SHUTDOWN


class Recorder:
    """An observer that writes down what it is told, and breaks when asked to."""

    def __init__(self, breaks: bool = False) -> None:
        self.told: list[Any] = []
        self.breaks = breaks

    def opened(self, session: ObservedSession) -> None:
        self.told.append(session.session_id)

    def event(self, session_id: str, event: Event) -> None:
        self.told.append(event)
        if self.breaks:
            raise ValueError("disk full")

    def closed(self, session_id: str, reason: CloseReason) -> None:
        self.told.append(reason)


class Watching:
    """A plugin with two observers."""

    def __init__(self, *observers: Recorder) -> None:
        self.observers = observers

    @hookimpl
    def duplex_register_session_observers(self) -> list[SessionObserverSpec]:
        return [
            SessionObserverSpec(id=f"o{index}", summary="", create=lambda observer=observer: observer)  # type: ignore[misc]
            for index, observer in enumerate(self.observers)
        ]


async def test_observers_are_told_everything_and_one_that_breaks_harms_nobody(engine_of: Any, gated: Any) -> None:
    broken, good = Recorder(breaks=True), Recorder()
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
    async with engine_of(gated.spec, extra=(Watching(broken, good),)) as engine:
        handle = await engine.open_session()
        await handle.submit(SessionHeartbeat())
        await handle.aclose()
        events = await rest(handle.events())
    told = [type(each) for each in good.told]
    assert told == [str, *(type(event) for event in events), CloseReason]
    assert [type(each) for each in broken.told] == [str, SessionCreated]
    assert [str(each["exception"]) for each in troubles] == ["disk full"]


class Unwilling:
    """A plugin whose observer cannot be made."""

    @hookimpl
    def duplex_register_session_observers(self) -> list[SessionObserverSpec]:
        def create() -> Recorder:
            raise PermissionError("/var/recordings is read-only")

        return [SessionObserverSpec(id="recorder", summary="", create=create)]


async def test_an_observer_that_cannot_be_made_stops_the_start(engine_of: Any, gated: Any) -> None:
    with pytest.raises(ModelUnavailable, match=r"session observer recorder did not start: .*read-only"):
        async with engine_of(gated.spec, extra=(Unwilling(),)):
            pass


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        ("tests.support.stages:nobody", "cannot be imported: .*has no attribute 'nobody'"),
        ("tests.support.nowhere:make", "cannot be imported: No module named 'tests.support.nowhere'"),
        ("tests.support.stages", "must look like 'package.module:name'"),
    ],
)
async def test_a_factory_that_is_not_there_is_named_with_its_stage_and_its_model(
    engine_of: Any, stages: Any, factory: str, why: str
) -> None:
    spec = stages.gated_model().spec
    plan = StagePlan(stages=(StageSpec(name="work", factory=factory),))
    lost = dataclasses.replace(spec, stage_plan=lambda checkpoint, deploy: plan)
    with pytest.raises(
        StageStartError, match=rf"^model gated: stage work did not start: its factory '?{factory}'? {why}"
    ):
        async with engine_of(lost):
            pass


async def test_a_stage_that_does_not_start_leaves_nothing_running(engine_of: Any, stages: Any) -> None:
    with pytest.raises(StageStartError, match="checksum differs"):
        async with engine_of(stages.gated_model(broken=True).spec):
            pass
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("stage-", "speech-"))]
