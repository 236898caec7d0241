"""Interruption in every phase of an answer, and what follows it."""

from __future__ import annotations

from typing import Any

import pytest

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.config import Modality, ServerVad
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    ErrorEvent,
    ItemTruncated,
    OutputAudioDelta,
    OutputBufferCleared,
    OutputItemDone,
    OverlapDecision,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    SpeechStarted,
    StatusReason,
)
from duplex_core.items import ItemStatus, item_text
from duplex_core.machine.io import AbortOutput
from duplex_core.machine.table import Answer, Sound
from duplex_core.patch import ResponseParams
from tests.support.machines import FRAME_MS, Bench, kinds, told

PAUSE = "." * 16
BROKEN = error(ErrorCode.ENGINE_ERROR, "a stage broke")
MARKED = ((7, 400.0), (19, 1000.0))
"""``One two three four.``: the first two words in 400 ms, all of it in a second."""


def asked(**fields: Any) -> Bench:
    """A conversation with a detector, in which the user asked a question."""
    bench = Bench(vad=ServerVad(**fields))
    bench.speech("s" * 20 + PAUSE)
    return bench


def words(bench: Bench) -> list[str]:
    """The history as a model would be told it."""
    return [item_text(item) for item in bench.history if item_text(item)]


def interrupted_by_speech(bench: Bench) -> None:
    """Two frames of speech, all at once, so that no time passes."""
    bench.append(2 * FRAME_MS)
    bench.judge("ss")


# -- every phase -------------------------------------------------------------------------------------------------------


def test_before_the_first_output() -> None:
    bench = asked()
    interrupted_by_speech(bench)
    done = bench.only(ResponseDone)
    assert done.response.status is ResponseStatus.CANCELLED
    assert done.response.status_details is not None
    assert done.response.status_details.reason is StatusReason.TURN_DETECTED
    assert done.response.output == []
    assert bench.only(OutputBufferCleared).audio_end_ms == 0
    (interrupted,) = bench.told(m.Interrupted)
    assert (interrupted.response_id, interrupted.heard_ms) == (done.response.id, 0.0)
    assert interrupted.fence == bench.fence
    assert (bench.fence.epoch, bench.fence.turn) == (1, 1)


def test_while_there_is_only_text() -> None:
    bench = asked()
    bench.speak("One two three four.")
    interrupted_by_speech(bench)
    assert words(bench) == []
    assert bench.only(ItemTruncated).audio_end_ms == 0
    assert bench.only(OutputItemDone).item.status is ItemStatus.INCOMPLETE


def test_while_it_is_made_and_sounds() -> None:
    bench = asked()
    bench.speak("One two three four.", ms=1000, marks=MARKED)
    bench.wait(450)
    interrupted_by_speech(bench)
    assert bench.only(ResponseDone).response.status is ResponseStatus.CANCELLED
    assert words(bench) == ["One two"]
    assert bench.only(ItemTruncated).audio_end_ms == 450
    assert bench.only(OutputBufferCleared).audio_end_ms == 450
    assert bench.told(m.Interrupted)[0].heard_ms == 450
    assert bench.is_in(Sound.SILENT)
    assert bench.is_in(Answer.NONE)


def test_after_it_was_made_while_it_sounds() -> None:
    bench = asked()
    bench.speak("One two three four.", ms=1000, marks=MARKED)
    bench.end()
    assert bench.only(ResponseDone).response.status is ResponseStatus.COMPLETED
    bench.wait(450)
    interrupted_by_speech(bench)
    assert len(bench.of(ResponseDone)) == 1, "it has ended already"
    assert bench.fence.epoch == 1
    assert bench.only(OverlapDecision).response_id == bench.only(ResponseCreated).response.id
    assert bench.only(OutputBufferCleared).audio_end_ms == 450
    assert bench.told(m.Interrupted)[0].response_id == bench.only(ResponseCreated).response.id
    assert words(bench) == ["One two"]
    assert bench.history[-1].status is ItemStatus.INCOMPLETE


