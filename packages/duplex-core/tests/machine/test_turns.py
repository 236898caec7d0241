"""The user's turns: by the detector, by the client, and by both at once."""

from __future__ import annotations

import pytest

from duplex_core import commands as c
from duplex_core.capabilities import TurnPolicy
from duplex_core.config import ServerVad
from duplex_core.errors import ErrorCode
from duplex_core.events import (
    ErrorEvent,
    InputCleared,
    InputCommitted,
    InputTimeoutTriggered,
    ItemAdded,
    ResponseCreated,
    ResponseDone,
    SpeechStarted,
    SpeechStopped,
)
from duplex_core.items import InputAudio, MessageItem
from duplex_core.machine.input import COMMIT_MS, MAX_BUFFER_MS, STALL_MS, TAIL_MS
from duplex_core.machine.io import Detect, ResetDetector, SpeechFrames
from duplex_core.machine.table import Hearing
from duplex_core.machine.taking import QUIET_KEEP_MS
from duplex_core.model import (
    AudioArrived,
    Configured,
    ImageArrived,
    InputDropped,
    Respond,
    ResponseCause,
    SpeechBegan,
    SpeechDropped,
    SpeechPaused,
    SpeechResumed,
)
from duplex_core.model import InputCommitted as ToldCommitted
from tests.support.machines import FRAME_MS, Bench, kinds, same_audio, told

PAUSE = "." * 16
"""Silence that ends a turn: 512 ms."""


def audio_of(bench: Bench, index: int = -1) -> bytes:
    """The audio of an item of the history."""
    item = bench.history[index]
    assert isinstance(item, MessageItem)
    part = item.content[0]
    assert isinstance(part, InputAudio)
    assert part.audio is not None
    return part.audio


# -- the detector's turns ----------------------------------------------------------------------------------------------


def test_a_turn_of_the_detector() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("." * 20 + "s" * 30 + PAUSE)
    begins, ends = 20 * FRAME_MS, 50 * FRAME_MS
    assert kinds(bench.events) == [
        "SessionCreated",
        "SpeechStarted",
        "SpeechStopped",
        "InputCommitted",
        "ItemAdded",
        "ItemCreated",
        "ItemDone",
        "ResponseCreated",
    ]
    started, stopped = bench.only(SpeechStarted), bench.only(SpeechStopped)
    assert started.audio_start_ms == begins - 300
    assert stopped.audio_end_ms == ends
    assert started.item_id == stopped.item_id == bench.only(InputCommitted).item_id == bench.history[0].id
    assert same_audio(audio_of(bench), begins - 300, ends + TAIL_MS)
    (respond,) = bench.told(Respond)
    assert respond.cause is ResponseCause.COMMIT
    assert respond.fence == bench.fence
    assert (respond.fence.epoch, respond.fence.turn) == (0, 1)
    assert [item.id for item in respond.history] == [started.item_id]


def test_what_the_model_is_told_of_a_turn() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("." * 20 + "s" * 10 + "." * 6 + "s" * 10 + PAUSE)
    heard = [event for event in bench.told(object) if not isinstance(event, AudioArrived)]
    assert kinds(heard) == [
        "Configured",
        "SpeechBegan",
        "SpeechPaused",
        "SpeechResumed",
        "SpeechPaused",
        "InputCommitted",
        "Respond",
    ]
    assert isinstance(bench.told(object)[0], Configured), "its configuration comes first"
    arrived = bench.told(AudioArrived)
    assert [event.start_ms for event in arrived] == [FRAME_MS * number for number in range(len(arrived))]
    (began,) = bench.told(SpeechBegan)
    assert began.start_ms == 20 * FRAME_MS - 300
    assert same_audio(began.pcm, began.start_ms, 22 * FRAME_MS), "the pre-roll, up to now"
    first, second = bench.told(SpeechPaused)
    assert (first.at_ms, first.remaining_ms) == (30 * FRAME_MS, 500 - 3 * FRAME_MS)
    assert second.at_ms == 46 * FRAME_MS
    (committed,) = bench.told(ToldCommitted)
    assert {began.item_id, first.item_id, bench.told(SpeechResumed)[0].item_id} == {committed.item_id}
    assert same_audio(committed.pcm, committed.start_ms, committed.end_ms)


