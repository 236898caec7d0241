"""Speech over an answer: the rule, and what the session makes of its verdicts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.config import BACKCHANNELS, INTERRUPTIONS, OverlapMode, OverlapSettings, ServerVad, Transcription
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    InputCommitted,
    ItemTruncated,
    OutputBufferCleared,
    OverlapDecision,
    OverlapVerdict,
    ResponseCreated,
    SpeechStarted,
    SpeechStopped,
    TranscriptionCompleted,
    TranscriptionDelta,
    TurnEvent,
    TurnEventKind,
)
from duplex_core.machine.overlap import OverlapView, contains, judge, only_acknowledges, words_of
from duplex_core.machine.table import Sound
from duplex_core.patch import OverlapPatch, SessionPatch
from tests.support.machines import Bench

BACKCHANNEL, INTERRUPTION, NOISE = OverlapVerdict.BACKCHANNEL, OverlapVerdict.INTERRUPTION, OverlapVerdict.NOISE
SETTINGS = OverlapSettings()
VAD = ServerVad(silence_duration_ms=500, prefix_padding_ms=300)


SPEAKING, PAUSED, SETTLED = 0.0, 96.0, 256.0


@pytest.mark.parametrize(
    ("spoken_ms", "silent_ms", "transcript", "whole", "verdict"),
    [
        # nothing is known of the words
        (96, SPEAKING, None, False, None),
        (96, PAUSED, None, False, NOISE),
        (640, SPEAKING, None, False, None),
        (672, SPEAKING, None, False, INTERRUPTION),
        (400, PAUSED, None, False, None),
        (400, SETTLED, None, False, BACKCHANNEL),
        # there are none
        (672, SPEAKING, "", False, None),
        (928, SPEAKING, "", False, INTERRUPTION),
        (400, PAUSED, "", False, None),
        (400, PAUSED, "", True, NOISE),
        (400, SETTLED, "", False, NOISE),
        (700, PAUSED, "", True, INTERRUPTION),
        # acknowledgements, and words that are none
        (400, SPEAKING, "Yeah", False, None),
        (400, PAUSED, "Yeah", False, None),
        (400, PAUSED, "Yeah", True, BACKCHANNEL),
        (400, SETTLED, "Yeah", False, BACKCHANNEL),
        (900, PAUSED, "Uh-huh, right, I see.", True, BACKCHANNEL),
        (700, PAUSED, "Wow. Wow. Wow. W", True, BACKCHANNEL),
        (2000, SPEAKING, "yeah yeah yeah yeah yeah", False, INTERRUPTION),
        (300, SPEAKING, "Stop", False, None),
        (300, PAUSED, "Stop", False, None),
        (300, PAUSED, "Stop", True, INTERRUPTION),
        (300, PAUSED, "Hold on", True, INTERRUPTION),
        (300, PAUSED, "Right, wait.", True, INTERRUPTION),
        (600, PAUSED, "Relic.", True, BACKCHANNEL),
        (700, PAUSED, "Relic.", True, INTERRUPTION),
        (380, PAUSED, "Thought it.", True, BACKCHANNEL),
        (600, PAUSED, "Turn left.", True, INTERRUPTION),
        (380, PAUSED, "Thought it was.", True, INTERRUPTION),
        (600, SPEAKING, "Say it louder", False, None),
        (672, SPEAKING, "Say it louder", False, INTERRUPTION),
        (672, SPEAKING, "Say, say, say", False, None),
        (928, SPEAKING, "Say, say, say", False, INTERRUPTION),
    ],
)
def test_the_rule(
    spoken_ms: float, silent_ms: float, transcript: str | None, whole: bool, verdict: OverlapVerdict | None
) -> None:
    view = OverlapView(spoken_ms=spoken_ms, silent_ms=silent_ms, transcript=transcript, whole=whole, ended=False)
    assert judge(view, SETTINGS) is verdict


@given(
    st.floats(0, 20_000),
    st.one_of(st.none(), st.text(max_size=30), st.lists(st.sampled_from(BACKCHANNELS)).map(" ".join)),
    st.booleans(),
)
def test_speech_that_has_ended_is_always_judged(spoken_ms: float, transcript: str | None, whole: bool) -> None:
    for ended, silent_ms in ((True, 0.0), (False, SETTLED)):
        view = OverlapView(spoken_ms=spoken_ms, silent_ms=silent_ms, transcript=transcript, whole=whole, ended=ended)
        assert judge(view, SETTINGS) is not None


def test_no_word_both_interrupts_and_acknowledges() -> None:
    assert [phrase for phrase in INTERRUPTIONS if contains(words_of(phrase), INTERRUPTIONS)] == list(INTERRUPTIONS)
    assert not [phrase for phrase in INTERRUPTIONS if only_acknowledges(words_of(phrase), BACKCHANNELS)]


@given(st.lists(st.sampled_from(BACKCHANNELS), min_size=1, max_size=6))
def test_any_row_of_acknowledgements_acknowledges(phrases: list[str]) -> None:
    assert only_acknowledges(words_of(", ".join(phrases)), BACKCHANNELS)
    assert not only_acknowledges([*words_of(" ".join(phrases)), "stop"], BACKCHANNELS)
    assert not only_acknowledges([], BACKCHANNELS)


def user(bench: Bench, ms: float) -> None:
    """The user speaks for ``ms``."""
    bench.speech("s" * round(ms / 32))


def quiet(bench: Bench, ms: float) -> None:
    """The user is silent for ``ms``."""
    bench.speech("." * round(ms / 32))


def answering(mode: OverlapMode = OverlapMode.JUDGE, vad: ServerVad = VAD) -> Bench:
    """A session whose answer of 20 s sounds since a moment."""
    bench = Bench(vad=vad, overlap=OverlapSettings(mode=mode), transcription=Transcription())
    user(bench, 600)
    quiet(bench, 700)
    bench.do(m.Speak(fence=bench.machine.fence, pcm=bytes(48 * 20_000), text="A long story. " * 50))
    bench.wait(1000)
    bench.events.clear()
    bench.effects.clear()
    return bench


def verdicts(bench: Bench) -> list[OverlapVerdict]:
    return [event.decision for event in bench.events if isinstance(event, OverlapDecision)]


def held(bench: Bench) -> list[TurnEventKind]:
    return [event.kind for event in bench.events if isinstance(event, TurnEvent)]


def count(bench: Bench, kind: type) -> int:
    return sum(isinstance(event, kind) for event in bench.events)


def pending(bench: Bench) -> str:
    (told,) = bench.told(m.SpeechBegan)[-1:]
    return told.item_id


def test_the_answer_is_held_at_the_first_speech_and_nothing_is_fenced_yet() -> None:
    bench = answering()
    epoch = bench.machine.fence.epoch
    user(bench, 200)
    assert held(bench) == [TurnEventKind.HELD]
    assert bench.machine.fence.epoch == epoch
    assert count(bench, SpeechStarted) == 0, "a stock client would stop playing"
    assert bench.told(m.SpeechBegan), "but the model hears it, to know the words"


def test_an_acknowledgement_is_talked_through() -> None:
    bench = answering()
    epoch = bench.machine.fence.epoch
    user(bench, 400)
    item_id = pending(bench)
    bench.do(m.UserTranscript(item_id=item_id, text="Yeah"))
    assert verdicts(bench) == []
    quiet(bench, 128)
    assert verdicts(bench) == [], "these may not be all the words"
    bench.do(m.UserTranscript(item_id=item_id, text="Yeah, right"))
    assert verdicts(bench) == [BACKCHANNEL]
    assert held(bench) == [TurnEventKind.HELD, TurnEventKind.RESUMED]
    quiet(bench, 1000)
    assert bench.machine.fence.epoch == epoch
    assert not any(count(bench, kind) for kind in (SpeechStarted, SpeechStopped, InputCommitted, TranscriptionDelta))
    assert [told.item_id for told in bench.told(m.SpeechDropped)] == [item_id]


def test_words_that_were_known_before_a_pause_are_not_all_of_them() -> None:
    """Only "Okay." was understood, and then "Okay, stop." was said."""
    bench = answering()
    user(bench, 700)
    bench.do(m.UserTranscript(item_id=pending(bench), text="Okay."))
    quiet(bench, 128)
    bench.do(m.UserTranscript(item_id=pending(bench), text="Okay, stop."))
    assert verdicts(bench) == [INTERRUPTION]


def test_a_recogniser_that_adds_nothing_at_a_pause_is_not_waited_for_long() -> None:
    bench = answering()
    user(bench, 400)
    bench.do(m.UserTranscript(item_id=pending(bench), text="Okay."))
    quiet(bench, 224)
    assert verdicts(bench) == []
    quiet(bench, 64)
    assert verdicts(bench) == [BACKCHANNEL]


def test_words_interrupt_as_soon_as_they_are_known() -> None:
    bench = answering()
    epoch = bench.machine.fence.epoch
    user(bench, 640)
    bench.do(m.UserTranscript(item_id=pending(bench), text="Stop it"))
    assert verdicts(bench) == []
    user(bench, 32)
    assert verdicts(bench) == [INTERRUPTION]
    assert bench.machine.fence.epoch == epoch + 1
    assert count(bench, SpeechStarted) == 1
    assert count(bench, OutputBufferCleared) == 1
    assert held(bench) == [TurnEventKind.HELD]
    user(bench, 300)
    quiet(bench, 700)
    assert count(bench, InputCommitted) == 1
    assert count(bench, ResponseCreated) == 1
    bench.do(m.UserTranscript(item_id=pending(bench), text="Stop it now", final=True))
    (completed,) = [event for event in bench.events if isinstance(event, TranscriptionCompleted)]
    assert completed.transcript == "Stop it now"


def test_the_beginning_of_the_interrupting_speech_is_kept() -> None:
    """FIELD-CASES 18: the pre-roll is that of the first speech frame, however long the judgement took."""
    bench = answering()
    onset_ms = bench.sent_ms
    user(bench, 1200)
    assert verdicts(bench) == [INTERRUPTION], "long speech without known words interrupts"
    (started,) = [event for event in bench.events if isinstance(event, SpeechStarted)]
    assert started.audio_start_ms == pytest.approx(onset_ms - VAD.prefix_padding_ms, abs=40)
    quiet(bench, 700)
    (committed,) = bench.told(m.InputCommitted)
    assert committed.start_ms == pytest.approx(onset_ms - VAD.prefix_padding_ms, abs=40)


def test_a_click_is_noise() -> None:
    bench = answering()
    user(bench, 96)
    quiet(bench, 128)
    assert verdicts(bench) == [NOISE]
    assert held(bench) == [TurnEventKind.HELD, TurnEventKind.RESUMED]
    quiet(bench, 800)
    assert count(bench, InputCommitted) == 0


def test_after_an_acknowledgement_an_interruption_still_interrupts() -> None:
    bench = answering()
    user(bench, 400)
    bench.do(m.UserTranscript(item_id=pending(bench), text="Okay"))
    quiet(bench, 300)
    user(bench, 1300)
    assert verdicts(bench) == [BACKCHANNEL, INTERRUPTION]
    assert held(bench) == [TurnEventKind.HELD, TurnEventKind.RESUMED, TurnEventKind.HELD]


def test_a_client_that_stops_the_answer_meanwhile_makes_the_speech_a_turn() -> None:
    bench = answering()
    user(bench, 300)
    bench.do(c.OutputAudioBufferClear())
    assert count(bench, SpeechStarted) == 1
    assert verdicts(bench) == []
    quiet(bench, 700)
    assert count(bench, InputCommitted) == 1


def test_clearing_the_input_lets_the_answer_go_on() -> None:
    bench = answering()
    user(bench, 300)
    bench.do(c.InputAudioBufferClear())
    assert held(bench) == [TurnEventKind.HELD, TurnEventKind.RESUMED]
    assert verdicts(bench) == []


def test_a_commit_meanwhile_makes_the_speech_a_turn() -> None:
    bench = answering()
    user(bench, 300)
    bench.do(c.InputAudioBufferCommit())
    assert count(bench, SpeechStarted) == 1
    assert count(bench, InputCommitted) == 1
    assert verdicts(bench) == [INTERRUPTION]


def test_turning_detection_off_meanwhile_lets_the_answer_go_on() -> None:
    bench = answering()
    user(bench, 300)
    bench.do(c.SessionUpdate(session=SessionPatch(turn_detection=None)))
    assert held(bench) == [TurnEventKind.HELD, TurnEventKind.RESUMED]
    assert count(bench, SpeechStopped) == 0


def test_a_microphone_that_stops_meanwhile_is_judged() -> None:
    bench = answering()
    user(bench, 300)
    bench.wait(3000)
    assert verdicts(bench) == [BACKCHANNEL]
    assert held(bench) == [TurnEventKind.HELD, TurnEventKind.RESUMED]


def test_without_permission_nothing_is_held_and_the_turn_waits() -> None:
    bench = answering(vad=ServerVad(interrupt_response=False))
    user(bench, 1500)
    assert held(bench) == []
    assert verdicts(bench) == []
    quiet(bench, 800)
    assert count(bench, InputCommitted) == 1
    assert count(bench, ResponseCreated) == 0, "the finished second turn is queued"
    bench.do(m.EndTurn(fence=bench.machine.fence))
    assert count(bench, ResponseCreated) == 1


def test_immediate_mode_interrupts_at_the_first_speech() -> None:
    bench = answering(OverlapMode.IMMEDIATE)
    user(bench, 96)
    assert verdicts(bench) == [INTERRUPTION]
    assert held(bench) == []


def test_the_settings_can_be_changed_one_by_one_and_are_checked() -> None:
    bench = answering()
    bench.do(c.SessionUpdate(session=SessionPatch(overlap=OverlapPatch(backchannels=("jo",), short_ms=700))))
    assert bench.machine.config.overlap == OverlapSettings(backchannels=("jo",), short_ms=700)
    error = bench.refused(c.SessionUpdate(session=SessionPatch(overlap=OverlapPatch(long_ms=-1)))).error
    assert error.param == "session.overlap.long_ms"


def ending(bench: Bench) -> None:
    """The answer has been made, and its sound ends 400 ms from now."""
    bench.end()
    bench.wait(20_000 - 1000 - 400)
    bench.events.clear()


def test_an_acknowledgement_at_the_very_end_of_an_answer_is_a_turn() -> None:
    """The user says yes while the last sound of a question is still to be heard."""
    bench = answering()
    ending(bench)
    user(bench, 400)
    bench.do(m.UserTranscript(item_id=pending(bench), text="Yes"))
    quiet(bench, 700)
    assert held(bench) == [TurnEventKind.HELD, TurnEventKind.RESUMED]
    assert verdicts(bench) == []
    assert [count(bench, kind) for kind in (SpeechStarted, SpeechStopped, InputCommitted, ResponseCreated)] == [1] * 4
    assert bench.machine.fence.epoch == 0
    assert not bench.told(m.Interrupted)


def test_noise_at_the_very_end_of_an_answer_is_none() -> None:
    bench = answering(vad=ServerVad(idle_timeout_ms=5000))
    ending(bench)
    user(bench, 400)
    bench.do(m.UserTranscript(item_id=pending(bench), text=""))
    quiet(bench, 700)
    assert verdicts(bench) == [NOISE]
    assert count(bench, SpeechStarted) == 0
    assert list(bench.timers) == ["idle"], "and nobody speaks"


def test_words_at_the_very_end_of_an_answer_interrupt_nothing() -> None:
    bench = answering()
    ending(bench)
    user(bench, 700)
    bench.do(m.UserTranscript(item_id=pending(bench), text="Stop it"))
    assert count(bench, SpeechStarted) == 1
    assert count(bench, OutputBufferCleared) == 0
    assert bench.machine.fence.epoch == 0


def paused_near_the_end() -> Bench:
    """The client, which acknowledges, pauses with 300 ms of the answer left, and the clock runs past its end."""
    bench = answering()
    ending(bench)
    bench.wait(100)
    bench.do(c.PlaybackAck(played_ms=19_700))
    user(bench, 500)
    assert held(bench) == [TurnEventKind.HELD]
    assert bench.now_ms > bench.machine._core.playback.ends_at_ms, "by the clock it is over"
    return bench


def goes_on(bench: Bench) -> None:
    """What was said is found to be noise."""
    bench.do(m.UserTranscript(item_id=pending(bench), text=""))
    while TurnEventKind.RESUMED not in held(bench):
        quiet(bench, 32)


def test_a_client_that_paused_at_the_very_end_is_interrupted_in_what_it_has_left() -> None:
    """Else it would play the rest over the interruption."""
    bench = paused_near_the_end()
    user(bench, 400)
    bench.do(m.UserTranscript(item_id=pending(bench), text="Stop it now"))
    assert verdicts(bench) == [INTERRUPTION]
    assert bench.only(OutputBufferCleared).audio_end_ms == 19_700
    assert bench.only(ItemTruncated).audio_end_ms == 19_700
    assert bench.told(m.Interrupted)[-1].heard_ms == 19_700
    assert held(bench) == [TurnEventKind.HELD]
    assert count(bench, SpeechStarted) == 1


def test_a_client_that_paused_goes_on_with_what_it_has_left_and_may_be_interrupted_in_it() -> None:
    bench = paused_near_the_end()
    goes_on(bench)
    assert verdicts(bench) == [NOISE]
    assert held(bench) == [TurnEventKind.HELD, TurnEventKind.RESUMED]
    assert bench.is_in(Sound.SOUNDING)
    user(bench, 128)
    assert held(bench)[-1] is TurnEventKind.HELD
    user(bench, 800)
    assert verdicts(bench) == [NOISE, INTERRUPTION]
    assert count(bench, OutputBufferCleared) == 1


def test_what_a_client_has_left_is_heard_in_its_own_time_after_a_pause() -> None:
    bench = paused_near_the_end()
    goes_on(bench)
    bench.wait(299)
    assert bench.is_in(Sound.SOUNDING)
    bench.wait(1)
    assert bench.is_in(Sound.SILENT)


def test_a_client_that_played_on_and_said_so_is_over_in_time() -> None:
    """It knows nothing of pauses, and acknowledges while the speech over the answer is judged."""
    bench = paused_near_the_end()
    bench.do(c.PlaybackAck(played_ms=20_000))
    assert bench.is_in(Sound.SILENT)
    user(bench, 400)
    bench.do(m.UserTranscript(item_id=pending(bench), text="Stop it now"))
    assert count(bench, SpeechStarted) == 1
    assert count(bench, OutputBufferCleared) == 0


def test_an_acknowledgement_at_the_very_end_is_a_turn_also_for_a_client_that_paused() -> None:
    bench = paused_near_the_end()
    bench.do(m.UserTranscript(item_id=pending(bench), text="Yes"))
    quiet(bench, 700)
    assert held(bench) == [TurnEventKind.HELD, TurnEventKind.RESUMED]
    assert [count(bench, kind) for kind in (SpeechStarted, InputCommitted, ResponseCreated)] == [1] * 3
    assert not bench.told(m.Interrupted)


def at_once(bench: Bench, verdicts: str) -> None:
    """Audio that comes much faster than it sounds: all of it is there before the first of it is judged."""
    bench.append(32.0 * len(verdicts))
    bench.judge(verdicts)


SECOND = "s" * 20 + "." * 22 + "s" * 13 + "." * 22
"""A question, the pause that ends it, and a few words more, too short for an interruption."""


def test_words_that_were_spoken_before_the_answer_was_begun_are_no_acknowledgement_of_it() -> None:
    """A recording that is sent as fast as it can be, or verdicts that come late: the second turn is not lost."""
    bench = Bench(vad=VAD, overlap=OverlapSettings())
    at_once(bench, SECOND)
    assert held(bench) == [TurnEventKind.HELD]
    assert verdicts(bench) == [INTERRUPTION]
    assert [count(bench, kind) for kind in (SpeechStarted, InputCommitted, ResponseCreated)] == [2, 2, 2]
    assert bench.machine.fence.epoch == 1


def test_noise_before_the_answer_was_begun_is_noise() -> None:
    bench = Bench(vad=VAD, overlap=OverlapSettings())
    at_once(bench, "s" * 20 + "." * 22 + "s" * 3 + "." * 22)
    assert verdicts(bench) == [NOISE]
    assert [count(bench, kind) for kind in (SpeechStarted, InputCommitted, ResponseCreated)] == [1, 1, 1]


def test_at_its_own_pace_the_same_is_an_acknowledgement() -> None:
    bench = Bench(vad=VAD, overlap=OverlapSettings())
    bench.speech(SECOND)
    assert verdicts(bench) == [BACKCHANNEL]
    assert [count(bench, kind) for kind in (SpeechStarted, InputCommitted, ResponseCreated)] == [1, 1, 1]


def test_speech_that_could_not_be_recognised_is_judged_by_its_length() -> None:
    bench = answering()
    user(bench, 400)
    bench.do(m.TranscriptFailed(item_id=pending(bench), error=error(ErrorCode.ENGINE_ERROR, "the recogniser broke")))
    quiet(bench, 128)
    assert verdicts(bench) == [], "not noise: nobody knows what was said"
    quiet(bench, 160)
    assert verdicts(bench) == [BACKCHANNEL]


@pytest.mark.parametrize(
    ("ms", "verdict"), [(96, NOISE), (400, BACKCHANNEL), (704, INTERRUPTION), (1200, INTERRUPTION)]
)
def test_without_any_words_length_decides_in_the_end(ms: float, verdict: OverlapVerdict) -> None:
    bench = answering()
    user(bench, ms)
    quiet(bench, 700)
    assert verdicts(bench) == [verdict]


def test_the_padding_of_the_next_speech_does_not_reach_into_what_was_let_pass() -> None:
    bench = answering(vad=ServerVad(prefix_padding_ms=2000, silence_duration_ms=200))
    user(bench, 320)
    ended_ms = bench.sent_ms
    quiet(bench, 320)
    assert verdicts(bench) == [BACKCHANNEL]
    user(bench, 1200)
    assert bench.only(SpeechStarted).audio_start_ms == int(ended_ms)
