"""The other two of the four conversations of the documentation, with scripted models that are given their turns.

One recognises while the user speaks and again when they pause (as the cascade), the other writes its whole answer long before
its voice has spoken it (as Qwen3-Omni). What they say is scripted; machine, exchange and driver are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from duplex_core.capabilities import Capabilities
from duplex_core.commands import InputAudioBufferCommit, ResponseCancel, ResponseCreate
from duplex_core.config import OverlapMode, OverlapSettings, ServerVad, SessionConfig, Transcription
from duplex_core.events import (
    OutputAudioDelta,
    OutputTranscriptDelta,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    SpeechStarted,
    StatusReason,
    TranscriptionCompleted,
    TranscriptionDelta,
)
from duplex_core.items import MessageItem, Role, item_text
from duplex_core.ledger import TextMark
from duplex_core.model import (
    Abort,
    EndTurn,
    Interrupted,
    ModelInput,
    ModelOutput,
    Respond,
    Speak,
    SpeechBegan,
    SpeechPaused,
    SpeechResumed,
    Submit,
    UserTranscript,
)
from duplex_core.spec import ModelSpec, SessionContext
from duplex_core.stages import Lane, StageOutput, StagePlan, StageRequest, StageSpec
from duplex_core.testing import invariants
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.speech import burst, silence

RATE = 16000
WORDS = ["one ", "two ", "three ", "four ", "five ", "six "]
PIECE_MS = 500.0
"""How long the voice speaks each word."""


class Recogniser:
    """Answers what it is given to hear with how long it was, in words of 500 ms."""

    def run(self, payload: float, emit: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
        emit("".join(WORDS[: int(payload / 500)]).strip())

    def close(self) -> None:
        pass


class Writer:
    """Writes its whole answer at once."""

    def run(self, payload: None, emit: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
        for word in WORDS:
            emit(word)

    def close(self) -> None:
        pass


class Voice:
    """Speaks a word after the other, and says which it has come to the end of."""

    def run(self, payload: str, emit: Callable[[Spoken], None], cancelled: Callable[[], bool]) -> None:
        for count in range(1, len(WORDS) + 1):
            emit(Spoken(pcm=burst(PIECE_MS, RATE), chars=len("".join(WORDS[:count]))))

    def close(self) -> None:
        pass


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of speech, and how many characters have been spoken by its end."""

    pcm: bytes
    chars: int


class Cascade:
    """Recognises at the start, at each pause; what a pause began is void when the user goes on."""

    def __init__(self) -> None:
        self.start_ms = 0.0
        self.item_id = ""
        self.number = 0
        self.speculative: str | None = None
        self.spoken_ms = 0.0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        match event:
            case SpeechBegan():
                self.item_id, self.start_ms = event.item_id, event.start_ms
                return (self.recognise(event, "begin", 0.0),)
            case SpeechPaused():
                submit = self.recognise(event, "pause", event.at_ms - self.start_ms)
                self.speculative = submit.request.request_id
                return (submit,)
            case SpeechResumed():
                gone, self.speculative = self.speculative, None
                return (Abort(stage="recogniser", request_id=gone),) if gone else ()
            case StageOutput(stage="recogniser", payload=str() as text):
                final = event.request_id == self.speculative
                return (UserTranscript(item_id=self.item_id, text=text, final=final),)
            case Respond():
                self.spoken_ms = 0.0
                return (Submit(request=answer(event, "voice")),)
            case StageOutput(stage="voice"):
                return self.speak(event)
            case _:
                pass
        return ()

    def recognise(self, event: SpeechBegan | SpeechPaused, why: str, heard_ms: float) -> Submit:
        self.number += 1
        request = StageRequest(
            stage="recogniser",
            request_id=f"{why}-{self.number}",
            fence=event.fence,
            lane=Lane.INPUT,
            payload=heard_ms,
        )
        return Submit(request=request)

    def speak(self, event: StageOutput) -> Sequence[ModelOutput]:
        if not isinstance(event.payload, Spoken):
            return (EndTurn(fence=event.fence),)
        word = WORDS[int(self.spoken_ms / PIECE_MS)]
        self.spoken_ms += PIECE_MS
        return (Speak(fence=event.fence, pcm=event.payload.pcm, text=word),)


