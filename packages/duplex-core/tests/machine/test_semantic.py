"""How long a pause may last: the rule over words and sound, and what the session does with it."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.capabilities import TurnPolicy
from duplex_core.config import Eagerness, SemanticVad, ServerVad, TurnDetection
from duplex_core.events import InputCommitted, ResponseCreated, SpeechStarted, SpeechStopped
from duplex_core.machine.io import EndOfTurnVerdict, JudgeEndOfTurn
from duplex_core.machine.semantic import PATIENCE, Ending, Pause, detector_settings, ending, patience_ms
from duplex_core.machine.table import Hearing
from duplex_core.patch import SessionPatch
from tests.support.machines import FRAME_MS, Bench, same_audio

# -- the rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Ending.UNKNOWN),
        ("", Ending.UNKNOWN),
        ("...", Ending.UNKNOWN),
        ("turn on the light", Ending.UNKNOWN),
        ("Eight of spades,", Ending.UNKNOWN),
        ("Turn on the light.", Ending.FINISHED),
        ("Is it raining?", Ending.FINISHED),
        ('He said "stop!"', Ending.FINISHED),
        ("¿Está lloviendo?", Ending.FINISHED),
        ("今日は雨です。", Ending.FINISHED),
        ("I have two brothers and", Ending.OPEN),
        ("I have two brothers and.", Ending.OPEN),
        ("Yes, but,", Ending.OPEN),
        ("What is the capital of?", Ending.OPEN),
        ("Turn on the", Ending.OPEN),
        ("Could you, um?", Ending.OPEN),
        ("Well, you know, I", Ending.OPEN),
        ("I think it\u2019s", Ending.OPEN),
        ("So I went home and then...", Ending.OPEN),
        ("I went home \u2014", Ending.OPEN),
        ("Set a timer for.", Ending.DOUBTFUL),
        ("What are you looking at?", Ending.DOUBTFUL),
        ("I think that we should.", Ending.DOUBTFUL),
        ("My name is,", Ending.DOUBTFUL),
    ],
)
def test_how_words_end(text: str | None, expected: Ending) -> None:
    assert ending(text) is expected


def pause(probability: float | None = None, words: str | None = None) -> Pause:
    return Pause(serial=1, item_id="i", probability=probability, words=words)


DONE, OPEN = "Turn on the light.", "Turn on the"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, 900),
        (pause(), 900),
        (pause(words=""), 900),
        (pause(words=DONE), 500),
        (pause(words="Set a timer for."), 2000),
        (pause(words=OPEN), 4000),
        (pause(0.9), 500),
        (pause(0.5), 500),
        (pause(0.9, DONE), 500),
        (pause(0.9, "turn on the light"), 500),
        (pause(0.9, "Set a timer for."), 2000),
        (pause(0.9, OPEN), 4000),
        (pause(0.49), 4000),
        (pause(0.1, DONE), 2000),
        (pause(0.1, "turn on the light"), 4000),
        (pause(0.1, OPEN), 4000),
    ],
)
def test_the_silence_that_ends_a_turn(given: Pause | None, expected: int) -> None:
    assert patience_ms(Eagerness.AUTO, given) == expected
    assert patience_ms(Eagerness.MEDIUM, given) == expected


def test_the_longest_silence_is_that_of_the_eagerness() -> None:
    longest = {eagerness: table.unfinished for eagerness, table in PATIENCE.items()}
    assert longest == {Eagerness.HIGH: 2000, Eagerness.MEDIUM: 4000, Eagerness.AUTO: 4000, Eagerness.LOW: 8000}


def test_more_eagerness_never_waits_longer_and_more_doubt_never_shorter() -> None:
    known = [None, *(pause(p, w) for p, w in itertools.product((None, 0.1, 0.9), (None, DONE, "to", OPEN)))]
    for each in known:
        high, auto, low = (patience_ms(one, each) for one in (Eagerness.HIGH, Eagerness.AUTO, Eagerness.LOW))
        assert high <= auto <= low
    for table in PATIENCE.values():
        times = msgspec.structs.astuple(table)
        assert list(times) == sorted(times)


def test_other_kinds_of_turn_detection_are_as_they_are() -> None:
    vad = ServerVad(silence_duration_ms=123)
    assert detector_settings(vad, pause(0.9)) is vad
    assert detector_settings(None, pause(0.9)) is None


# -- in a session ------------------------------------------------------------------------------------------------------


def frames(ms: float) -> str:
    return "." * int(ms / FRAME_MS)


def semantic(eagerness: Eagerness = Eagerness.AUTO, *, policy: TurnPolicy = TurnPolicy.COMMITTED) -> Bench:
    """A session under ``semantic_vad`` in which half a second of speech has just ended, and the pause been noticed."""
    bench = Bench(
        vad=SemanticVad(eagerness=eagerness),
        capabilities={"input_transcription": True, "semantic_vad": True, "turn_policy": policy},
    )
    bench.speech("." * 10 + "s" * 16 + "...")
    assert bench.is_in(Hearing.PAUSED)
    return bench


def asked(bench: Bench) -> list[JudgeEndOfTurn]:
    return [effect for effect in bench.effects if isinstance(effect, JudgeEndOfTurn)]


def answer(bench: Bench, probability: float, index: int = -1) -> None:
    """The end-of-turn detector's answer to what it was asked."""
    question = asked(bench)[index]
    bench.do(EndOfTurnVerdict(item_id=question.item_id, serial=question.serial, probability=probability))


