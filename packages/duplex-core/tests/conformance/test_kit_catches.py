"""The suite fails where it should: echo with one fault at a time, and the one test that is there for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pydantic
import pytest

from duplex_core.commands import OutputAudioBufferClear
from duplex_core.ledger import TextMark
from duplex_core.machine.output import ModelFault
from duplex_core.model import (
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
    ToolCall,
    WakeAt,
)
from duplex_core.spec import ModelSpec, SessionContext
from duplex_core.stages import StageFailed, StagePlan, StageSpec
from duplex_core.testing.conformance import ModelConformance
from duplex_core.testing.echo import ECHO
from duplex_core.testing.echo.session import EchoSession
from duplex_core.testing.echo.stage import Cutter, CutWork, Piece
from duplex_core.testing.stages import StageHost


class Faulty(EchoSession):
    """Echo whose inputs and outputs a fault may change."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        return [changed for output in super().handle(event, now_ms) for changed in self.change(output)]

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        return (output,)


class TalksOn(Faulty):
    """Gives what is left of an interrupted answer under the new fence, as a turn of its own."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if not isinstance(event, Interrupted):
            return super().handle(event, now_ms)
        fence = event.fence.next_turn()
        return (BeginTurn(fence=fence), Speak(fence=fence, text="As I was saying"), EndTurn(fence=fence))


class EndsTwice(Faulty):
    """Ends each turn twice."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        return (output, output) if isinstance(output, EndTurn) else (output,)


class NeverListens(Faulty):
    """Says nothing at all when there is nothing to say, so that the client waits for ever."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        return () if isinstance(output, Listen) else (output,)


class DeafToFailure(Faulty):
    """Does not notice that its stage failed."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        return () if isinstance(event, StageFailed) else super().handle(event, now_ms)


class WildMarks(Faulty):
    """Marks more text than there is."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        if isinstance(output, Speak) and output.marks:
            return (msgspec.structs.replace(output, marks=(TextMark(chars=10_000, ms=1.0),)),)
        return (output,)


class BadJson(Faulty):
    """Leaves the second half of a call's arguments out."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        if isinstance(output, ToolCall) and output.final:
            return (msgspec.structs.replace(output, arguments=""),)
        return (output,)


class SingsInChat(Faulty):
    """Adds sound to a written answer."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        return (msgspec.structs.replace(output, pcm=b"\1\0"),) if isinstance(output, Speak) else (output,)


class SpeaksUnasked(Faulty):
    """Takes a turn whenever something is configured, although turns are given."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        answer = super().handle(event, now_ms)
        if isinstance(event, Configured):
            fence = event.fence.next_turn()
            return (*answer, BeginTurn(fence=fence), Speak(fence=fence, text="Hello"), EndTurn(fence=fence))
        return answer


class InterruptedTurnGoesOn(Faulty):
    """Keeps speaking the pieces of an interrupted answer, at their times, under the fence of now."""

    fence: Any = None

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if isinstance(event, Respond):
            self.fence = event.fence
        if isinstance(event, Interrupted):
            self.fence = event.fence.next_turn()
            return (BeginTurn(fence=self.fence), WakeAt(key="late", at_ms=now_ms + 50.0))
        if isinstance(event, Deadline) and event.key == "late":
            return (Speak(fence=self.fence, text="late", pcm=bytes(320)), EndTurn(fence=self.fence))
        return super().handle(event, now_ms)


class Remembers(Faulty):
    """Counts the turns of all sessions together."""

    turns = 0

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        if isinstance(output, EndTurn):
            Remembers.turns += 1
            usage = msgspec.structs.replace(output.usage, output_tokens=Remembers.turns)
            return (msgspec.structs.replace(output, usage=usage),)
        return (output,)


class StopsAnswering(Faulty):
    """Answers no more once it was interrupted."""

    hurt = False

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        self.hurt = self.hurt or isinstance(event, Interrupted)
        return () if self.hurt and isinstance(event, Respond) else super().handle(event, now_ms)


class LosesItsTimer(Faulty):
    """Sets no timer, so that only the first piece is spoken."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        return () if isinstance(output, WakeAt) and output.at_ms is not None else (output,)


class IgnoresOptions(Faulty):
    """Reads no options, so that bad ones pass unnoticed."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        return () if isinstance(event, Configured) else super().handle(event, now_ms)


