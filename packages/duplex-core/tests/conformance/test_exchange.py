"""The order between machine and model, and what is too late, shown with small scripted models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest

from duplex_core.commands import (
    InputAudioBufferAppend,
    InputAudioBufferCommit,
    OutputAudioBufferClear,
    ResponseCreate,
    SessionClose,
    SessionUpdate,
)
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    CloseReason,
    ErrorEvent,
    Event,
    OutputAudioDelta,
    ResponseDone,
    ResponseStatus,
    SessionClosed,
)
from duplex_core.fence import Fence
from duplex_core.machine.exchange import Action, Exchange
from duplex_core.machine.io import CloseRequested, SlotReleased, TimerFired
from duplex_core.machine.session import SessionMachine
from duplex_core.model import (
    Abort,
    Closed,
    Configured,
    Decision,
    EndTurn,
    Interrupted,
    ModelInput,
    ModelOutput,
    Respond,
    Speak,
    Submit,
    WakeAt,
)
from duplex_core.patch import SessionPatch
from duplex_core.stages import Lane, StageOutput, StageRequest
from duplex_core.testing import invariants
from duplex_core.testing.echo import ECHO
from duplex_core.testing.speech import burst

Script = Callable[[ModelInput, float], Iterable[ModelOutput]]


class Scripted:
    """A model session that does what a function says, and remembers what it was told."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.told: list[ModelInput] = []

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        self.told.append(event)
        return tuple(self.script(event, now_ms))

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.told]


class Bench:
    """A machine, a scripted model, their exchange, and everything that they wanted done."""

    def __init__(self, script: Script, adapt: Callable[[Decision], Sequence[Decision]] = lambda one: (one,)) -> None:
        deploy = ECHO.deploy_model()
        self.machine = SessionMachine(
            session_id="sess_1",
            config=ECHO.session_config(deploy),
            capabilities=ECHO.capabilities(deploy),
        )
        self.model = Scripted(script)
        self.done: list[Action] = []
        self.exchange = Exchange(self.machine, self.model, self.done.append, adapt=adapt)
        self.exchange.open(0.0)

    def names(self) -> list[str]:
        return [type(action).__name__ for action in self.done]

    def ask(self, now_ms: float = 0.0) -> None:
        self.exchange.take(ResponseCreate(), now_ms)

    def reply(self, request: StageRequest, payload: object = None, *, final: bool = False, now_ms: float = 0.0) -> None:
        self.exchange.reply(request.output(payload, final=final), now_ms)


def work(fence: Fence, *, request_id: str = "one", lane: Lane = Lane.OUTPUT) -> StageRequest:
    return StageRequest(stage="work", request_id=request_id, fence=fence, lane=lane, payload=None)


def silent(event: ModelInput, now_ms: float) -> Iterable[ModelOutput]:
    return ()


def test_a_response_is_announced_before_its_first_delta_although_the_model_answers_at_once() -> None:
    def script(event: ModelInput, now_ms: float) -> Iterable[ModelOutput]:
        if isinstance(event, Respond):
            yield Speak(fence=event.fence, text="At once.", pcm=bytes(320))
            yield EndTurn(fence=event.fence)

    bench = Bench(script)
    bench.ask()
    names = bench.names()
    assert names.index("ResponseCreated") < names.index("OutputAudioDelta") < names.index("ResponseDone")


def test_the_model_is_not_called_again_before_all_that_it_answered_is_done() -> None:
    """A queued turn opens at the end of the running one; the model hears of it after its own last output was performed."""

    def script(event: ModelInput, now_ms: float) -> Iterable[ModelOutput]:
        if isinstance(event, StageOutput):
            yield EndTurn(fence=event.fence)
            yield WakeAt(key="after", at_ms=now_ms + 5.0)
        if isinstance(event, Respond):
            yield Submit(request=work(event.fence, request_id=f"turn-{event.fence.turn}"))
            yield WakeAt(key="after", at_ms=None)

    bench = Bench(script)
    bench.exchange.take(SessionUpdate(session=SessionPatch(turn_detection=None)), 0.0)
    for _ in range(2):
        bench.exchange.take(InputAudioBufferAppend(audio=burst(500, 16000)), 0.0)
        bench.exchange.take(InputAudioBufferCommit(response_create=True), 0.0)
    (first,) = bench.exchange.open_requests
    bench.done.clear()
    bench.reply(first, final=True)
    assert [action for action in bench.done if isinstance(action, WakeAt | Submit)] == [
        WakeAt(key="after", at_ms=5.0),
        Submit(request=work(first.fence.next_turn(), request_id="turn-2")),
        WakeAt(key="after", at_ms=None),
    ]


def test_output_work_is_over_when_the_fence_rises_and_input_work_is_not() -> None:
    def script(event: ModelInput, now_ms: float) -> Iterable[ModelOutput]:
        if isinstance(event, Respond):
            yield Submit(request=work(event.fence, request_id="mouth"))
            yield Submit(request=work(event.fence, request_id="ear", lane=Lane.INPUT))

    bench = Bench(script)
    bench.ask()
    mouth, ear = bench.exchange.open_requests
    bench.exchange.take(OutputAudioBufferClear(), 10.0)
    assert bench.exchange.open_requests == (ear,)
    bench.reply(mouth, "late")
    bench.reply(ear, "still wanted")
    assert [event.payload for event in bench.model.told if isinstance(event, StageOutput)] == ["still wanted"]