def test_the_padding_reaches_no_further_than_the_beginning_or_the_turn_before() -> None:
    bench = Bench(vad=ServerVad(prefix_padding_ms=2000, silence_duration_ms=200, create_response=False))
    bench.speech("..ssss" + "." * 7 + "ssss" + "." * 7)
    first, second = bench.of(SpeechStarted)
    assert first.audio_start_ms == 0
    assert same_audio(audio_of(bench, 0), 0, 6 * FRAME_MS + TAIL_MS)
    assert second.audio_start_ms == 6 * FRAME_MS + TAIL_MS
    assert same_audio(audio_of(bench, 1), 6 * FRAME_MS + TAIL_MS, 17 * FRAME_MS + TAIL_MS)


def test_the_tail_of_a_turn_never_takes_the_beginning_of_the_next() -> None:
    bench = Bench(vad=ServerVad(silence_duration_ms=64, create_response=False))
    bench.append(640)
    bench.judge("ssss..ssss..........")
    first, second = bench.told(ToldCommitted)
    assert first.end_ms <= 6 * FRAME_MS
    assert second.start_ms == first.end_ms
    assert same_audio(second.pcm, second.start_ms, second.end_ms)


def test_a_whole_utterance_in_one_append() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(60 * FRAME_MS)
    bench.judge("." * 4 + "s" * 40 + PAUSE)
    assert kinds(bench.events)[1:4] == ["SpeechStarted", "SpeechStopped", "InputCommitted"]
    assert same_audio(audio_of(bench), 0, 44 * FRAME_MS + TAIL_MS)


def test_a_very_long_utterance_in_one_append_keeps_its_beginning() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(1500 * FRAME_MS)
    bench.judge("." * 20 + "s" * 1460 + PAUSE)
    assert 1460 * FRAME_MS > QUIET_KEEP_MS * 4
    assert same_audio(audio_of(bench), 20 * FRAME_MS - 300, 1480 * FRAME_MS + TAIL_MS)


def test_two_utterances_in_one_batch_of_verdicts() -> None:
    bench = Bench(vad=ServerVad(create_response=False))
    bench.append(100 * FRAME_MS)
    bench.judge("." * 10 + "s" * 10 + "." * 20 + "s" * 20 + PAUSE)
    assert [event.audio_start_ms for event in bench.of(SpeechStarted)] == [20, 40 * FRAME_MS - 300]
    assert [event.audio_end_ms for event in bench.of(SpeechStopped)] == [20 * FRAME_MS, 60 * FRAME_MS]
    assert same_audio(audio_of(bench, 0), 20, 20 * FRAME_MS + TAIL_MS)
    assert same_audio(audio_of(bench, 1), 40 * FRAME_MS - 300, 60 * FRAME_MS + TAIL_MS)


def test_the_end_of_one_utterance_and_the_start_of_the_next_in_one_append() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("s" * 20)
    bench.append(40 * FRAME_MS)
    bench.judge(PAUSE + "." * 4 + "s" * 20)
    assert len(bench.of(InputCommitted)) == 1
    assert bench.is_in(Hearing.SPEAKING)
    bench.speech(PAUSE)
    assert len(bench.of(InputCommitted)) == 2
    assert same_audio(audio_of(bench), 40 * FRAME_MS - 300, 60 * FRAME_MS + TAIL_MS)


def test_speech_that_resumes_resets_the_clock() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("ssss" + "." * 14 + "s" + "." * 14 + "s" + "." * 14)
    assert not bench.of(SpeechStopped)
    bench.speech("..")
    assert bench.only(SpeechStopped).audio_end_ms == 34 * FRAME_MS