def hear(bench: Bench, text: str, *, final: bool = False) -> None:
    bench.do(m.UserTranscript(item_id=bench.of(SpeechStarted)[-1].item_id, text=text, final=final))


def silence_until_the_end(bench: Bench) -> float:
    """Let silence come until the turn is over: how long the whole pause was, in ms, to the frame."""
    passed = 3 * FRAME_MS
    while not bench.of(InputCommitted):
        assert passed < 20_000
        bench.speech(".")
        passed += FRAME_MS
    return passed


def near(expected: float) -> object:
    """Up to one frame more."""
    return pytest.approx(expected + FRAME_MS / 2, abs=FRAME_MS / 2)


@pytest.mark.parametrize(("eagerness", "expected"), [("high", 600), ("medium", 900), ("auto", 900), ("low", 2000)])
def test_without_any_witness_silence_alone_ends_the_turn(eagerness: str, expected: float) -> None:
    assert silence_until_the_end(semantic(Eagerness(eagerness))) == near(expected)


@pytest.mark.parametrize(("eagerness", "expected"), [("high", 400), ("auto", 500), ("low", 1200)])
def test_what_sounds_finished_ends_soon(eagerness: str, expected: float) -> None:
    bench = semantic(Eagerness(eagerness))
    answer(bench, 0.97)
    assert silence_until_the_end(bench) == near(expected)
    assert bench.of(ResponseCreated)


@pytest.mark.parametrize(("eagerness", "expected"), [("high", 2000), ("auto", 4000), ("low", 8000)])
def test_what_sounds_unfinished_ends_at_the_limit(eagerness: str, expected: float) -> None:
    bench = semantic(Eagerness(eagerness))
    answer(bench, 0.03)
    assert silence_until_the_end(bench) == near(expected)


def test_words_decide_where_no_detector_does() -> None:
    bench = semantic()
    hear(bench, "I have two brothers and")
    bench.speech(frames(1500))
    assert not bench.of(InputCommitted)
    hear(bench, "I have two brothers, Anne.")
    assert bench.of(InputCommitted), "what was too short a silence is long enough now"
    assert bench.only(SpeechStopped).audio_end_ms == 26 * FRAME_MS


def test_a_verdict_that_comes_late_ends_the_turn_at_once() -> None:
    bench = semantic(Eagerness.LOW)
    bench.speech(frames(1500))
    assert not bench.of(InputCommitted)
    answer(bench, 0.9)
    assert bench.of(InputCommitted)
    bench.speech(frames(3000))
    assert len(bench.of(InputCommitted)) == 1


