"""Two of the four conversations of the documentation, with scripted models that take their turns themselves.

One hears units of a second and decides for each (as MiniCPM-o), the other hears and speaks a frame every 80 ms and knows no
turns (as PersonaPlex). What they decide is scripted; machine, exchange and driver are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from duplex_core.audio import pcm16_bytes
from duplex_core.capabilities import Capabilities, TurnPolicy
from duplex_core.commands import (
    InputAudioBufferAppend,
    InputAudioBufferCommit,
    OutputAudioBufferClear,
    ResponseCreate,
    SessionUpdate,
)
from duplex_core.config import SessionConfig
from duplex_core.errors import ErrorCode
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
from duplex_core.model import InputCommitted as ToldCommitted
from duplex_core.patch import SessionPatch
from duplex_core.spec import ModelSpec, SessionContext
from duplex_core.stages import Lane, StageOutput, StagePlan, StageRequest, StageSpec
from duplex_core.testing import invariants
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.speech import burst, silence


class PassOn:
    """A stage that answers each request with its own payload, once."""

    def run(self, payload: object, emit: Callable[[object], None], cancelled: Callable[[], bool]) -> None:
        emit(payload)

    def close(self) -> None:
        pass


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """What the thinker is given, and what it decides: ``L`` listen, ``S`` speak, ``E`` speak and end the turn."""

    number: int
    decision: str


class UnitSession:
    """A model of units: at most one is with the thinker, whose cache lives as long as the session."""

    UNIT_MS = 1000.0
    RATE = 16000

    def __init__(self, script: str) -> None:
        self.script = script
        self.fence = Fence(session_id="none")
        self.kept = b""
        self.waiting: list[Unit] = []
        self.units = 0
        self.in_flight = False
        self.asked = False
        self.open = False
        self.forced = False
        self.cache: list[int] = []

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        match event:
            case AudioArrived():
                self.kept += event.pcm
                return self.cut(now_ms)
            case ToldCommitted() | Deadline():
                return self.flush(now_ms)
            case Respond():
                self.fence, self.asked = event.fence, True
                return self.flush(now_ms)
            case Interrupted():
                self.fence, self.open, self.asked, self.forced = event.fence, False, False, True
            case StageOutput(payload=Unit() as unit):
                return self.decide(unit, event.fence, now_ms)
            case StageOutput(payload=bytes() as pcm):
                text = f"unit {len(pcm) // 32} "
                return (Speak(fence=event.fence, pcm=pcm, text=text), *self.ended(event.fence))
            case Configured():
                self.fence = event.fence
            case _:
                pass
        return ()

    def cut(self, now_ms: float) -> list[ModelOutput]:
        size = pcm16_bytes(self.UNIT_MS, self.RATE)
        while len(self.kept) >= size:
            self.kept = self.kept[size:]
            self.waiting.append(self.next_unit())
        return [*self.submit(), WakeAt(key="unit", at_ms=now_ms + self.UNIT_MS)]

    def flush(self, now_ms: float) -> list[ModelOutput]:
        """The silence rule: fill the unit up, while somebody waits for it."""
        if not (self.kept or self.open or self.asked):
            return []
        self.kept = b""
        self.waiting.append(self.next_unit())
        return [*self.submit(), WakeAt(key="unit", at_ms=now_ms + self.UNIT_MS)]

    def next_unit(self) -> Unit:
        self.units += 1
        decision = self.script[self.units - 1] if self.units <= len(self.script) else "L"
        return Unit(number=self.units, decision=decision)

    def submit(self) -> list[ModelOutput]:
        if self.in_flight or not self.waiting:
            return []
        unit, self.in_flight = self.waiting.pop(0), True
        if self.forced:
            unit, self.forced = msgspec.structs.replace(unit, decision="L"), False
        request = StageRequest(
            stage="thinker", request_id=f"unit-{unit.number}", fence=self.fence, lane=Lane.INPUT, payload=unit
        )
        return [Submit(request=request)]

    def decide(self, unit: Unit, made_under: Fence, now_ms: float) -> list[ModelOutput]:
        self.in_flight = False
        self.cache.append(unit.number)
        following = self.submit()
        if not self.fence.admits(made_under):
            return following
        if unit.decision == "L":
            if made_under.turn == self.fence.turn:
                self.asked = False
            return [Listen(fence=made_under), *following]
        begun: list[ModelOutput] = []
        if not self.open and not self.asked:
            self.fence = self.fence.next_turn()
            begun.append(BeginTurn(fence=self.fence))
        self.open, self.asked, self.last = True, False, unit.decision == "E"
        voice = StageRequest(
            stage="voice",
            request_id=f"voice-{unit.number}",
            fence=self.fence,
            lane=Lane.OUTPUT,
            payload=burst(self.UNIT_MS, self.RATE),
        )
        return [*begun, Submit(request=voice), *following]

    def ended(self, fence: Fence) -> list[ModelOutput]:
        if not self.last:
            return []
        self.open = False
        return [EndTurn(fence=fence)]


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


def native(session: type[UnitSession | FrameSession], script: str, fixed: tuple[str, ...] = ()) -> ConversationDriver:
    """A session of a scripted model that takes its turns itself; the client's detector is off."""
    stages = tuple(StageSpec(name=name, factory=f"{__name__}:PassOn") for name in ("thinker", "voice", "lm"))

    def create(context: SessionContext) -> UnitSession | FrameSession:
        return session(script)

    spec = ModelSpec(
        id="native",
        summary="scripted",
        claims=lambda checkpoint: False,
        claims_text="nothing",
        capabilities=lambda deploy: Capabilities(
            turn_policy=TurnPolicy.MODEL,
            input_rate_hz=session.RATE,
            output_rate_hz=session.RATE,
            fixed_after_start=fixed,
        ),
        session_config=lambda deploy: SessionConfig(model="native", turn_detection=None),
        stage_plan=lambda checkpoint, deploy: StagePlan(stages=stages),
        create_session=create,
    )
    return ConversationDriver(spec, ms_per_piece=300.0 if session is UnitSession else 20.0)