@pytest.mark.parametrize("late_ms", [0.0, 700.0])
def test_after_all_was_heard_it_is_no_interruption(late_ms: float) -> None:
    """Also when the playback timer fires late."""
    bench = asked()
    bench.speak("One two three four.", ms=1000, marks=MARKED)
    bench.end()
    bench.timers.clear()
    bench.now_ms += 1000 + late_ms
    interrupted_by_speech(bench)
    assert len(bench.of(SpeechStarted)) == 2
    assert bench.fence.epoch == 0
    assert not bench.of(OutputBufferCleared)
    assert not bench.of(OverlapDecision)
    assert not bench.told(m.Interrupted)
    assert words(bench) == ["One two three four."]


def test_a_written_answer_keeps_what_was_written() -> None:
    bench = Bench()
    bench.ask(response=ResponseParams(output_modalities=[Modality.TEXT]))
    bench.speak("One two")
    bench.do(c.ResponseCancel())
    assert words(bench)[-1] == "One two"
    assert not bench.of(ItemTruncated)


# -- order -------------------------------------------------------------------------------------------------------------


def test_the_order_of_an_interruption() -> None:
    bench = asked()
    bench.speak("One two three four.", ms=1000, marks=MARKED)
    bench.wait(450)
    bench.append(2 * FRAME_MS)
    step = bench.judge("ss")
    assert kinds(step.events) == [
        "SpeechStarted",
        "OverlapDecision",
        "OutputBufferCleared",
        "OutputAudioDone",
        "OutputTranscriptDone",
        "ContentPartDone",
        "OutputItemDone",
        "ItemDone",
        "ResponseDone",
        "RateLimitsUpdated",
        "ItemTruncated",
    ]
    effects = [each for each in kinds(step.effects) if each != "SetTimer"]
    assert effects == ["AbortOutput", "Interrupted", "HistoryChanged", "SpeechBegan"]
    (abort,) = (effect for effect in step.effects if isinstance(effect, AbortOutput))
    assert abort.fence == bench.fence
    (changed,) = told(step.effects, m.HistoryChanged)
    assert item_text(changed.history[-1]) == "One two"


def test_the_pre_roll_of_the_interrupting_speech_is_kept() -> None:
    bench = asked()
    bench.speak("One two three four.", ms=5000)
    bench.speech("." * 20 + "s" * 20 + PAUSE)
    began = bench.told(m.SpeechBegan)[-1]
    assert began.start_ms == (36 + 20) * FRAME_MS - 300
    assert began.fence.epoch == 1
    respond = bench.told(m.Respond)[-1]
    assert (respond.fence.epoch, respond.fence.turn) == (1, 2)


def test_what_comes_late_is_dropped() -> None:
    bench = asked()
    old = bench.fence
    bench.speak("One", ms=100)
    interrupted_by_speech(bench)
    before = len(bench.events)
    bench.speak(" two", ms=100, fence=old)
    bench.do(m.ToolCall(fence=old, call_id="c", name="f", arguments="{}", final=True))
    bench.do(m.Listen(fence=old))
    bench.do(m.BeginTurn(fence=old.next_turn()))
    bench.do(m.Failed(fence=old, error=BROKEN))
    bench.end(fence=old)
    assert bench.events[before:] == []


# -- by command --------------------------------------------------------------------------------------------------------


def test_cancel_with_nothing_active() -> None:
    bench = Bench()
    bench.refused_with(ErrorCode.NO_ACTIVE_RESPONSE, c.ResponseCancel())
    bench.ask()
    bench.speak("Well.", ms=1000)
    bench.end()
    bench.refused_with(ErrorCode.NO_ACTIVE_RESPONSE, c.ResponseCancel())
    assert bench.fence.epoch == 0