class ThinkerAndTalker:
    """Tells all its text, then speaks it, marking the text as it is spoken."""

    def __init__(self) -> None:
        self.spoken_ms = 0.0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        match event:
            case Respond():
                self.spoken_ms = 0.0
                return (Submit(request=answer(event, "thinker")),)
            case StageOutput(stage="thinker", payload=str() as word):
                return (Speak(fence=event.fence, text=word),)
            case StageOutput(stage="thinker"):
                request = StageRequest(
                    stage="voice",
                    request_id=f"voice-{event.fence.turn}",
                    fence=event.fence,
                    lane=Lane.OUTPUT,
                    payload="",
                )
                return (Submit(request=request),)
            case StageOutput(stage="voice", payload=Spoken() as piece):
                self.spoken_ms += PIECE_MS
                return (
                    Speak(
                        fence=event.fence,
                        pcm=piece.pcm,
                        marks=(TextMark(chars=piece.chars, ms=self.spoken_ms),),
                    ),
                )
            case StageOutput(stage="voice"):
                return (EndTurn(fence=event.fence),)
            case _:
                pass
        return ()


def answer(asked: Respond, stage: str) -> StageRequest:
    return StageRequest(
        stage=stage, request_id=f"{stage}-{asked.fence.turn}", fence=asked.fence, lane=Lane.OUTPUT, payload=""
    )


def talk(session: type[Cascade | ThinkerAndTalker], *, ms_per_piece: float = 100.0) -> ConversationDriver:
    """A session of a scripted model that is given its turns, by the server's detector."""
    workers = {"recogniser": "Recogniser", "thinker": "Writer", "voice": "Voice"}
    stages = tuple(StageSpec(name=name, factory=f"{__name__}:{worker}") for name, worker in workers.items())

    def create(context: SessionContext) -> Cascade | ThinkerAndTalker:
        return session()

    spec = ModelSpec(
        id="turns",
        summary="scripted",
        claims=lambda checkpoint: False,
        claims_text="nothing",
        capabilities=lambda deploy: Capabilities(input_rate_hz=RATE, output_rate_hz=RATE, input_transcription=True),
        session_config=lambda deploy: SessionConfig(
            model="turns",
            turn_detection=ServerVad(),
            transcription=Transcription(),
            overlap=OverlapSettings(mode=OverlapMode.IMMEDIATE),
        ),
        stage_plan=lambda checkpoint, deploy: StagePlan(stages=stages),
        create_session=create,
    )
    return ConversationDriver(spec, ms_per_piece=ms_per_piece)


def said(driver: ConversationDriver) -> str:
    """What the model is told that it said, at its newest turn."""
    history = driver.heard_by_model(Respond)[-1].history
    mine = [item for item in history if isinstance(item, MessageItem) and item.role is Role.ASSISTANT]
    return " ".join(item_text(item) for item in mine).strip()


def well(driver: ConversationDriver) -> None:
    driver.settle()
    invariants.check(driver.events)
    assert driver.exchange.open_requests == ()


# -- a cascade turn ----------------------------------------------------------------------------------------------------


def test_what_was_said_is_recognised_before_the_turn_is_over() -> None:
    driver = talk(Cascade)
    driver.stream(silence(300, RATE) + burst(1500, RATE) + silence(800, RATE))
    driver.wait_for(ResponseDone)
    well(driver)
    completed = driver.all_of(TranscriptionCompleted)
    assert [event.transcript for event in completed] == ["one two three"]
    final = [told.at_ms for told in driver.told if any(getattr(each, "final", False) for each in told.outputs)]
    committed = [told.at_ms for told in driver.told if isinstance(told.event, Respond)]
    assert final[0] < committed[0], "the words were known when the turn was over"
    assert "".join(event.delta for event in driver.all_of(TranscriptionDelta)) == "one two three"


def test_what_a_pause_began_is_void_when_the_user_goes_on() -> None:
    driver = talk(Cascade, ms_per_piece=350.0)
    driver.stream(burst(1000, RATE) + silence(300, RATE) + burst(1200, RATE) + silence(800, RATE))
    driver.wait_for(ResponseDone)
    well(driver)
    assert driver.heard_by_model(SpeechResumed)
    assert [event.transcript for event in driver.all_of(TranscriptionCompleted)] == ["one two three four five"]


