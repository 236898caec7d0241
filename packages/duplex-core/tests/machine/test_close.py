"""The end of a session, in every state: one `response.done` for each response, one `session.closed`, nothing armed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.config import ServerVad
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    CloseReason,
    ErrorEvent,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    SessionClosed,
    SessionExpired,
)
from duplex_core.machine.io import CloseRequested, MachineInput, ReleaseSlot, SlotReleased, SpeechFrames, TimerFired
from duplex_core.machine.session import internal_error
from duplex_core.machine.table import Life
from duplex_core.patch import SessionPatch
from duplex_core.testing import invariants
from tests.support.machines import Bench, kinds

PAUSE = "." * 16
BROKEN = error(ErrorCode.ENGINE_ERROR, "a stage died")


def fresh(bench: Bench) -> None:
    """Nothing was said."""


def speaking(bench: Bench) -> None:
    bench.speech("s" * 10)


def pausing(bench: Bench) -> None:
    bench.speech("s" * 10 + "....")


def committing(bench: Bench) -> None:
    bench.append(2000)
    bench.commit()


def pending(bench: Bench) -> None:
    bench.speech("s" * 10 + PAUSE)


def writing(bench: Bench) -> None:
    pending(bench)
    bench.speak("One")


def calling(bench: Bench) -> None:
    pending(bench)
    bench.do(m.ToolCall(fence=bench.fence, call_id="c", name="f", arguments="{"))


def sounding(bench: Bench) -> None:
    pending(bench)
    bench.speak("One", ms=1000)


def echoing(bench: Bench) -> None:
    sounding(bench)
    bench.end()


def idle(bench: Bench) -> None:
    echoing(bench)
    bench.wait(2000)


def waiting(bench: Bench) -> None:
    """A second turn waits for the answer's end."""
    bench.do(c.SessionUpdate(session=SessionPatch(turn_detection=ServerVad(interrupt_response=False))))
    sounding(bench)
    bench.speech("s" * 10 + PAUSE)


STATES: tuple[Callable[[Bench], None], ...] = (
    fresh,
    speaking,
    pausing,
    committing,
    pending,
    writing,
    calling,
    sounding,
    echoing,
    idle,
    waiting,
)
ENDINGS: tuple[tuple[MachineInput, CloseReason], ...] = (
    (c.SessionClose(), CloseReason.CLIENT),
    (CloseRequested(reason=CloseReason.SHUTDOWN), CloseReason.SHUTDOWN),
    (CloseRequested(reason=CloseReason.EXPIRED), CloseReason.EXPIRED),
    (CloseRequested(reason=CloseReason.ERROR, error=BROKEN), CloseReason.ERROR),
    (m.Fatal(error=BROKEN), CloseReason.ERROR),
)


def session(state: Callable[[Bench], None]) -> Bench:
    bench = Bench(vad=ServerVad(idle_timeout_ms=5000), capabilities={"tools": True})
    state(bench)
    return bench


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: type(ending[0]).__name__ + ending[1].name)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_the_end_in_every_state(state: Callable[[Bench], None], ending: tuple[MachineInput, CloseReason]) -> None:
    bench = session(state)
    given, reason = ending
    opened = len(bench.of(ResponseCreated))
    step = bench.do(given)
    assert kinds(step.effects)[-1] == "ReleaseSlot"
    assert kinds(step.effects).count("ReleaseSlot") == 1
    assert not bench.timers, bench.timers
    assert len(bench.of(ResponseDone)) == len(bench.of(ResponseCreated))
    assert len(bench.of(ResponseCreated)) == opened or state is committing
    assert not bench.of(SessionClosed), "only when everything is free"
    assert bench.is_in(Life.CLOSING)
    step = bench.do(SlotReleased())
    assert kinds(step.events) == ["SessionClosed"]
    closed = bench.only(SessionClosed)
    assert (closed.reason, closed.error) == (reason, BROKEN if reason is CloseReason.ERROR else None)
    assert bench.machine.closed
    invariants.check(bench.events)