def test_a_microphone_that_stops_in_mid_speech_ends_the_turn() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("s" * 20)
    bench.wait(STALL_MS - 1)
    assert not bench.of(SpeechStopped)
    bench.wait(1)
    assert kinds(bench.events)[1:3] == ["SpeechStarted", "SpeechStopped"]
    assert same_audio(audio_of(bench), 0, 20 * FRAME_MS)
    bench.only(ResponseCreated)
    assert bench.is_in(Hearing.QUIET)


def test_a_microphone_that_stops_in_the_hangover_ends_the_turn() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("s" * 20 + "....")
    bench.wait(STALL_MS)
    assert bench.only(SpeechStopped).audio_end_ms == 20 * FRAME_MS


def test_audio_without_a_verdict_belongs_to_the_turn_that_stalls() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("s" * 20)
    bench.append(1000)
    bench.wait(STALL_MS)
    assert same_audio(audio_of(bench), 0, 20 * FRAME_MS + 1000)


def test_a_long_silence_that_ends_turns_gives_a_stalled_microphone_longer() -> None:
    bench = Bench(vad=ServerVad(silence_duration_ms=3000))
    bench.speech("s" * 20)
    bench.wait(5999)
    assert not bench.of(SpeechStopped)
    bench.wait(1)
    assert bench.of(SpeechStopped)


def test_speech_after_a_stall_is_a_new_turn() -> None:
    bench = Bench(vad=ServerVad(create_response=False))
    bench.speech("s" * 20)
    bench.wait(STALL_MS)
    bench.speech("s" * 10 + PAUSE)
    assert [event.audio_start_ms for event in bench.of(SpeechStarted)] == [0, 20 * FRAME_MS]
    assert same_audio(audio_of(bench), 20 * FRAME_MS, 30 * FRAME_MS + TAIL_MS)


def test_verdicts_of_an_older_generation_change_nothing() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(640)
    old = bench.generation
    bench.do(c.InputAudioBufferClear())
    bench.append(640)
    assert bench.generation == old + 1
    bench.judged_ms = 0.0
    bench.generation = old
    assert not bench.judge("s" * 20).events


def test_ten_turns_in_a_row() -> None:
    bench = Bench(vad=ServerVad())
    for number in range(1, 11):
        bench.speech("." * 5 + "s" * 20 + PAUSE)
        assert bench.fence.turn == number
        bench.speak(f"Answer {number}.", ms=200)
        bench.end()
        bench.wait(300)
    assert len(bench.of(InputCommitted)) == len(bench.of(ResponseDone)) == 10
    assert len(bench.history) == 20
    assert bench.fence.epoch == 0
    assert not bench.of(ErrorEvent)


def test_old_silence_is_forgotten_and_the_padding_is_not() -> None:
    bench = Bench(vad=ServerVad())
    for _ in range(80):
        bench.append(10 * FRAME_MS)
        bench.judge("." * 10)
    buffer = bench.machine._input._buffer
    assert QUIET_KEEP_MS <= buffer.duration_ms <= QUIET_KEEP_MS + 300 + 10 * FRAME_MS
    bench.speech("s" * 10 + PAUSE)
    assert same_audio(audio_of(bench), 800 * FRAME_MS - 300, 810 * FRAME_MS + TAIL_MS)


def test_a_turn_cannot_grow_without_bound() -> None:
    for vad in (None, ServerVad()):
        bench = Bench(vad=vad)
        bench.append(MAX_BUFFER_MS - 1000)
        bench.refused_with(ErrorCode.RESOURCE_EXHAUSTED, c.InputAudioBufferAppend(audio=bytes(64_000)), "audio")


def test_create_response_false_commits_and_leaves_the_answer_to_the_client() -> None:
    bench = Bench(vad=ServerVad(create_response=False))
    bench.speech("s" * 20 + PAUSE)
    bench.only(InputCommitted)
    assert not bench.of(ResponseCreated)
    bench.do(c.ResponseCreate())
    (respond,) = bench.told(Respond)
    assert respond.cause is ResponseCause.CLIENT
    assert len(respond.history) == 1