class TakesAnything(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


class Stubborn(Cutter):
    """Works on to the end, whoever calls."""

    def run(self, payload: CutWork, emit: Callable[[Piece], None], cancelled: Callable[[], bool]) -> None:
        super().run(payload, emit, lambda: False)


def faulty(session: type[EchoSession] = EchoSession, **changes: Any) -> ModelConformance:
    """The suite, about echo with a fault."""

    def create(context: SessionContext) -> EchoSession:
        return session(context)

    class Suite(ModelConformance):
        spec: ClassVar[ModelSpec] = dataclasses.replace(ECHO, create_session=create, **changes)
        plugin = "duplex_core.testing.echo.plugin"
        tool_request = 'call lookup {"word": "gudgeon"}'

    return Suite()


def host_of(suite: ModelConformance) -> StageHost:
    return StageHost(suite.spec.stage_plan(suite.checkpoint(), suite.deploy()))


@pytest.mark.parametrize(
    ("fault", "test", "complaint"),
    [
        (EndsTwice, "test_every_answer_ends_once_and_under_its_own_fence", "ended 2 times"),
        (NeverListens, "test_silence_that_is_committed_ends_in_one_response", "nothing more will happen"),
        (DeafToFailure, "test_a_failing_stage_fails_the_answer_alone", "nothing more will happen"),
        (WildMarks, "test_marks_stay_within_the_answer", "outside of a transcript"),
        (BadJson, "test_a_tool_is_called_and_its_result_used", "not JSON|Unterminated|Expecting"),
        (SingsInChat, "test_chat_is_answered_in_writing", "made sound"),
        (SpeaksUnasked, "test_silence_opens_no_turn", "silence was answered"),
        (Remembers, "test_sessions_share_nothing", "went differently"),
        (LosesItsTimer, "test_committed_speech_is_answered_in_speech", "nothing more will happen"),
        (StopsAnswering, "test_what_was_not_heard_is_not_history", "nothing more will happen"),
    ],
)
def test_a_faulty_session_fails(fault: type[EchoSession], test: str, complaint: str) -> None:
    suite = faulty(fault)
    with pytest.raises((AssertionError, ValueError), match=complaint):
        getattr(suite, test)(host_of(suite))


@pytest.mark.parametrize("fault", [TalksOn, InterruptedTurnGoesOn, StopsAnswering])
def test_an_answer_that_is_not_over_when_it_is_stopped_fails(fault: type[EchoSession]) -> None:
    suite = faulty(fault)
    with pytest.raises(AssertionError):
        suite.test_it_can_be_stopped_at_every_point(host_of(suite), OutputAudioBufferClear)


def test_options_that_take_anything_fail() -> None:
    suite = faulty(IgnoresOptions, options_model=TakesAnything)
    with pytest.raises(AssertionError, match="no_such_option"):
        suite.test_bad_options_are_refused_by_name_and_change_nothing(host_of(suite))


def test_a_worker_that_cannot_be_stopped_fails() -> None:
    plan = StagePlan(stages=(StageSpec(name="cut", factory=f"{__name__}:Stubborn"),))
    suite = faulty(stage_plan=lambda checkpoint, deploy: plan)
    with pytest.raises(AssertionError, match="after it was told to stop"):
        suite.test_a_worker_stops_soon_after_it_is_told_to(host_of(suite))


def test_a_heavy_plugin_fails() -> None:
    suite = faulty()
    type(suite).heavy = frozenset({"pydantic"})
    with pytest.raises(AssertionError, match="pydantic"):
        suite.test_the_plugin_is_light()


def test_a_turn_within_a_turn_is_the_models_fault() -> None:
    class Nested(Faulty):
        def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
            if isinstance(output, Speak):
                return (output, BeginTurn(fence=output.fence.next_turn()))
            return (output,)

    suite = faulty(Nested)
    with pytest.raises(ModelFault):
        suite.test_committed_speech_is_answered_in_speech(host_of(suite))


def test_echo_without_a_fault_passes_the_same_tests() -> None:
    suite = faulty()
    host = host_of(suite)
    suite.test_committed_speech_is_answered_in_speech(host)
    suite.test_sessions_share_nothing(host)
    suite.test_it_can_be_stopped_at_every_point(host, OutputAudioBufferClear)
