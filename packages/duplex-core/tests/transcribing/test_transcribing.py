"""Words for a model that hears none: when speech is recognised, and what client and model get of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from duplex_core import commands as c
from duplex_core import events as e
from duplex_core import model as m
from duplex_core.audio import pcm16_ms
from duplex_core.config import ServerVad, SessionConfig, Transcription
from duplex_core.errors import ErrorCode, error
from duplex_core.fence import Fence
from duplex_core.items import item_text
from duplex_core.patch import SessionPatch
from duplex_core.spec import ModelSpec
from duplex_core.stages import Lane, StageOutput, StagePlan, StageSpec
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.echo import ECHO
from duplex_core.testing.invariants import check
from duplex_core.testing.pipelines import Threaded
from duplex_core.testing.speech import burst, silence
from duplex_core.testing.stages import StageHost
from duplex_core.transcribing import Listening, Recognize, Recognized, TranscribedSession, partial_due

RATE = 16000
FENCE = Fence(session_id="s")
STAGE = StageSpec(name="transcriber", factory="nowhere:Nobody")
DEAF = error(ErrorCode.ENGINE_ERROR, "the recogniser broke")


@pytest.mark.parametrize(
    ("spoken_ms", "recognized_ms", "busy", "due"),
    [
        (630.0, 0.0, False, False),
        (640.0, 0.0, False, True),
        (640.0, 0.0, True, False),
        (870.0, 640.0, False, False),
        (880.0, 640.0, False, True),
        (1490.0, 1240.0, False, True),
        (1900.0, 1360.0, False, False),
        (1920.0, 1360.0, False, True),
        (10_000.0, 8_600.0, False, False),
        (10_000.0, 8_500.0, False, True),
    ],
)
def test_when_a_partial_transcript_is_due(spoken_ms: float, recognized_ms: float, busy: bool, due: bool) -> None:
    assert partial_due(spoken_ms, recognized_ms, busy=busy) is due


class Numbers:
    """Listening, with request ids ``hear-1``, ``hear-2`` and so on."""

    def __init__(self) -> None:
        self.count = 0
        self.listening = Listening(stage="transcriber", rate_hz=RATE, new_id=self.new_id)

    def new_id(self, kind: str) -> str:
        self.count += 1
        return f"{kind}-{self.count}"


@pytest.fixture
def listening() -> Listening:
    return Numbers().listening


def asked(outputs: Sequence[m.ModelOutput]) -> list[str]:
    """What the outputs say, in short: ``hear-1 640`` for a request for so many ms, ``-hear-1`` for its withdrawal."""
    found = []
    for output in outputs:
        if isinstance(output, m.Submit):
            assert output.request.lane is Lane.INPUT
            found.append(f"{output.request.request_id} {pcm16_ms(len(output.request.payload.pcm), RATE):.0f}")
        else:
            assert isinstance(output, m.Abort)
            found.append(f"-{output.request_id}")
    return found


def test_a_pause_replaces_what_runs_and_its_words_are_the_items(listening: Listening) -> None:
    listening.began("i", 0.0, burst(400, RATE))
    assert asked(listening.heard(burst(200, RATE), FENCE)) == []
    assert asked(listening.heard(burst(200, RATE), FENCE)) == ["hear-1 800"]
    assert asked(listening.heard(burst(1000, RATE), FENCE)) == [], "one at a time"
    assert asked(listening.paused(1700.0, FENCE)) == ["-hear-1", "hear-2 1764"]
    assert listening.result("hear-1", "too late") is None
    assert listening.result("hear-2", "all of it") == ("i", False)
    assert asked(listening.committed("i", b"", FENCE)) == []
    assert listening.transcripts == {"i": "all of it"}
    assert listening.current is None


def test_a_commit_before_the_words_of_the_pause_are_known_waits_for_them(listening: Listening) -> None:
    listening.began("i", 0.0, burst(400, RATE))
    listening.paused(400.0, FENCE)
    assert asked(listening.committed("i", b"", FENCE)) == []
    assert listening.waits_for("i")
    assert listening.result("hear-1", "all of it") == ("i", True)
    assert not listening.waits_for("i")


def test_who_goes_on_is_recognised_anew(listening: Listening) -> None:
    listening.began("i", 0.0, burst(400, RATE))
    listening.paused(400.0, FENCE)
    assert asked(listening.resumed()) == ["-hear-1"]
    pcm = burst(900, RATE)
    assert asked(listening.committed("i", pcm, FENCE)) == ["hear-2 900"]
    assert asked(listening.recognize_item("i", pcm, FENCE)) == [], "they are being sought already"


def test_words_of_an_earlier_pause_are_not_all_of_it(listening: Listening) -> None:
    listening.began("i", 0.0, burst(400, RATE))
    listening.paused(400.0, FENCE)
    assert listening.result("hear-1", "the first half") == ("i", False)
    assert asked(listening.resumed()) == []
    assert asked(listening.committed("i", burst(900, RATE), FENCE)) == ["hear-2 900"]


def test_what_is_dropped_is_withdrawn(listening: Listening) -> None:
    listening.began("i", 0.0, burst(400, RATE))
    listening.paused(400.0, FENCE)
    assert asked(listening.dropped("another")) == []
    assert asked(listening.dropped("i")) == ["-hear-1"]
    assert asked(listening.heard(burst(900, RATE), FENCE)) == []


def test_a_failure_at_the_pause_leaves_the_commit_to_seek_the_words(listening: Listening) -> None:
    listening.began("i", 0.0, burst(400, RATE))
    listening.paused(400.0, FENCE)
    assert listening.failed("hear-1") is None
    assert asked(listening.committed("i", burst(400, RATE), FENCE)) == ["hear-2 400"]
    assert listening.failed("hear-2") == "i"


# -- a whole session ---------------------------------------------------------------------------------------------------


class Ears:
    """A recogniser that hears a word for each third of a second."""

    def __init__(self) -> None:
        self.heard: list[Recognize] = []
        self.words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]

    def run(self, payload: Recognize, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        self.heard.append(payload)
        count = max(1, int(pcm16_ms(len(payload.pcm), payload.rate_hz) / 333))
        if self.words:
            emit(Recognized(text=" ".join(self.words[:count])))

    def close(self) -> None:
        pass


def deaf_echo(**changes: Any) -> ModelSpec:
    """Echo, which tells how long somebody spoke, declared not to transcribe, with the wrapper around its sessions."""
    return dataclasses.replace(
        ECHO,
        session_config=lambda deploy: SessionConfig(
            **{"model": "echo", "transcription": Transcription(), "turn_detection": ServerVad(), **changes}
        ),
        stage_plan=lambda checkpoint, deploy: StagePlan(stages=(*ECHO.stage_plan(checkpoint, deploy).stages, STAGE)),
        create_session=lambda context: TranscribedSession(ECHO.create_session(context), stage=STAGE.name, rate_hz=RATE),
    )


@pytest.fixture
def ears() -> Ears:
    return Ears()


@pytest.fixture
def call(ears: Ears) -> Iterator[Callable[..., ConversationDriver]]:
    """Open a session of echo with these changes of its configuration."""
    opened: list[ConversationDriver] = []

    def open_(**changes: Any) -> ConversationDriver:
        spec = deaf_echo(**changes)
        host = StageHost(spec.stage_plan(None, None))  # type: ignore[arg-type]
        host._stages[STAGE.name] = Threaded(ears)
        driver = ConversationDriver(spec, host=host, ms_per_piece=100.0)
        opened.append(driver)
        return driver

    yield open_
    for driver in opened:
        driver.send(c.SessionClose())
        driver.wait_for(e.SessionClosed)
        check(driver.events)


def test_deltas_while_speaking_and_one_whole_transcript_at_the_commit(
    call: Callable[..., ConversationDriver], ears: Ears
) -> None:
    driver = call()
    driver.stream(burst(2500, RATE))
    partial = "".join(event.delta for event in driver.all_of(e.TranscriptionDelta))
    assert partial.split()[:3] == ["one", "two", "three"], "told before the end of speech"
    assert not driver.all_of(e.InputCommitted)
    driver.stream(silence(1000, RATE))
    completed = driver.wait_for(e.TranscriptionCompleted)
    deltas = "".join(event.delta for event in driver.all_of(e.TranscriptionDelta))
    assert completed.transcript == deltas == "one two three four five six seven"
    assert completed.item_id == driver.all_of(e.InputCommitted)[0].item_id
    assert item_text(driver.exchange._machine.history[0]) == completed.transcript  # type: ignore[attr-defined]
    assert len(driver.all_of(e.TranscriptionCompleted)) == 1
    driver.wait_for(e.ResponseDone)
    assert not driver.exchange.open_requests
    assert {work.rate_hz for work in ears.heard} == {RATE}


def test_a_cancelled_answer_does_not_touch_the_transcript(call: Callable[..., ConversationDriver]) -> None:
    """The answer is cancelled when it begins, while the words of the commit by hand are still being sought."""
    driver = call(turn_detection=None)
    driver.watch = lambda event: driver.send(c.ResponseCancel()) if isinstance(event, e.ResponseCreated) else None
    driver.stream(burst(1000, RATE))
    driver.send(c.InputAudioBufferCommit(), c.ResponseCreate())
    assert [event.response.status for event in driver.all_of(e.ResponseDone)] == [e.ResponseStatus.CANCELLED]
    assert not driver.all_of(e.TranscriptionCompleted)
    assert driver.wait_for(e.TranscriptionCompleted).transcript == "one two three"


def test_an_interruption_does_not_touch_the_words_of_the_interrupter(call: Callable[..., ConversationDriver]) -> None:
    driver = call()
    driver.stream(burst(2500, RATE) + silence(700, RATE))
    driver.wait_for(e.OutputAudioDelta)
    driver.stream(burst(1500, RATE) + silence(700, RATE))
    first, second = driver.wait_for(e.TranscriptionCompleted), driver.wait_for(e.TranscriptionCompleted, count=2)
    assert (first.transcript.split()[-1], second.transcript.split()[-1]) == ("seven", "five")
    assert driver.all_of(e.ResponseDone)[0].response.status is e.ResponseStatus.CANCELLED


def test_without_words_the_transcript_is_empty(call: Callable[..., ConversationDriver], ears: Ears) -> None:
    ears.words = []
    driver = call()
    driver.stream(burst(700, RATE) + silence(1000, RATE))
    assert driver.wait_for(e.TranscriptionCompleted).transcript == ""


def test_a_recogniser_that_fails_is_told_and_the_answer_comes_all_the_same(
    call: Callable[..., ConversationDriver],
) -> None:
    driver = call(turn_detection=None)
    driver.stream(burst(1000, RATE))
    driver.send(c.InputAudioBufferCommit(), c.ResponseCreate())
    (request,) = [each for each in driver.exchange.open_requests if each.stage == STAGE.name]
    driver.reply(request.failed(DEAF))
    assert driver.wait_for(e.TranscriptionFailed).error == DEAF
    assert driver.wait_for(e.ResponseDone).response.status is e.ResponseStatus.COMPLETED
    assert not driver.all_of(e.TranscriptionCompleted)


def test_nothing_is_recognised_that_nobody_wants(call: Callable[..., ConversationDriver], ears: Ears) -> None:
    driver = call(turn_detection=None, transcription=None)
    driver.stream(burst(1000, RATE))
    driver.send(c.InputAudioBufferCommit(), c.ResponseCreate())
    driver.wait_for(e.ResponseDone)
    assert ears.heard == []
    driver.send(c.SessionUpdate(session=SessionPatch(input_audio_transcription=Transcription(language="en"))))
    driver.stream(burst(1000, RATE))
    driver.send(c.InputAudioBufferCommit())
    assert driver.wait_for(e.TranscriptionCompleted).transcript == "one two three"
    assert ears.heard[0].hints == Transcription(language="en")


def test_cleared_speech_is_not_transcribed(call: Callable[..., ConversationDriver]) -> None:
    driver = call()
    driver.stream(burst(1000, RATE))
    driver.send(c.InputAudioBufferClear())
    assert not driver.exchange.open_requests
    driver.settle()
    assert not driver.all_of(e.TranscriptionCompleted)


class Chatterbox:
    """A model that invents transcripts, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[m.ModelInput] = []

    def handle(self, event: m.ModelInput, now_ms: float) -> Sequence[m.ModelOutput]:
        self.told.append(event)
        return (
            m.UserTranscript(item_id="i", text="invented", final=True),
            m.TranscriptFailed(item_id="i", error=DEAF),
            m.WakeAt(key="k", at_ms=now_ms),
        )