# -- the client's turns ------------------------------------------------------------------------------------------------


def test_a_turn_of_the_client() -> None:
    bench = Bench()
    bench.append(400)
    bench.append(600)
    step = bench.commit()
    assert kinds(step.events) == ["InputCommitted", "ItemAdded", "ItemCreated", "ItemDone"]
    assert same_audio(audio_of(bench), 0, 1000)
    assert not bench.of(ResponseCreated), "without a detector the client asks for the answer"
    bench.do(c.ResponseCreate())
    bench.only(ResponseCreated)


def test_a_commit_can_ask_for_its_answer() -> None:
    bench = Bench()
    bench.append(400)
    bench.commit(response_create=True)
    (respond,) = bench.told(Respond)
    assert respond.cause is ResponseCause.COMMIT
    assert len(respond.history) == 1


def test_events_show_no_audio() -> None:
    bench = Bench()
    bench.append(400)
    bench.commit()
    item = bench.only(ItemAdded).item
    assert isinstance(item, MessageItem)
    assert item.content == (InputAudio(),)


def test_an_empty_commit_is_refused() -> None:
    bench = Bench()
    bench.refused_with(ErrorCode.INPUT_AUDIO_BUFFER_COMMIT_EMPTY, c.InputAudioBufferCommit())
    bench.append(100)
    bench.commit()
    bench.refused_with(ErrorCode.INPUT_AUDIO_BUFFER_COMMIT_EMPTY, c.InputAudioBufferCommit())


def test_an_empty_or_broken_append_is_refused() -> None:
    bench = Bench()
    bench.refused_with(ErrorCode.EMPTY_AUDIO, c.InputAudioBufferAppend(audio=b""), "audio")
    bench.refused_with(ErrorCode.INVALID_AUDIO, c.InputAudioBufferAppend(audio=b"\1\2\3"), "audio")
    picture = (c.VideoFrame(data=b"jpeg"),)
    bench.refused_with(
        ErrorCode.UNSUPPORTED_PARAMETER, c.InputAudioBufferAppend(audio=b"\1\2", video_frames=picture), "video_frames"
    )


def test_pictures_lie_on_the_audios_time_line() -> None:
    bench = Bench(capabilities={"video_input": True})
    bench.append(500)
    pictures = (c.VideoFrame(data=b"one"), c.VideoFrame(data=b"two", at_ms=40.0))
    bench.do(c.InputAudioBufferAppend(audio=bytes(3200), video_frames=pictures))
    bench.do(c.InputAudioBufferAppend(audio=b"", video_frames=pictures[:1]))
    assert [(event.data, event.at_ms) for event in bench.told(ImageArrived)] == [
        (b"one", 500.0),
        (b"two", 540.0),
        (b"one", 600.0),
    ]


def test_declared_silence_is_no_turn() -> None:
    bench = Bench()
    bench.append(400)
    assert kinds(bench.commit(is_speech=False).events) == ["InputCleared"]
    assert not bench.history
    bench.refused_with(ErrorCode.INPUT_AUDIO_BUFFER_COMMIT_EMPTY, c.InputAudioBufferCommit())


@pytest.mark.parametrize("command", [c.InputAudioBufferClear(), c.InputCancel()])
def test_what_is_cleared_is_gone(command: c.Command) -> None:
    bench = Bench()
    bench.append(400)
    assert kinds(bench.do(command).events) == ["InputCleared"]
    bench.append(100)
    bench.commit()
    assert same_audio(audio_of(bench), 400, 500), "the time line goes on"


