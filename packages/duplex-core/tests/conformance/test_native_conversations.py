"""Two of the four conversations of the documentation, with scripted models that take their turns themselves.

One hears units of a second and decides for each (as MiniCPM-o): the conformance kit's ``native``. The other hears and speaks
a frame every 80 ms and knows no turns (as PersonaPlex). What they decide is scripted; machine, exchange and driver are real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duplex_core.audio import pcm16_bytes, pcm16_ms
from duplex_core.capabilities import Capabilities, TurnPolicy
from duplex_core.commands import (
    InputAudioBufferAppend,
    InputAudioBufferCommit,
    OutputAudioBufferClear,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
)
from duplex_core.config import SessionConfig
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    ErrorEvent,
    InputCommitted,
    ItemDone,
    OutputAudioDelta,
    OutputTranscriptDone,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    ResponseStatus,
)
from duplex_core.fence import Fence
from duplex_core.ledger import TextMark
from duplex_core.model import (
    AudioArrived,
    BeginTurn,
    Configured,
    Deadline,
    EndTurn,
    Interrupted,
    Listen,
    ModelInput,
    ModelOutput,
    Respond,
    Speak,
    Submit,
    WakeAt,
)
from duplex_core.patch import SessionPatch
from duplex_core.spec import ModelSpec, SessionContext
from duplex_core.stages import Lane, StageOutput, StagePlan, StageRequest, StageSpec
from duplex_core.testing import invariants
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.native import NATIVE
from duplex_core.testing.native.decision import Thought
from duplex_core.testing.speech import burst, silence


class PassOn:
    """A stage that answers each request with its own payload, once."""

    def run(self, payload: object, emit: Callable[[object], None], cancelled: Callable[[], bool]) -> None:
        emit(payload)

    def close(self) -> None:
        pass


class FrameSession:
    """A model of frames: one in, one out, ``w`` a word, ``.`` nothing. Turns are made by two rules and a third mutes."""

    FRAME_MS = 80.0
    RATE = 24000
    END_FRAMES = 8
    MUTE_FRAMES = 3
    ANSWER_MS = 2000.0

    def __init__(self, script: str) -> None:
        self.script = script
        self.fence = Fence(session_id="none")
        self.kept = b""
        self.frames = 0
        self.silent = 0
        self.open = False
        self.asked = False
        self.muted = False
        self.spoken = 0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        match event:
            case AudioArrived():
                return self.hear(event)
            case Respond():
                self.fence, self.asked = event.fence, True
                return (WakeAt(key="answer", at_ms=now_ms + self.ANSWER_MS),)
            case Deadline():
                if self.asked:
                    self.asked = False
                    return (Listen(fence=self.fence),)
            case Interrupted():
                self.fence, self.open, self.asked, self.muted, self.silent = event.fence, False, False, True, 0
            case StageOutput(payload=str() as token):
                return self.frame(token) if self.fence.admits(event.fence) else ()
            case Configured():
                self.fence = event.fence
            case _:
                pass
        return ()

    def hear(self, event: AudioArrived) -> list[ModelOutput]:
        self.kept += event.pcm
        size = pcm16_bytes(self.FRAME_MS, self.RATE)
        out: list[ModelOutput] = []
        while len(self.kept) >= size:
            self.kept = self.kept[size:]
            token = self.script[self.frames] if self.frames < len(self.script) else "."
            self.frames += 1
            request = StageRequest(
                stage="lm", request_id=f"frame-{self.frames}", fence=self.fence, lane=Lane.INPUT, payload=token
            )
            out.append(Submit(request=request))
        return out

    def frame(self, token: str) -> list[ModelOutput]:
        word = token == "w"
        self.silent = 0 if word else self.silent + 1
        if self.muted:
            self.muted = self.silent < self.MUTE_FRAMES
            return []
        out: list[ModelOutput] = []
        if not self.open:
            if not word:
                return []
            if not self.asked:
                self.fence = self.fence.next_turn()
                out.append(BeginTurn(fence=self.fence))
            self.open, self.asked, self.spoken = True, False, 0
        self.spoken += 1
        pcm = burst(self.FRAME_MS, self.RATE) if word else silence(self.FRAME_MS, self.RATE)
        marks = (TextMark(chars=2 * self.spoken, ms=self.spoken * self.FRAME_MS),) if word else ()
        out.append(Speak(fence=self.fence, pcm=pcm, text="w " if word else "", marks=marks))
        if self.silent >= self.END_FRAMES:
            self.open = False
            out.append(EndTurn(fence=self.fence))
        return out


def units(**options: Any) -> ConversationDriver:
    """A session of ``native``, in units of a second, whose stages take their time."""
    driver = ConversationDriver(NATIVE, ms_per_piece=30.0)
    driver.send(SessionUpdate(session=SessionPatch(options=options)))
    return driver


def frames(script: str, fixed: tuple[str, ...] = ()) -> ConversationDriver:
    """A session of the model of frames."""

    def create(context: SessionContext) -> FrameSession:
        return FrameSession(script)

    spec = ModelSpec(
        id="frames",
        summary="scripted",
        claims=lambda checkpoint: False,
        claims_text="nothing",
        capabilities=lambda deploy: Capabilities(
            turn_policy=TurnPolicy.MODEL,
            input_rate_hz=FrameSession.RATE,
            output_rate_hz=FrameSession.RATE,
            fixed_after_start=fixed,
        ),
        session_config=lambda deploy: SessionConfig(model="frames", turn_detection=None),
        stage_plan=lambda checkpoint, deploy: StagePlan(stages=(StageSpec(name="lm", factory=f"{__name__}:PassOn"),)),
        create_session=create,
    )
    return ConversationDriver(spec, ms_per_piece=20.0)


def seconds(driver: ConversationDriver, count: float, *, loud: bool = True) -> None:
    rate = driver.capabilities.input_rate_hz
    driver.stream(burst(1000 * count, rate) if loud else silence(1000 * count, rate))


def under_way(driver: ConversationDriver) -> list[str]:
    return [request.request_id for request in driver.exchange.open_requests]


def thoughts(driver: ConversationDriver) -> list[Thought]:
    """What the thinker decided on its units, in order, whether it was of use or not."""
    return [each.payload for each in driver.heard_by_model(StageOutput) if isinstance(each.payload, Thought)]


def well(driver: ConversationDriver) -> None:
    driver.settle()
    invariants.check(driver.events)
    assert driver.exchange.open_requests == ()


# -- a MiniCPM-o second ------------------------------------------------------------------------------------------------


def test_it_listens_then_speaks_with_no_commit_at_all() -> None:
    driver = units(turn_units=2)
    seconds(driver, 1)
    seconds(driver, 2, loud=False)
    driver.wait_for(ResponseDone)
    assert len(driver.all_of(ResponseListen)) == 1
    well(driver)
    assert [done.response.status for done in driver.all_of(ResponseDone)] == [ResponseStatus.COMPLETED]
    assert pcm16_ms(len(driver.audio()), driver.capabilities.output_rate_hz) == 2000
    assert [event.transcript for event in driver.all_of(OutputTranscriptDone)] == ["1 of 2. 2 of 2."]
    assert not driver.all_of(InputCommitted)
    assert len(driver.all_of(ItemDone)) == 1


def test_it_goes_on_speaking_when_no_audio_comes() -> None:
    driver = units(turn_units=8, patience_ms=1000)
    seconds(driver, 1)
    driver.wait_for(ResponseDone)
    well(driver)
    assert [event.transcript[-7:] for event in driver.all_of(OutputTranscriptDone)] == ["8 of 8."]
    assert [thought.text is None for thought in thoughts(driver)] == [True] + [False] * 8


def test_nobody_waits_for_it_so_it_rests() -> None:
    driver = units(patience_ms=2000)
    seconds(driver, 1, loud=False)
    well(driver)
    assert len(driver.all_of(ResponseListen)) == 3
    assert not driver.exchange.armed
    seconds(driver, 1, loud=False)
    driver.wait_for(ResponseListen, count=4)
    assert driver.exchange.armed, "there is somebody again"


def test_a_commit_may_end_in_listening_with_no_response() -> None:
    driver = units(silence_ms=900, patience_ms=0)
    seconds(driver, 1.3)
    driver.send(InputAudioBufferCommit())
    driver.wait_for(ResponseListen, count=2)
    well(driver)
    assert driver.all_of(InputCommitted)
    assert [event.response_id for event in driver.all_of(ResponseListen)] == [None, None]
    assert not driver.all_of(ResponseCreated)


def test_a_commit_may_end_in_a_turn() -> None:
    driver = units(silence_ms=600)
    seconds(driver, 1.3)
    driver.send(InputAudioBufferCommit())
    driver.wait_for(ResponseDone)
    well(driver)
    assert len(driver.all_of(ResponseCreated)) == 1
    assert not driver.heard_by_model(Respond)


def test_an_answer_that_was_asked_for_may_end_in_listening() -> None:
    driver = units()
    seconds(driver, 1.3, loud=False)
    driver.settle()
    driver.send(InputAudioBufferCommit(response_create=True))
    done = driver.wait_for(ResponseDone)
    well(driver)
    assert done.response.status is ResponseStatus.COMPLETED
    assert done.response.output == []
    assert driver.all_of(ResponseListen)[-1].response_id == done.response.id
    assert len(driver.all_of(ResponseDone)) == len(driver.all_of(ResponseCreated)) == 1


def test_a_unit_from_before_the_question_does_not_end_its_answer() -> None:
    driver = units(silence_ms=900)
    seconds(driver, 1)
    assert under_way(driver) == ["thinker-1"]
    driver.send(InputAudioBufferAppend(audio=burst(300, 16000)), InputAudioBufferCommit(response_create=True))
    done = driver.wait_for(ResponseDone)
    well(driver)
    assert {event.response_id for event in driver.all_of(ResponseListen)} == {None}
    assert len(driver.all_of(ResponseCreated)) == 1
    assert done.response.output, "the unit that held the question fills the response that was opened for it"


def test_a_unit_from_before_the_question_may_begin_its_answer() -> None:
    driver = units(silence_ms=600)
    seconds(driver, 0.4)
    seconds(driver, 0.6, loud=False)
    assert under_way(driver) == ["thinker-1"]
    driver.send(ResponseCreate())
    done = driver.wait_for(ResponseDone)
    well(driver)
    assert len(driver.all_of(ResponseCreated)) == len(driver.all_of(ResponseDone)) == 1
    assert [thought.text is None for thought in thoughts(driver)[:3]] == [False] * 3
    assert done.response.output


def test_what_it_is_made_to_listen_to_it_still_hears() -> None:
    driver = units(forced_listen=2, patience_ms=5000)
    seconds(driver, 0.4)
    driver.wait_for(ResponseDone)
    well(driver)
    assert [thought.text is None for thought in thoughts(driver)[:3]] == [True, True, False]


def test_made_to_listen_in_the_midst_of_its_answer_it_ends_it() -> None:
    driver = units(turn_units=5)
    seconds(driver, 0.4)
    driver.wait_for(OutputAudioDelta)
    driver.send(SessionUpdate(session=SessionPatch(options={"forced_listen": 10})))
    done = driver.wait_for(ResponseDone)
    well(driver)
    assert done.response.status is ResponseStatus.COMPLETED
    assert [event.transcript for event in driver.all_of(OutputTranscriptDone)] == ["1 of 5. "]


def test_speech_over_its_answer_is_no_reason_for_it_to_yield() -> None:
    driver = units(turn_units=4)
    seconds(driver, 0.4)
    driver.wait_for(OutputAudioDelta)
    seconds(driver, 5)
    first = driver.wait_for(ResponseDone)
    assert first.response.status is ResponseStatus.COMPLETED
    driver.wait_for(ResponseDone, count=2)
    well(driver)
    assert [event.transcript for event in driver.all_of(OutputTranscriptDone)] == [
        "1 of 4. 2 of 4. 3 of 4. 4 of 4."
    ] * 2


def test_a_unit_that_could_not_be_understood_is_lost_and_no_more() -> None:
    driver = units()
    seconds(driver, 1)
    driver.send(InputAudioBufferAppend(audio=burst(300, 16000)), InputAudioBufferCommit(response_create=True))
    driver.run_until(lambda: under_way(driver) == ["thinker-2"])
    (request,) = driver.exchange.open_requests
    driver.reply(request.failed(error(ErrorCode.ENGINE_ERROR, "the test broke this request")))
    assert driver.wait_for(ResponseDone).response.status is ResponseStatus.FAILED
    driver.wait_for(ResponseDone, count=2)
    well(driver)
    assert [thought.mind.units for thought in thoughts(driver)] == list(range(1, len(thoughts(driver)) + 1))


def test_a_question_after_an_interruption_is_not_taken_by_the_unit_that_is_made_to_listen() -> None:
    driver = units()
    seconds(driver, 0.4)
    driver.wait_for(OutputAudioDelta)
    seconds(driver, 1.5)
    driver.send(InputAudioBufferCommit(response_create=True), OutputAudioBufferClear())
    first, second = (driver.wait_for(ResponseDone, count=count) for count in (1, 2))
    well(driver)
    assert first.response.status is ResponseStatus.CANCELLED
    assert second.response.status is ResponseStatus.COMPLETED
    assert second.response.output


def test_a_question_that_is_cancelled_is_not_answered_later() -> None:
    driver = units(silence_ms=900, patience_ms=5000)
    seconds(driver, 1)
    driver.send(InputAudioBufferCommit(response_create=True), ResponseCancel())
    well(driver)
    assert [done.response.status for done in driver.all_of(ResponseDone)] == [ResponseStatus.CANCELLED]
    assert not driver.audio()


def test_an_interruption_leaves_the_unit_in_flight_to_the_cache_and_to_nothing_else() -> None:
    driver = units(turn_units=5)
    seconds(driver, 1)
    seconds(driver, 1, loud=False)
    driver.wait_for(OutputAudioDelta)
    seconds(driver, 1, loud=False)
    driver.run_until(lambda: "thinker-3" in under_way(driver))
    driver.send(OutputAudioBufferClear())
    assert under_way(driver) == ["thinker-3"]
    fence = len(driver.events)
    seconds(driver, 1)
    driver.run_until(lambda: len(thoughts(driver)) == 4)
    assert [thought.mind.units for thought in thoughts(driver)] == [1, 2, 3, 4]
    assert [thought.text for thought in thoughts(driver)] == [None, "1 of 5. ", "2 of 5. ", None]
    assert not [event for event in driver.events[fence:] if isinstance(event, OutputAudioDelta)]
    assert isinstance(driver.events[-1], ResponseListen), "the unit after the interruption was made to listen"
    driver.wait_for(ResponseDone, count=2)
    well(driver)
    first, second = driver.all_of(ResponseDone)
    assert first.response.status is ResponseStatus.CANCELLED
    assert second.response.status is ResponseStatus.COMPLETED
    assert (second.epoch, second.turn_id) == (1, 2)


# -- a PersonaPlex frame -----------------------------------------------------------------------------------------------


def test_an_utterance_is_a_response_and_silence_is_nothing() -> None:
    driver = frames("." * 10 + "www..ww" + "." * 20 + "w" + "." * 20)
    seconds(driver, 6)
    well(driver)
    assert [done.response.status for done in driver.all_of(ResponseDone)] == [ResponseStatus.COMPLETED] * 2
    assert [event.transcript for event in driver.all_of(OutputTranscriptDone)] == ["w w w w w ", "w "]
    assert len(driver.all_of(OutputAudioDelta)) == (7 + 8) + (1 + 8)
    assert not driver.all_of(ResponseListen)


def test_what_is_left_of_an_interrupted_sentence_does_not_come_back() -> None:
    driver = frames("w" * 40 + "." * 10 + "ww" + "." * 30)
    seconds(driver, 1)
    driver.send(OutputAudioBufferClear())
    fence = len(driver.events)
    seconds(driver, 2)
    assert not [event for event in driver.events[fence:] if isinstance(event, OutputAudioDelta)]
    seconds(driver, 3)
    well(driver)
    first, second = driver.all_of(ResponseDone)
    assert first.response.status is ResponseStatus.CANCELLED
    assert second.response.status is ResponseStatus.COMPLETED
    assert [event.transcript for event in driver.all_of(OutputTranscriptDone)][-1] == "w w "


def test_an_answer_that_was_asked_for_is_the_next_utterance() -> None:
    driver = frames("." * 5 + "ww" + "." * 20)
    driver.send(ResponseCreate())
    seconds(driver, 2)
    well(driver)
    assert len(driver.all_of(ResponseCreated)) == 1
    assert driver.all_of(ResponseDone)[0].response.output


def test_an_answer_that_does_not_come_ends_all_the_same() -> None:
    driver = frames("." * 100)
    driver.send(ResponseCreate())
    seconds(driver, 3)
    well(driver)
    assert driver.all_of(ResponseDone)[0].response.output == []
    assert driver.all_of(ResponseListen)[0].response_id == driver.all_of(ResponseDone)[0].response.id


def test_what_is_fixed_after_the_start_is_refused_by_name() -> None:
    driver = frames("", fixed=("instructions",))
    driver.send(SessionUpdate(session=SessionPatch(instructions="You are a pirate.")))
    seconds(driver, 0.1)
    assert not driver.all_of(ErrorEvent)
    driver.send(SessionUpdate(session=SessionPatch(instructions="You are a poet.")))
    (refusal,) = driver.all_of(ErrorEvent)
    assert refusal.error.code is ErrorCode.UNSUPPORTED_PARAMETER
    assert refusal.error.param == "session.instructions"