def test_the_model_gets_all_but_the_recognisers_replies_and_says_all_but_transcripts() -> None:
    inner = Chatterbox()
    session = TranscribedSession(inner, stage="transcriber", rate_hz=RATE)
    configured = m.Configured(config=SessionConfig(model="m"), fence=FENCE)
    committed = m.InputCommitted(item_id="i", pcm=burst(500, RATE), start_ms=0.0, end_ms=500.0, fence=FENCE)
    assert list(session.handle(configured, 7.0)) == [m.WakeAt(key="k", at_ms=7.0)]
    wake, submit = session.handle(committed, 8.0)
    assert isinstance(submit, m.Submit)
    assert wake == m.WakeAt(key="k", at_ms=8.0)
    reply = StageOutput(
        stage="transcriber",
        request_id=submit.request.request_id,
        fence=FENCE,
        lane=Lane.INPUT,
        payload=Recognized(text="heard"),
    )
    assert list(session.handle(reply, 9.0)) == [m.UserTranscript(item_id="i", text="heard", final=True)]
    assert list(session.handle(msgspec.structs.replace(reply, payload=None, final=True), 9.0)) == []
    assert inner.told == [configured, committed]
    session.handle(msgspec.structs.replace(reply, stage="of the model"), 9.0)
    assert len(inner.told) == 3