@pytest.mark.parametrize("state", [pending, writing, calling, sounding], ids=lambda state: state.__name__)
def test_how_the_answer_ends(state: Callable[[Bench], None]) -> None:
    bench = session(state)
    bench.do(c.SessionClose())
    assert bench.only(ResponseDone).response.status is ResponseStatus.CANCELLED
    assert not bench.of(ErrorEvent)
    bench = session(state)
    bench.do(CloseRequested(reason=CloseReason.ERROR, error=BROKEN))
    assert bench.only(ResponseDone).response.status is ResponseStatus.FAILED
    assert bench.only(ErrorEvent).error == BROKEN
    assert kinds(bench.events).index("ResponseDone") < kinds(bench.events).index("ErrorEvent")


def test_expiry_is_told() -> None:
    bench = session(fresh)
    bench.do(CloseRequested(reason=CloseReason.EXPIRED), SlotReleased())
    assert kinds(bench.events)[-2:] == ["SessionExpired", "SessionClosed"]
    assert bench.only(SessionExpired).reason == "expired"


def test_two_closings_race() -> None:
    bench = session(sounding)
    bench.do(CloseRequested(reason=CloseReason.ERROR, error=BROKEN))
    assert not bench.do(c.SessionClose(event_id="evt_1")).events, "closing is idempotent"
    assert not bench.do(CloseRequested(reason=CloseReason.SHUTDOWN)).effects
    bench.do(SlotReleased())
    assert bench.only(SessionClosed).reason is CloseReason.ERROR
    assert len([effect for effect in bench.effects if isinstance(effect, ReleaseSlot)]) == 1


@pytest.mark.parametrize(
    "command",
    [c.InputAudioBufferAppend(audio=b"\0\0"), c.ResponseCreate(), c.SessionHeartbeat(), c.InputAudioBufferCommit()],
    ids=lambda command: type(command).__name__,
)
def test_a_command_while_it_closes_is_refused(command: c.Command) -> None:
    bench = session(committing)
    bench.do(CloseRequested(reason=CloseReason.SHUTDOWN))
    bench.refused_with(ErrorCode.SESSION_CLOSED, command)


def test_nothing_comes_of_anything_after_the_end() -> None:
    bench = session(sounding)
    fence = bench.fence
    bench.do(c.SessionClose())
    late: tuple[MachineInput, ...] = (
        m.Speak(fence=fence, text="late", pcm=b"\0\0"),
        m.EndTurn(fence=fence),
        m.BeginTurn(fence=bench.fence.next_turn()),
        m.Fatal(error=BROKEN),
        SpeechFrames(frames=(), generation=bench.generation),
        TimerFired(key="playback"),
        TimerFired(key="idle"),
    )
    for each in late:
        step = bench.do(each)
        assert not step.events, each
        assert not step.effects, each
    bench.do(SlotReleased())
    for each in (
        *late,
        c.ResponseCreate(),
        c.SessionClose(),
        SlotReleased(),
        CloseRequested(reason=CloseReason.EXPIRED),
    ):
        step = bench.do(each)
        assert not step.events, each
        assert not step.effects, each


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_slot_that_is_gone_all_at_once(state: Callable[[Bench], None]) -> None:
    """The supervisor frees the slot by force when even the close failed: still every response ends before the session."""
    bench = session(state)
    bench.do(SlotReleased())
    assert len(bench.of(ResponseDone)) == len(bench.of(ResponseCreated))
    assert bench.only(SessionClosed).reason is CloseReason.ERROR
    assert not bench.timers
    assert bench.machine.closed
    invariants.check(bench.events)


def test_resuming_elsewhere_is_not_this_sockets_business() -> None:
    bench = session(fresh)
    bench.refused_with(ErrorCode.UNSUPPORTED_EVENT, c.SessionResume(session_id="sess_9", resume_token="t"))


def test_what_an_internal_error_says() -> None:
    info = internal_error("the model failed")
    assert (info.code, info.message) == (
        ErrorCode.INTERNAL_ERROR,
        "the model failed; this session ends, others go on",
    )