def test_output_work_of_an_old_epoch_is_not_begun() -> None:
    """A model that has not taken the new fence would start what nobody may hear."""
    old = Fence(session_id="sess_1", turn=1)

    def script(event: ModelInput, now_ms: float) -> Iterable[ModelOutput]:
        if isinstance(event, Interrupted):
            yield Submit(request=work(old, request_id="mouth"))
            yield Submit(request=work(old, request_id="ear", lane=Lane.INPUT))

    bench = Bench(script)
    bench.ask()
    bench.exchange.take(OutputAudioBufferClear(), 10.0)
    assert [request.request_id for request in bench.exchange.open_requests] == ["ear"]
    assert [action.request.request_id for action in bench.done if isinstance(action, Submit)] == ["ear"]


def test_a_reply_after_the_end_of_its_request_is_not_told() -> None:
    def script(event: ModelInput, now_ms: float) -> Iterable[ModelOutput]:
        if isinstance(event, Respond):
            yield Submit(request=work(event.fence, request_id="ends"))
            yield Submit(request=work(event.fence, request_id="aborted"))
            yield Abort(stage="work", request_id="aborted")
            yield Abort(stage="work", request_id="never begun")

    bench = Bench(script)
    bench.ask()
    (ends,) = bench.exchange.open_requests
    aborts = [action for action in bench.done if isinstance(action, Abort)]
    assert [abort.request_id for abort in aborts] == ["aborted"]
    bench.reply(msgspec.structs.replace(ends, request_id="aborted"), "late")
    bench.reply(ends, "last", final=True)
    bench.reply(ends, "later")
    assert [event.payload for event in bench.model.told if isinstance(event, StageOutput)] == ["last"]


@pytest.mark.parametrize(
    ("armed", "fired_ms", "told"),
    [
        ((100.0,), 100.0, True),
        ((100.0,), 99.5, True),
        ((100.0,), 90.0, False),
        ((100.0, 200.0), 100.0, False),
        ((200.0, 100.0), 100.0, True),
        ((100.0, None), 100.0, False),
    ],
)
def test_only_the_newest_timer_of_a_key_wakes_the_model(
    armed: tuple[float | None, ...], fired_ms: float, told: bool
) -> None:
    def script(event: ModelInput, now_ms: float) -> Iterable[ModelOutput]:
        if isinstance(event, Configured):
            return tuple(WakeAt(key="unit", at_ms=at_ms) for at_ms in armed)
        return ()

    bench = Bench(script)
    bench.ask()
    bench.exchange.wake("unit", fired_ms)
    bench.exchange.wake("unit", fired_ms)
    assert bench.model.kinds().count("Deadline") == int(told)


def test_only_a_set_timer_reaches_the_machine() -> None:
    bench = Bench(silent)
    before = bench.machine.lanes.snapshot()
    bench.exchange.take(TimerFired(key="playback"), 5.0)
    bench.exchange.take(TimerFired(key="unheard of"), 5.0)
    assert bench.machine.lanes.snapshot() == before
    assert bench.names() == ["SessionCreated"]


def test_after_the_close_nothing_is_begun_and_the_model_is_told_once() -> None:
    def script(event: ModelInput, now_ms: float) -> Iterable[ModelOutput]:
        if isinstance(event, Respond):
            yield Submit(request=work(event.fence))
            yield WakeAt(key="unit", at_ms=100.0)
        if isinstance(event, Closed):
            yield Submit(request=work(Fence(session_id="sess_1", epoch=9), request_id="too late"))

    bench = Bench(script)
    bench.ask()
    bench.exchange.take(SessionClose(), 1.0)
    bench.exchange.take(SlotReleased(), 2.0)
    bench.exchange.take(SessionClose(), 3.0)
    bench.exchange.wake("unit", 200.0)
    assert bench.model.kinds().count("Closed") == 1
    assert bench.model.kinds()[-1] == "Closed"
    assert bench.exchange.open_requests == ()
    assert bench.exchange.armed == ()
    assert isinstance(bench.done[-1], SessionClosed)
    assert [action.request.request_id for action in bench.done if isinstance(action, Submit)] == ["one"]


def test_a_model_that_fails_is_told_nothing_more_and_its_session_can_be_closed() -> None:
    def script(event: ModelInput, now_ms: float) -> Iterable[ModelOutput]:
        if isinstance(event, Respond):
            raise ZeroDivisionError("a fault of the model package")
        return ()

    bench = Bench(script)
    with pytest.raises(ZeroDivisionError):
        bench.ask()
    told = len(bench.model.told)
    fault = error(ErrorCode.INTERNAL_ERROR, "the model failed")
    bench.exchange.take(CloseRequested(reason=CloseReason.ERROR, error=fault), 1.0)
    bench.exchange.take(SlotReleased(), 1.0)
    assert len(bench.model.told) == told
    events = [action for action in bench.done if isinstance(action, Event)]
    (done,) = [event for event in events if isinstance(event, ResponseDone)]
    assert done.response.status is ResponseStatus.FAILED
    assert [event.error for event in events if isinstance(event, ErrorEvent)] == [fault]
    assert isinstance(events[-1], SessionClosed)
    invariants.check(events)


def test_what_adapts_decisions_may_add_to_them() -> None:
    """As the server does at the end of a turn, when its resampler still holds some sound."""

    def adapt(decision: Decision) -> Sequence[Decision]:
        if isinstance(decision, EndTurn):
            return (Speak(fence=decision.fence, pcm=bytes(64)), decision)
        return (decision,)

    def script(event: ModelInput, now_ms: float) -> Iterable[ModelOutput]:
        if isinstance(event, Respond):
            yield Speak(fence=event.fence, text="Short.", pcm=bytes(320))
            yield EndTurn(fence=event.fence)

    bench = Bench(script, adapt)
    bench.ask()
    assert [len(action.delta) for action in bench.done if isinstance(action, OutputAudioDelta)] == [320, 64]
    assert bench.names().count("ResponseDone") == 1