def test_cancel_that_names_an_older_response() -> None:
    bench = Bench()
    older = bench.ask()
    bench.end()
    running = bench.ask()
    bench.refused_with(ErrorCode.NO_ACTIVE_RESPONSE, c.ResponseCancel(response_id=older), "response_id")
    assert bench.is_in(Answer.PENDING)
    bench.do(c.ResponseCancel(response_id=running))
    assert bench.is_in(Answer.NONE)


def test_cancel_twice() -> None:
    bench = Bench()
    bench.ask()
    bench.do(c.ResponseCancel())
    bench.refused_with(ErrorCode.NO_ACTIVE_RESPONSE, c.ResponseCancel())
    bench.only(ResponseDone)


def test_cancel_then_create() -> None:
    bench = Bench()
    first = bench.ask()
    bench.speak("One two", ms=500)
    bench.refused_with(ErrorCode.ACTIVE_RESPONSE, c.ResponseCreate())
    bench.do(c.ResponseCancel(), c.ResponseCreate())
    second = bench.of(ResponseCreated)[-1].response.id
    assert second != first
    assert (bench.fence.epoch, bench.fence.turn) == (1, 2)
    bench.speak("Other.", ms=100)
    bench.end()
    assert [done.response.status for done in bench.of(ResponseDone)] == [
        ResponseStatus.CANCELLED,
        ResponseStatus.COMPLETED,
    ]


def test_clearing_the_output_after_generation_does_not_block_the_next() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One two three four.", ms=1000, marks=MARKED)
    bench.end()
    bench.wait(450)
    bench.do(c.OutputAudioBufferClear())
    assert bench.fence.epoch == 1
    assert words(bench)[-1] == "One two"
    bench.ask()
    bench.speak("Next.", ms=100)
    bench.end()
    assert bench.of(ResponseDone)[-1].response.status is ResponseStatus.COMPLETED


def test_clearing_nothing_is_refused() -> None:
    bench = Bench()
    bench.refused_with(ErrorCode.NO_ACTIVE_RESPONSE, c.OutputAudioBufferClear())


def test_barge_in_says_what_was_heard() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One two three four.", ms=1000, marks=MARKED)
    bench.wait(900)
    bench.do(c.BargeIn(played_ms=420.0))
    assert words(bench)[-1] == "One two"
    assert bench.only(ItemTruncated).audio_end_ms == 420
    done = bench.only(ResponseDone)
    assert done.response.status_details is not None
    assert done.response.status_details.reason is StatusReason.TURN_DETECTED


def test_barge_in_takes_back_no_acknowledgement() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One two three four.", ms=1000, marks=MARKED)
    bench.do(c.PlaybackAck(played_ms=500.0))
    bench.do(c.BargeIn(played_ms=100.0))
    assert bench.only(ItemTruncated).audio_end_ms == 500


def test_barge_in_where_it_cannot_be() -> None:
    bench = Bench(capabilities={"barge_in_signal": False})
    bench.ask()
    bench.refused_with(ErrorCode.UNSUPPORTED_EVENT, c.BargeIn())
    bench = Bench()
    bench.refused_with(ErrorCode.NO_ACTIVE_RESPONSE, c.BargeIn())
    bench.ask()
    bench.speak("One", ms=100)
    bench.refused_with(ErrorCode.INVALID_VALUE, c.BargeIn(played_ms=-1.0), "played_ms")


# -- two answers at once -----------------------------------------------------------------------------------------------


def test_an_interruption_stops_all_that_sounds() -> None:
    """The first answer still sounds while the second is made."""
    bench = Bench()
    bench.ask()
    bench.speak("One two three four.", ms=1000, marks=MARKED)
    bench.end()
    bench.ask()
    bench.speak("Five six.", ms=1000)
    bench.wait(450)
    bench.do(c.BargeIn())
    assert [event.audio_end_ms for event in bench.of(OutputBufferCleared)] == [450, 0]
    assert [event.audio_end_ms for event in bench.of(ItemTruncated)] == [450, 0]
    assert [text for text in words(bench) if text != "Well?"] == ["One two"]
    (interrupted,) = bench.told(m.Interrupted)
    assert interrupted.response_id == bench.of(ResponseCreated)[1].response.id
    assert interrupted.heard_ms == 0.0