def test_a_model_that_hears_everything_is_told_what_was_withdrawn() -> None:
    bench = Bench(capabilities={"turn_policy": TurnPolicy.MODEL})
    bench.do(c.InputAudioBufferClear())
    assert not bench.told(InputDropped), "it has heard nothing yet, and is not begun for this"
    bench.append(400)
    bench.do(c.InputAudioBufferClear())
    assert len(bench.told(InputDropped)) == 1
    committed = Bench()
    committed.append(400)
    committed.do(c.InputAudioBufferClear())
    assert not committed.told(InputDropped)


def test_input_cancel_is_for_models_that_take_it() -> None:
    bench = Bench(capabilities={"input_cancel": False})
    bench.append(400)
    bench.refused_with(ErrorCode.UNSUPPORTED_EVENT, c.InputCancel())


def test_clearing_in_mid_speech_drops_the_utterance() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("s" * 20)
    (began,) = bench.told(SpeechBegan)
    step = bench.do(c.InputAudioBufferClear())
    assert [event.item_id for event in told(step.effects, SpeechDropped)] == [began.item_id]
    assert not bench.timers, "no stalled microphone to wait for"
    bench.speech("s" * 10 + PAUSE)
    assert same_audio(audio_of(bench), 20 * FRAME_MS, 30 * FRAME_MS + TAIL_MS)
    assert len(bench.history) == 1


def test_a_clear_lets_no_verdict_be_waited_for() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(1000)
    bench.do(c.InputAudioBufferClear())
    bench.append(50)
    assert kinds(bench.commit().events)[0] == "InputCommitted"
    assert same_audio(audio_of(bench), 1000, 1050)


# -- both --------------------------------------------------------------------------------------------------------------


def test_a_commit_in_mid_speech_ends_the_utterance() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("." * 10 + "s" * 20)
    step = bench.commit()
    assert kinds(step.events)[:2] == ["SpeechStopped", "InputCommitted"]
    assert same_audio(audio_of(bench), 20, 30 * FRAME_MS)
    bench.only(ResponseCreated)
    assert bench.only(SpeechStarted).item_id == bench.history[0].id
    bench.speech("." * 40)
    assert len(bench.of(SpeechStopped)) == 1, "the detector began anew"


def test_a_commit_after_the_detectors_own_invents_no_turn() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("s" * 20 + PAUSE + "...")
    assert kinds(bench.commit().events) == ["InputCleared"]
    assert len(bench.history) == 1
    assert len(bench.of(ResponseCreated)) == 1
    bench.speech("...")
    assert kinds(bench.commit().events) == ["InputCleared"], "still nothing but silence"
    assert len(bench.history) == 1


def test_such_a_commit_that_asks_for_an_answer_gets_one() -> None:
    bench = Bench(vad=ServerVad(create_response=False))
    bench.speech("s" * 20 + PAUSE)
    assert kinds(bench.commit(response_create=True).events) == ["InputCleared", "ResponseCreated"]
    assert len(bench.told(Respond)[0].history) == 1


def test_such_a_commit_does_not_ask_twice() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("s" * 20 + PAUSE)
    assert kinds(bench.commit(response_create=True).events) == ["InputCleared"]
    bench.end()
    assert len(bench.of(ResponseCreated)) == 1


def test_a_commit_of_what_the_detector_did_not_notice() -> None:
    bench = Bench(vad=ServerVad())
    bench.speech("." * 20)
    bench.commit()
    assert same_audio(audio_of(bench), 0, 20 * FRAME_MS)
    assert not bench.of(ResponseCreated)


def test_a_commit_waits_for_the_detectors_verdict() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(60 * FRAME_MS)
    assert not bench.commit().events
    bench.judge("." * 10 + "s" * 30)
    assert not bench.of(InputCommitted)
    step = bench.judge("s" * 20)
    assert kinds(step.events)[:2] == ["SpeechStopped", "InputCommitted"]
    assert same_audio(audio_of(bench), 20, 60 * FRAME_MS)
    bench.only(ResponseCreated)
    assert not bench.timers


