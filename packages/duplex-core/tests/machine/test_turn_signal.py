"""``turn.signal``: a client that finds the turns itself says where they begin and end."""

from __future__ import annotations

import pytest

from duplex_core import commands as c
from duplex_core.capabilities import TurnPolicy
from duplex_core.config import SemanticVad, ServerVad, TurnDetection
from duplex_core.errors import ErrorCode
from duplex_core.events import (
    InputCommitted,
    OutputBufferCleared,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    StatusReason,
)
from duplex_core.items import InputAudio, MessageItem
from duplex_core.model import Respond, ResponseCause
from tests.support.machines import Bench, kinds, same_audio

START = c.TurnSignal(signal=c.TurnSignalKind.START)
END = c.TurnSignal(signal=c.TurnSignalKind.END)


def test_the_end_commits_what_was_said_and_asks_for_the_answer() -> None:
    bench = Bench()
    bench.do(START)
    bench.append(400.0)
    bench.do(END)
    bench.only(InputCommitted)
    asked = bench.told(Respond)
    assert [each.cause for each in asked] == [ResponseCause.COMMIT]
    item = asked[0].history[-1]
    assert isinstance(item, MessageItem)
    part = item.content[0]
    assert isinstance(part, InputAudio)
    assert same_audio(part.audio or b"", 0.0, 400.0)


def test_the_start_alone_tells_nobody_anything() -> None:
    bench = Bench()
    step = bench.do(START)
    assert (kinds(step.events), kinds(step.effects)) == ([], [])


@pytest.mark.parametrize("made", [False, True])
def test_the_start_stops_an_answer_that_is_made_or_still_sounds(made: bool) -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One two three.", 3000.0)
    if made:
        bench.end()
    bench.wait(1000.0)
    bench.do(START)
    assert bench.only(OutputBufferCleared).audio_end_ms == 1000
    done = bench.only(ResponseDone).response
    assert done.status is (ResponseStatus.COMPLETED if made else ResponseStatus.CANCELLED)
    if not made:
        assert done.status_details is not None
        assert done.status_details.reason is StatusReason.TURN_DETECTED
    bench.append(200.0)
    bench.do(END)
    assert len(bench.of(ResponseCreated)) == 2


def test_a_turn_that_ends_during_an_answer_waits_for_its_end() -> None:
    bench = Bench()
    bench.ask()
    bench.append(200.0)
    bench.do(END)
    assert len(bench.of(ResponseCreated)) == 1
    bench.end()
    assert len(bench.of(ResponseCreated)) == 2


def test_an_end_with_nothing_said_is_refused() -> None:
    bench = Bench()
    bench.do(START)
    bench.refused_with(ErrorCode.INPUT_AUDIO_BUFFER_COMMIT_EMPTY, END)


@pytest.mark.parametrize("signal", [START, END])
@pytest.mark.parametrize("vad", [ServerVad(), SemanticVad()])
def test_with_a_detector_it_is_refused(vad: TurnDetection, signal: c.TurnSignal) -> None:
    bench = Bench(vad=vad)
    bench.append(200.0)
    bench.refused_with(ErrorCode.UNSUPPORTED_EVENT, signal)


@pytest.mark.parametrize("signal", [START, END])
def test_a_model_that_takes_none_is_not_given_any(signal: c.TurnSignal) -> None:
    bench = Bench(capabilities={"turn_signal": False})
    bench.append(200.0)
    bench.refused_with(ErrorCode.UNSUPPORTED_EVENT, signal)


def test_a_model_that_takes_its_own_turns_is_asked_for_one() -> None:
    bench = Bench(capabilities={"turn_policy": TurnPolicy.MODEL})
    bench.append(200.0)
    bench.do(END)
    assert [each.cause for each in bench.told(Respond)] == [ResponseCause.COMMIT]