def seconds(driver: ConversationDriver, count: float) -> None:
    driver.stream(burst(1000 * count, driver.capabilities.input_rate_hz))


def cached(driver: ConversationDriver) -> list[str]:
    """The units that the thinker has worked through, in order."""
    return [
        told.event.request_id
        for told in driver.told
        if isinstance(told.event, StageOutput) and isinstance(told.event.payload, Unit)
    ]


def well(driver: ConversationDriver) -> None:
    driver.settle()
    invariants.check(driver.events)
    assert driver.exchange.open_requests == ()


# -- a MiniCPM-o second ------------------------------------------------------------------------------------------------


def test_it_listens_then_speaks_with_no_commit_at_all() -> None:
    driver = native(UnitSession, "LSE")
    seconds(driver, 3)
    driver.wait_for(ResponseDone)
    well(driver)
    assert len(driver.all_of(ResponseListen)) == 1
    assert [done.response.status for done in driver.all_of(ResponseDone)] == [ResponseStatus.COMPLETED]
    assert len(driver.all_of(OutputAudioDelta)) == 2
    assert not driver.all_of(InputCommitted)
    assert len(driver.all_of(ItemDone)) == 1


def test_it_goes_on_speaking_when_no_audio_comes() -> None:
    driver = native(UnitSession, "SSSE")
    seconds(driver, 1)
    driver.wait_for(ResponseDone)
    well(driver)
    assert len(driver.all_of(OutputAudioDelta)) == 4


def test_a_commit_may_end_in_listening_with_no_response() -> None:
    driver = native(UnitSession, "LL")
    seconds(driver, 1.3)
    driver.send(InputAudioBufferCommit())
    driver.wait_for(ResponseListen, count=2)
    well(driver)
    assert driver.all_of(InputCommitted)
    assert [event.response_id for event in driver.all_of(ResponseListen)] == [None, None]
    assert not driver.all_of(ResponseCreated)


def test_an_answer_that_was_asked_for_may_end_in_listening() -> None:
    driver = native(UnitSession, "LL")
    seconds(driver, 1.3)
    driver.settle()
    driver.send(InputAudioBufferCommit(response_create=True))
    done = driver.wait_for(ResponseDone)
    well(driver)
    assert done.response.status is ResponseStatus.COMPLETED
    assert done.response.output == []
    assert driver.all_of(ResponseListen)[-1].response_id == done.response.id