def test_a_commit_that_waits_is_carried_out_before_the_next_command() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(60 * FRAME_MS)
    bench.commit()
    step = bench.do(c.ResponseCreate())
    assert kinds(step.events)[0] == "InputCommitted"
    assert "ResponseCreated" in kinds(step.events)
    assert len(bench.told(Respond)[0].history) == 1


def test_a_clients_create_after_such_a_commit_meets_the_automatic_answer() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(60 * FRAME_MS)
    bench.commit()
    bench.judge("s" * 30)
    step = bench.do(c.ResponseCreate(event_id="evt_7"))
    assert kinds(step.events)[-2:] == ["ResponseCreated", "ErrorEvent"]
    error = bench.only(ErrorEvent).error
    assert (error.code, error.event_id) == (ErrorCode.ACTIVE_RESPONSE, "evt_7")


@pytest.mark.parametrize("overtakes", [c.SessionHeartbeat(), c.SessionEventAck(server_event_seq=1)])
def test_signs_of_life_do_not_hurry_a_commit(overtakes: c.Command) -> None:
    bench = Bench(vad=ServerVad())
    bench.append(60 * FRAME_MS)
    bench.commit()
    bench.do(overtakes)
    assert not bench.of(InputCommitted)


def test_a_commit_takes_nothing_that_came_after_it() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(40 * FRAME_MS)
    bench.commit()
    bench.append(40 * FRAME_MS)
    bench.judge("s" * 38)
    assert same_audio(audio_of(bench), 0, 40 * FRAME_MS)


def test_audio_after_a_commit_is_judged_afresh() -> None:
    bench = Bench(vad=ServerVad(create_response=False))
    bench.append(40 * FRAME_MS)
    bench.commit()
    bench.append(40 * FRAME_MS)
    before = len(bench.effects)
    bench.judge("s" * 40)
    again = [effect for effect in bench.effects[before:] if isinstance(effect, Detect | ResetDetector)]
    reset, detect = again
    assert isinstance(reset, ResetDetector)
    assert isinstance(detect, Detect)
    assert reset.start_ms == 40 * FRAME_MS
    assert same_audio(detect.pcm, 40 * FRAME_MS, 80 * FRAME_MS)
    assert detect.generation == reset.generation
    bench.judge("s" * 10 + PAUSE)
    assert same_audio(audio_of(bench, 1), 40 * FRAME_MS, 50 * FRAME_MS + TAIL_MS)


def test_verdicts_beyond_the_commit_in_the_same_batch_are_given_again() -> None:
    bench = Bench(vad=ServerVad(create_response=False))
    bench.append(20 * FRAME_MS)
    bench.commit()
    bench.append(60 * FRAME_MS)
    bench.judge("." * 30 + "s" * 20 + PAUSE)
    assert same_audio(audio_of(bench), 0, 20 * FRAME_MS), "all that was quiet"
    assert not bench.of(SpeechStarted), "later verdicts are of an older generation now"
    bench.judge("." * 10 + "s" * 20 + PAUSE)
    assert same_audio(audio_of(bench, 1), 30 * FRAME_MS - 300, 50 * FRAME_MS + TAIL_MS)


def test_a_commit_does_not_wait_for_ever() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(60 * FRAME_MS)
    bench.commit()
    bench.wait(COMMIT_MS - 1)
    assert not bench.of(InputCommitted)
    bench.wait(1)
    assert same_audio(audio_of(bench), 0, 60 * FRAME_MS)
    assert not bench.timers


def test_a_commit_that_the_detector_forestalled_clears_the_rest() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(60 * FRAME_MS)
    bench.commit()
    bench.judge("s" * 40 + "." * 20)
    assert kinds(bench.events)[1:4] == ["SpeechStarted", "SpeechStopped", "InputCommitted"]
    assert len(bench.of(InputCommitted)) == 1
    bench.only(InputCleared)
    assert len(bench.of(ResponseCreated)) == 1
    assert same_audio(audio_of(bench), 0, 40 * FRAME_MS + TAIL_MS)


