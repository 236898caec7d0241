"""A model that listens all the time and takes its turns itself (`TurnPolicy.MODEL`)."""

from __future__ import annotations

import pytest

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.capabilities import TurnPolicy
from duplex_core.config import ServerVad
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    ErrorEvent,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    ResponseStatus,
    SpeechStopped,
)
from duplex_core.items import item_text
from duplex_core.machine.output import ModelFault
from duplex_core.machine.taking import STREAM_KEEP_MS
from duplex_core.testing import invariants
from tests.support.machines import FRAME_MS, Bench, kinds, same_audio, told

PAUSE = "." * 16


def native(vad: ServerVad | None = None) -> Bench:
    return Bench(vad=vad, capabilities={"turn_policy": TurnPolicy.MODEL})


def begin(bench: Bench) -> None:
    """The model takes a turn by itself."""
    bench.do(m.BeginTurn(fence=bench.fence.next_turn()))


def test_the_model_speaks_without_any_commit() -> None:
    bench = native()
    bench.append(1000)
    begin(bench)
    assert (bench.fence.epoch, bench.fence.turn) == (0, 1)
    assert not bench.told(m.Respond), "it knows"
    bench.speak("Mm-hm.", ms=400)
    bench.end()
    bench.wait(400)
    assert [item_text(item) for item in bench.history] == ["Mm-hm."]
    assert bench.only(ResponseDone).response.status is ResponseStatus.COMPLETED
    invariants.check(bench.events)


def test_what_could_not_be_used_of_the_input_is_told_and_ends_nothing() -> None:
    bench = native()
    bench.append(1000)
    fault = error(ErrorCode.INVALID_VALUE, "that is no picture", param="video_frames")
    bench.do(m.InputRefused(error=fault))
    assert bench.only(ErrorEvent).error == fault
    begin(bench)
    bench.speak("Mm-hm.", ms=400)
    bench.do(m.InputRefused(error=fault))
    bench.end()
    bench.wait(400)
    assert [each.error for each in bench.events if isinstance(each, ErrorEvent)] == [fault, fault]
    assert bench.only(ResponseDone).response.status is ResponseStatus.COMPLETED
    invariants.check(bench.events)


def test_a_turn_inside_a_turn_is_the_models_fault() -> None:
    bench = native()
    begin(bench)
    with pytest.raises(ModelFault, match="while response"):
        begin(bench)


def test_a_turn_cannot_be_skipped() -> None:
    bench = native()
    with pytest.raises(ModelFault, match="turn 2 begins, but the last turn opened is 0"):
        bench.do(m.BeginTurn(fence=bench.fence.next_turn().next_turn()))
    assert bench.fence.turn == 0
    assert not bench.of(ResponseCreated)


def test_a_stale_beginning_opens_nothing() -> None:
    bench = native()
    begin(bench)
    old = bench.fence
    bench.do(c.ResponseCancel())
    assert not bench.do(m.BeginTurn(fence=old.next_turn())).events


def test_the_model_adopts_the_turn_that_was_opened_for_it() -> None:
    bench = native()
    before = bench.fence
    bench.do(c.ResponseCreate())
    assert not bench.do(m.BeginTurn(fence=before.next_turn())).events, "it had not heard of the Respond yet"
    bench.speak("Yes.", ms=100)
    assert not bench.do(m.BeginTurn(fence=bench.fence)).events
    bench.end()
    assert len(bench.of(ResponseCreated)) == len(bench.of(ResponseDone)) == 1


def test_a_commit_is_no_question() -> None:
    bench = native()
    bench.append(1000)
    step = bench.commit()
    assert kinds(step.events) == ["InputCommitted", "ItemAdded", "ItemCreated", "ItemDone"]
    (committed,) = told(step.effects, m.InputCommitted)
    assert same_audio(committed.pcm, 0, 1000)
    assert not bench.of(ResponseCreated)
    bench.do(m.Listen(fence=bench.fence))
    assert bench.only(ResponseListen).response_id is None


def test_a_commit_can_be_one() -> None:
    bench = native()
    bench.append(1000)
    bench.commit(response_create=True)
    response_id = bench.only(ResponseCreated).response.id
    assert len(bench.told(m.Respond)) == 1
    bench.do(m.Listen(fence=bench.fence))
    assert bench.only(ResponseListen).response_id == response_id
    done = bench.only(ResponseDone).response
    assert (done.status, done.output) == (ResponseStatus.COMPLETED, [])
    assert kinds(bench.events)[-3:] == ["ResponseListen", "ResponseDone", "RateLimitsUpdated"]


def test_a_unit_that_was_under_way_does_not_end_the_answer_to_a_later_question() -> None:
    bench = native()
    unit = bench.fence
    bench.do(c.ResponseCreate())
    bench.do(m.Listen(fence=unit))
    assert bench.only(ResponseListen).response_id is None
    assert not bench.of(ResponseDone)
    bench.speak("Yes.", ms=100)
    bench.end()
    bench.only(ResponseDone)