def test_the_detector_gets_the_utterance_with_its_padding_and_the_silence_so_far() -> None:
    bench = semantic()
    (question,) = asked(bench)
    start_ms = 10 * FRAME_MS - 300
    assert same_audio(question.pcm, start_ms, 29 * FRAME_MS)
    assert question.item_id == bench.only(SpeechStarted).item_id


def test_of_a_long_utterance_it_gets_the_end() -> None:
    bench = Bench(vad=SemanticVad(), capabilities={"semantic_vad": True})
    bench.speech("s" * 400 + "...")
    end_ms = 403 * FRAME_MS
    assert same_audio(asked(bench)[0].pcm, end_ms - 8000, end_ms)


def test_a_new_pause_is_asked_about_anew_and_old_answers_say_nothing() -> None:
    bench = semantic()
    hear(bench, "Turn on the light.")
    bench.speech("sss" + "...")
    first, second = asked(bench)
    assert first.item_id == second.item_id
    assert first.serial != second.serial
    answer(bench, 0.99, index=0)
    assert silence_until_the_end(bench) == near(900), "neither the old verdict nor the old words"


def test_an_answer_while_the_user_speaks_again_says_nothing() -> None:
    bench = semantic()
    bench.speech("sss")
    answer(bench, 0.99)
    hear(bench, "Turn on the light.")
    bench.speech("...")
    assert silence_until_the_end(bench) == near(900)


def test_an_answer_after_the_end_of_the_turn_says_nothing() -> None:
    bench = semantic()
    silence_until_the_end(bench)
    before = len(bench.events)
    answer(bench, 0.99)
    assert len(bench.events) == before
    bench.do(c.InputAudioBufferClear())
    bench.speech("s" * 10 + "...")
    answer(bench, 0.99, index=0)
    assert len(bench.of(InputCommitted)) == 1


def test_a_microphone_that_stops_in_the_pause_ends_the_turn() -> None:
    bench = semantic()
    answer(bench, 0.97)
    bench.wait(1999)
    assert not bench.of(InputCommitted)
    bench.wait(2)
    assert bench.of(InputCommitted)


def test_without_the_wish_for_responses_none_is_made() -> None:
    bench = Bench(vad=SemanticVad(create_response=False), capabilities={"semantic_vad": True})
    bench.speech("s" * 16 + frames(1000))
    assert bench.of(InputCommitted)
    assert not bench.of(ResponseCreated)


def test_a_model_that_takes_its_own_turns_is_not_asked_about() -> None:
    bench = semantic(policy=TurnPolicy.MODEL)
    assert not asked(bench)
    bench.speech(frames(1000))
    assert bench.of(SpeechStopped)
    assert not bench.of(InputCommitted)


@pytest.mark.parametrize("after", [ServerVad(silence_duration_ms=200), SemanticVad(eagerness=Eagerness.HIGH)])
def test_settings_that_change_in_a_pause_hold_for_it(after: TurnDetection) -> None:
    bench = semantic(Eagerness.LOW)
    answer(bench, 0.1)
    bench.do(c.SessionUpdate(session=SessionPatch(turn_detection=after)))
    assert silence_until_the_end(bench) <= 2000 + FRAME_MS


def test_turning_it_off_in_a_pause_drops_the_speech() -> None:
    bench = semantic()
    bench.do(c.SessionUpdate(session=SessionPatch(turn_detection=None)))
    answer(bench, 0.99)
    assert bench.of(SpeechStopped)
    assert not bench.of(InputCommitted)
    assert bench.is_in(Hearing.QUIET)
    bench.do(c.SessionUpdate(session=SessionPatch(turn_detection=SemanticVad())))
    bench.speech("s" * 16 + "...")
    assert len(asked(bench)) == 2


def test_the_model_is_told_how_long_the_pause_may_last_as_far_as_is_known() -> None:
    (told,) = semantic().told(m.SpeechPaused)
    assert told.remaining_ms == pytest.approx(900 - 3 * FRAME_MS)