def test_an_answer_heard_to_its_end_is_not_cut_with_the_next() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One two three four.", ms=1000)
    bench.end()
    bench.ask()
    bench.speak("Five six seven eight.", ms=1000)
    bench.wait(1600)
    bench.do(c.ResponseCancel())
    assert len(bench.of(ItemTruncated)) == len(bench.of(OutputBufferCleared)) == 1
    assert [text for text in words(bench) if text != "Well?"] == ["One two three four.", "Five six"]


# -- the queued turn ---------------------------------------------------------------------------------------------------


def queued() -> Bench:
    """An answer that is not to be interrupted, and a second finished turn of the user."""
    bench = asked(interrupt_response=False)
    bench.speak("One two three four.", ms=3000)
    bench.speech("s" * 20 + PAUSE)
    assert len(bench.of(ResponseCreated)) == 1
    assert not bench.of(OverlapDecision)
    return bench


def test_a_second_turn_waits_for_the_answers_end() -> None:
    bench = queued()
    assert not bench.of(ErrorEvent)
    step = bench.end()
    assert kinds(step.events)[-3:] == ["ResponseDone", "RateLimitsUpdated", "ResponseCreated"]
    respond = bench.told(m.Respond)[-1]
    assert (respond.cause, respond.fence.epoch, respond.fence.turn) == (m.ResponseCause.COMMIT, 0, 2)
    assert len(respond.history) == 3
    bench.end()
    assert len(bench.of(ResponseCreated)) == 2, "it waits no more"


def test_three_turns_that_waited_are_answered_at_once() -> None:
    bench = queued()
    bench.speech("s" * 20 + PAUSE)
    bench.end()
    assert len(bench.told(m.Respond)[-1].history) == 4
    bench.end()
    assert len(bench.of(ResponseCreated)) == 2


@pytest.mark.parametrize("command", [c.ResponseCancel(), c.OutputAudioBufferClear()])
def test_a_cancelled_answer_lets_the_waiting_turn_in(command: c.Command) -> None:
    bench = queued()
    step = bench.do(command)
    assert kinds(step.events)[-1] == "ResponseCreated"
    assert kinds(step.effects)[-1] == "Respond", "the model hears of the interruption first"
    assert (bench.fence.epoch, bench.fence.turn) == (1, 2)


def test_a_user_who_interrupts_is_answered_to_what_is_being_said() -> None:
    bench = queued()
    bench.do(c.BargeIn())
    assert len(bench.of(ResponseCreated)) == 1
    bench.speech("s" * 20 + PAUSE)
    assert len(bench.told(m.Respond)[-1].history) == 4
    bench.end()
    assert len(bench.of(ResponseCreated)) == 2


def test_a_failed_answer_lets_the_waiting_turn_in() -> None:
    bench = queued()
    bench.do(m.Failed(fence=bench.fence, error=BROKEN))
    assert bench.only(ResponseDone).response.status is ResponseStatus.FAILED
    assert len(bench.of(ResponseCreated)) == 2


def test_a_waiting_turn_opens_nothing_when_the_session_closes() -> None:
    for command in (c.SessionClose(), m.Fatal(error=BROKEN)):
        bench = queued()
        bench.do(command)
        assert len(bench.of(ResponseCreated)) == len(bench.of(ResponseDone)) == 1


def test_interrupt_response_false_leaves_the_answer_alone() -> None:
    bench = asked(interrupt_response=False)
    bench.speak("One two three four.", ms=3000)
    bench.speech("s" * 20)
    bench.speak(" Five.", ms=1000)
    assert len(bench.of(OutputAudioDelta)) == 2
    assert bench.fence.epoch == 0
    assert not bench.told(m.Interrupted)