def test_a_unit_from_before_the_question_does_not_end_its_answer() -> None:
    driver = native(UnitSession, "LE")
    seconds(driver, 1)
    assert [request.request_id for request in driver.exchange.open_requests] == ["unit-1"]
    driver.send(InputAudioBufferAppend(audio=burst(300, 16000)), InputAudioBufferCommit(response_create=True))
    done = driver.wait_for(ResponseDone)
    well(driver)
    assert {event.response_id for event in driver.all_of(ResponseListen)} == {None}
    assert len(driver.all_of(ResponseCreated)) == 1
    assert done.response.output, "the unit that held the question fills the response that was opened for it"


def test_an_interruption_leaves_the_unit_in_flight_to_the_cache_and_to_nothing_else() -> None:
    driver = native(UnitSession, "SSSSE")
    seconds(driver, 1)
    driver.wait_for(OutputAudioDelta)
    seconds(driver, 1)
    assert [request.lane for request in driver.exchange.open_requests] == [Lane.INPUT]
    driver.send(OutputAudioBufferClear())
    assert [request.request_id for request in driver.exchange.open_requests] == ["unit-2"]
    fence = len(driver.events)
    seconds(driver, 1)
    driver.settle()
    assert cached(driver) == ["unit-1", "unit-2", "unit-3"]
    assert not [event for event in driver.events[fence:] if isinstance(event, OutputAudioDelta)]
    assert driver.all_of(ResponseListen), "the unit after the interruption was made to listen"
    seconds(driver, 2)
    well(driver)
    first, second = driver.all_of(ResponseDone)
    assert first.response.status is ResponseStatus.CANCELLED
    assert second.response.status is ResponseStatus.COMPLETED
    assert (second.epoch, second.turn_id) == (1, 2)


# -- a PersonaPlex frame -----------------------------------------------------------------------------------------------


def test_an_utterance_is_a_response_and_silence_is_nothing() -> None:
    driver = native(FrameSession, "." * 10 + "www..ww" + "." * 20 + "w" + "." * 20)
    seconds(driver, 6)
    well(driver)
    assert [done.response.status for done in driver.all_of(ResponseDone)] == [ResponseStatus.COMPLETED] * 2
    assert [event.transcript for event in driver.all_of(OutputTranscriptDone)] == ["w w w w w ", "w "]
    assert len(driver.all_of(OutputAudioDelta)) == (7 + 8) + (1 + 8)
    assert not driver.all_of(ResponseListen)


def test_what_is_left_of_an_interrupted_sentence_does_not_come_back() -> None:
    driver = native(FrameSession, "w" * 40 + "." * 10 + "ww" + "." * 30)
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
    driver = native(FrameSession, "." * 5 + "ww" + "." * 20)
    driver.send(ResponseCreate())
    seconds(driver, 2)
    well(driver)
    assert len(driver.all_of(ResponseCreated)) == 1
    assert driver.all_of(ResponseDone)[0].response.output


def test_an_answer_that_does_not_come_ends_all_the_same() -> None:
    driver = native(FrameSession, "." * 100)
    driver.send(ResponseCreate())
    seconds(driver, 3)
    well(driver)
    assert driver.all_of(ResponseDone)[0].response.output == []
    assert driver.all_of(ResponseListen)[0].response_id == driver.all_of(ResponseDone)[0].response.id


def test_what_is_fixed_after_the_start_is_refused_by_name() -> None:
    driver = native(FrameSession, "", fixed=("instructions",))
    driver.send(SessionUpdate(session=SessionPatch(instructions="You are a pirate.")))
    assert not driver.all_of(ErrorEvent)
    driver.send(SessionUpdate(session=SessionPatch(instructions="You are a poet.")))
    (refusal,) = driver.all_of(ErrorEvent)
    assert refusal.error.code is ErrorCode.UNSUPPORTED_PARAMETER
    assert refusal.error.param == "session.instructions"