def test_a_unit_of_an_old_epoch_says_nothing() -> None:
    bench = native()
    unit = bench.fence
    bench.do(c.ResponseCreate(), c.ResponseCancel())
    assert not bench.do(m.Listen(fence=unit)).events


def test_the_detector_only_interrupts() -> None:
    bench = native(ServerVad())
    bench.append(100)
    begin(bench)
    bench.speak("One two three four.", ms=3000, marks=((7, 400.0), (19, 1000.0)))
    bench.judged_ms = 100.0
    bench.speech("s" * 20 + PAUSE)
    assert kinds(event for event in bench.events if "Speech" in type(event).__name__) == [
        "SpeechStarted",
        "SpeechStopped",
    ]
    assert bench.only(ResponseDone).response.status is ResponseStatus.CANCELLED
    assert bench.fence.epoch == 1
    began, (dropped,) = bench.told(m.SpeechBegan), bench.told(m.SpeechDropped)
    assert began[0].item_id == dropped.item_id
    assert not bench.told(m.InputCommitted)
    assert not bench.told(m.Respond)
    assert "InputCommitted" not in kinds(bench.events)
    assert bench.do(m.UserTranscript(item_id=dropped.item_id, text="Hm", final=True)).events == ()
    begin(bench)
    assert (bench.fence.epoch, bench.fence.turn) == (1, 2)


def test_speech_that_resumes_over_a_turn_taken_in_its_pause_interrupts() -> None:
    bench = native(ServerVad())
    bench.speech("s" * 20 + "." * 10)
    begin(bench)
    bench.speak("One two three four.", ms=3000)
    bench.speech("s" * 40)
    (stopped,) = bench.of(SpeechStopped)
    assert stopped.audio_end_ms == 20 * FRAME_MS
    assert bench.only(ResponseDone).response.status is ResponseStatus.CANCELLED
    assert bench.fence.epoch == 1
    began, (dropped,) = bench.told(m.SpeechBegan), bench.told(m.SpeechDropped)
    assert dropped.item_id == began[0].item_id
    assert len(began) == 2
    bench.speech(PAUSE)
    assert len(bench.of(SpeechStopped)) == 2
    invariants.check(bench.events)


def test_the_padding_reaches_no_further_than_the_utterance_before() -> None:
    bench = native(ServerVad(prefix_padding_ms=2000, silence_duration_ms=64))
    bench.speech("ssss....ssss....")
    assert [event.start_ms for event in bench.told(m.SpeechBegan)] == [0, 4 * FRAME_MS]


def test_a_commit_in_mid_speech_takes_what_was_heard_and_the_detector_goes_on() -> None:
    bench = native(ServerVad())
    bench.speech("." * 5 + "s" * 10)
    bench.commit()
    committed = bench.told(m.InputCommitted)[0]
    assert same_audio(committed.pcm, 0, 15 * FRAME_MS)
    bench.speech("s" * 5 + PAUSE)
    assert len(bench.told(m.SpeechBegan)) == len(bench.told(m.SpeechDropped)) == 1
    assert len(bench.told(m.InputCommitted)) == 1
    bench.refused_with(ErrorCode.EMPTY_AUDIO, c.InputAudioBufferAppend(audio=b""), "audio")


def test_speech_that_was_committed_before_the_detector_came_to_it() -> None:
    bench = native(ServerVad())
    bench.append(10 * FRAME_MS)
    bench.commit()
    bench.append(17 * FRAME_MS)
    bench.judge("s" * 10 + PAUSE + ".")
    (began,) = bench.told(m.SpeechBegan)
    assert began.start_ms == 10 * FRAME_MS
    assert same_audio(began.pcm, 10 * FRAME_MS, 27 * FRAME_MS)
    assert bench.only(SpeechStopped).audio_end_ms == 10 * FRAME_MS
    invariants.check(bench.events)


def test_the_audio_kept_for_a_commit_is_bounded() -> None:
    bench = native()
    for _ in range(90):
        bench.append(1000)
    bench.commit()
    committed = bench.told(m.InputCommitted)[0]
    assert committed.end_ms - committed.start_ms == STREAM_KEEP_MS
    assert same_audio(committed.pcm, 90_000 - STREAM_KEEP_MS, 90_000)


def test_a_commit_that_asks_while_the_model_speaks_waits() -> None:
    bench = native()
    begin(bench)
    bench.speak("One.", ms=100)
    bench.append(1000)
    bench.commit(response_create=True)
    assert len(bench.of(ResponseCreated)) == 1
    bench.end()
    assert len(bench.of(ResponseCreated)) == 2
    assert bench.told(m.Respond)[0].fence == bench.fence


def test_streamed_text_reaches_a_model_that_takes_it() -> None:
    bench = Bench(capabilities={"text_stream_input": True, "turn_policy": TurnPolicy.MODEL})
    bench.do(c.InputTextAppend(text="psst"))
    assert bench.told(m.TextArrived)[0].text == "psst"
    native().refused_with(ErrorCode.UNSUPPORTED_EVENT, c.InputTextAppend(text="psst"))