def test_a_second_commit_while_the_first_waits() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(60 * FRAME_MS)
    bench.commit()
    step = bench.commit(event_id="evt_2")
    assert kinds(step.events) == ["InputCommitted", "ItemAdded", "ItemCreated", "ItemDone", "ErrorEvent"]
    assert bench.only(ErrorEvent).error.code is ErrorCode.INPUT_AUDIO_BUFFER_COMMIT_EMPTY


def test_a_commit_that_waits_survives_a_refused_command() -> None:
    bench = Bench(vad=ServerVad())
    bench.append(60 * FRAME_MS)
    bench.commit()
    step = bench.do(c.ResponseCancel(event_id="evt_3"))
    assert kinds(step.events) == ["InputCommitted", "ItemAdded", "ItemCreated", "ItemDone", "ErrorEvent"]
    assert [event.item_id for event in told(step.effects, ToldCommitted)] == [bench.history[0].id]


# -- nobody speaks -----------------------------------------------------------------------------------------------------


def answered(idle_timeout_ms: int = 5000) -> Bench:
    """A conversation whose first answer has been heard to its end, at this moment."""
    bench = Bench(vad=ServerVad(idle_timeout_ms=idle_timeout_ms))
    bench.speech("s" * 20 + PAUSE)
    bench.speak("Yes.", ms=1000)
    bench.end()
    bench.wait(1000)
    return bench


def test_nobody_speaks_for_the_idle_timeout() -> None:
    bench = answered()
    bench.wait(4999)
    assert not bench.of(InputTimeoutTriggered)
    bench.wait(1)
    assert kinds(bench.events)[-6:] == [
        "InputTimeoutTriggered",
        "InputCommitted",
        "ItemAdded",
        "ItemCreated",
        "ItemDone",
        "ResponseCreated",
    ]
    respond = bench.told(Respond)[-1]
    assert respond.cause is ResponseCause.IDLE
    assert len(respond.history) == 2, "the empty item says nothing to a model"
    bench.end()
    bench.wait(5000)
    assert len(bench.of(InputTimeoutTriggered)) == 2


def test_the_silence_that_timed_out_is_named() -> None:
    bench = answered()
    bench.speech("." * 160)
    timed_out = bench.only(InputTimeoutTriggered)
    assert timed_out.audio_end_ms - timed_out.audio_start_ms == 5000


def test_speech_at_the_moment_of_the_timeout_keeps_its_beginning() -> None:
    bench = answered()
    bench.speech("." * 150)
    bench.append(10 * FRAME_MS)
    begins = bench.sent_ms - 10 * FRAME_MS
    bench.wait(5000)
    assert bench.of(InputTimeoutTriggered)
    bench.judge("s" * 10)
    assert bench.of(SpeechStarted)[-1].audio_start_ms == int(begins - 300)


def test_speech_ends_the_waiting() -> None:
    bench = answered()
    bench.speech("ss")
    bench.wait(1900)
    bench.speech("ss")
    bench.wait(1900)
    bench.speech("ss")
    bench.wait(1900)
    assert not bench.of(InputTimeoutTriggered)


def test_the_timeout_begins_when_the_sound_ends_not_when_it_was_made() -> None:
    bench = Bench(vad=ServerVad(idle_timeout_ms=5000))
    bench.ask()
    bench.speak("A long one.", ms=8000)
    bench.end()
    bench.wait(12_999)
    assert not bench.of(InputTimeoutTriggered)
    bench.wait(1)
    assert bench.of(InputTimeoutTriggered)


def test_nobody_is_asked_to_speak_before_anything_was_answered() -> None:
    bench = Bench(vad=ServerVad(idle_timeout_ms=5000))
    bench.speech("." * 400)
    assert not bench.of(InputTimeoutTriggered)


def test_frames_without_a_detector_change_nothing() -> None:
    bench = Bench()
    bench.append(640)
    assert not bench.do(SpeechFrames(frames=(), generation=0)).events
    assert not bench.judge("s" * 20).events