def test_an_interruption_cuts_the_answer_and_not_the_recognition() -> None:
    driver = talk(Cascade)
    driver.stream(silence(300, RATE) + burst(1500, RATE) + silence(700, RATE))
    driver.wait_for(OutputAudioDelta, count=2)
    driver.advance(1100)
    driver.stream(burst(1200, RATE) + silence(800, RATE))
    driver.wait_for(ResponseDone, count=2)
    well(driver)
    first, second = driver.all_of(ResponseDone)
    assert first.response.status is ResponseStatus.COMPLETED, "it was made faster than it sounds, and cut all the same"
    assert second.response.status is ResponseStatus.COMPLETED
    assert len(driver.heard_by_model(Interrupted)) == 1
    told = [type(each.event) for each in driver.told]
    assert told.index(Interrupted) < len(told) - 1 - told[::-1].index(SpeechBegan)
    assert len(driver.all_of(TranscriptionCompleted)) == 2
    history = driver.heard_by_model(Respond)[-1].history
    assert "one two three four five six".startswith(item_text(history[1]))
    assert 0 < len(item_text(history[1])) < len("one two three four five six")


def test_a_cancelled_answer_leaves_the_recognition_of_what_is_being_said() -> None:
    driver = talk(Cascade, ms_per_piece=2000.0)
    driver.send(ResponseCreate())
    driver.stream(burst(600, RATE))
    driver.wait_for(SpeechStarted)
    open_before = {request.request_id for request in driver.exchange.open_requests if request.lane is Lane.INPUT}
    assert open_before, "the recogniser is at work"
    assert driver.all_of(ResponseDone)[0].response.status is ResponseStatus.CANCELLED, "interrupted by the speech"
    driver.send(ResponseCreate())
    driver.send(ResponseCancel())
    assert len(driver.all_of(ResponseDone)) == 2
    assert {request.request_id for request in driver.exchange.open_requests} == open_before
    driver.stream(burst(500, RATE) + silence(900, RATE))
    driver.wait_for(TranscriptionCompleted)
    well(driver)


# -- a Qwen3-Omni turn -------------------------------------------------------------------------------------------------


def ask(driver: ConversationDriver) -> None:
    driver.stream(silence(200, RATE) + burst(800, RATE) + silence(600, RATE))
    driver.wait_for(ResponseCreated)


def test_text_runs_ahead_and_is_marked_when_it_is_spoken() -> None:
    driver = talk(ThinkerAndTalker)
    ask(driver)
    driver.wait_for(ResponseDone)
    well(driver)
    texts = [index for index, event in enumerate(driver.events) if isinstance(event, OutputTranscriptDelta)]
    sounds = [index for index, event in enumerate(driver.events) if isinstance(event, OutputAudioDelta)]
    assert max(texts) < min(sounds)
    marks = [mark for event in driver.all_of(OutputAudioDelta) for mark in event.metadata.audio_text_marks]
    assert [mark.ms for mark in marks] == [500.0, 1000.0, 1500.0, 2000.0, 2500.0, 3000.0]


def test_interrupted_in_the_voice_only_what_was_heard_was_said() -> None:
    """The text is whole and told; the voice has made three words of six, of which two were heard."""
    driver = talk(ThinkerAndTalker, ms_per_piece=400.0)
    ask(driver)
    driver.wait_for(OutputAudioDelta, count=3)
    driver.advance(200)
    driver.stream(burst(800, RATE) + silence(700, RATE))
    driver.wait_for(ResponseDone, count=2)
    well(driver)
    first = driver.all_of(ResponseDone)[0].response
    assert first.status is ResponseStatus.CANCELLED
    assert first.status_details is not None
    assert first.status_details.reason is StatusReason.TURN_DETECTED
    assert item_text(first.output[0]) == "".join(WORDS), "all of it was told before it was spoken"
    assert said(driver) == "one two"


def test_interrupted_before_the_voice_nothing_was_said() -> None:
    driver = talk(ThinkerAndTalker)
    ask(driver)
    driver.wait_for(OutputTranscriptDelta, count=4)
    driver.send(ResponseCancel())
    driver.send(ResponseCreate())
    driver.wait_for(ResponseDone, count=2)
    well(driver)
    assert said(driver) == ""


def test_a_commit_by_hand_during_speech_is_one_turn() -> None:
    driver = talk(ThinkerAndTalker)
    driver.stream(silence(200, RATE) + burst(800, RATE))
    driver.send(InputAudioBufferCommit())
    driver.stream(silence(1000, RATE))
    driver.wait_for(ResponseDone)
    well(driver)
    assert len(driver.all_of(ResponseDone)) == 1
