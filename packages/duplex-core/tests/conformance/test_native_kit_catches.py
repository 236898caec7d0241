"""The suite's part for models that take their turns fails where it should: native with one fault, and the test for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from duplex_core.machine.output import ModelFault
from duplex_core.model import (
    Abort,
    BeginTurn,
    Deadline,
    EndTurn,
    InputCommitted,
    Interrupted,
    Listen,
    ModelInput,
    ModelOutput,
    Respond,
    Speak,
    Submit,
    WakeAt,
)
from duplex_core.spec import ModelSpec, SessionContext
from duplex_core.stages import StageOutput
from duplex_core.testing.conformance import ModelConformance
from duplex_core.testing.native import NATIVE
from duplex_core.testing.native.decision import Thought
from duplex_core.testing.native.session import NativeSession
from duplex_core.testing.native.stage import THINKER, Unit
from duplex_core.testing.stages import StageHost
from duplex_core.testing.suite.base import FORCED_UNITS


class Faulty(NativeSession):
    """Native whose inputs and outputs a fault may change."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        return [changed for output in super().handle(event, now_ms) for changed in self.change(output)]

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        return (output,)


class NeverTells(Faulty):
    """Listens and tells nobody, so that who asked waits for ever."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        return () if isinstance(output, Listen) else (output,)


class TellsTwice(Faulty):
    """Tells of each unit twice."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        return (output, output) if isinstance(output, Listen) else (output,)


class TellsUnderAnOldFence(Faulty):
    """Tells of the unit that was asked about as if it had been cut before the question."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        if isinstance(output, Listen) and output.fence.turn:
            old = msgspec.structs.replace(output.fence, turn=output.fence.turn - 1)
            return (msgspec.structs.replace(output, fence=old),)
        return (output,)


class WaitsForAudio(Faulty):
    """Sets no timer, so that it stops with the microphone."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        return () if isinstance(output, WakeAt) else (output,)


class NeverRests(Faulty):
    """Sets its timer again and again, whoever is there."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        answer = super().handle(event, now_ms)
        return [*answer, WakeAt(key="unit", at_ms=now_ms + 1000.0)] if isinstance(event, Deadline) else answer


class AnswersCommits(Faulty):
    """Takes a commit for a question, and answers once more."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if not isinstance(event, InputCommitted):
            return super().handle(event, now_ms)
        fence = event.fence.next_turn()
        self._fence = fence
        said = (BeginTurn(fence=fence), Speak(fence=fence, text="Yes?"), EndTurn(fence=fence))
        return (*said, *super().handle(event, now_ms))


class WaitsForTheWholeUnit(Faulty):
    """Leaves the tail of what was committed until more comes."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        return () if isinstance(event, InputCommitted) else super().handle(event, now_ms)


class TakesItsOwnTurnAllTheSame(Faulty):
    """Forgets the response that was opened for it, and begins another one."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        answer = super().handle(event, now_ms)
        if isinstance(event, Respond):
            self._asked = False
        return answer


class ListensToNobody(Faulty):
    """Feeds no unit as one that must be listened to."""

    def change(self, output: ModelOutput) -> Sequence[ModelOutput]:
        if isinstance(output, Submit) and isinstance(output.request.payload, Unit):
            unit = output.request.payload
            free = msgspec.structs.replace(unit, orders=msgspec.structs.replace(unit.orders, forced=False))
            return (Submit(request=msgspec.structs.replace(output.request, payload=free)),)
        return (output,)


class DropsWhatIsStale(Faulty):
    """Throws the thinker's stale outputs away, and with them the count of what its cache holds."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        stale = isinstance(event, StageOutput) and not self._fence.admits(event.fence)
        if stale and isinstance(event, StageOutput) and isinstance(event.payload, Thought):
            event = msgspec.structs.replace(event, payload=None)
        return super().handle(event, now_ms)


class StopsListening(Faulty):
    """Aborts the unit under way when it is interrupted."""

    after: ClassVar[type[ModelInput]] = Interrupted

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        answer = super().handle(event, now_ms)
        cut = self._thinking
        if not isinstance(event, self.after) or cut is None:
            return answer
        self._thinking, self._taken_in = None, self._taken_in - 1
        return (*answer, Abort(stage=THINKER, request_id=f"{THINKER}-{cut.serial}"))


class LosesACommit(StopsListening):
    """Aborts the unit that holds the tail of a commit."""

    after = InputCommitted


def faulty(session: type[NativeSession]) -> ModelConformance:
    """The suite, about native with a fault."""

    def create(context: SessionContext) -> NativeSession:
        return session(context)

    class Suite(ModelConformance):
        spec: ClassVar[ModelSpec] = dataclasses.replace(NATIVE, create_session=create)
        plugin = "duplex_core.testing.native.plugin"
        unit_ms = 1000.0
        listens_first: ClassVar[Mapping[str, Any]] = {"forced_listen": FORCED_UNITS}

    return Suite()


def host_of(suite: ModelConformance) -> StageHost:
    return StageHost(suite.spec.stage_plan(suite.checkpoint(), suite.deploy()))


FAULTS: list[tuple[type[NativeSession], Callable[[ModelConformance, StageHost], None], str]] = [
    (NeverTells, ModelConformance.test_each_unit_is_told_of_once, "0 units of silence"),
    (NeverTells, ModelConformance.test_a_question_about_nothing_ends_once, "nothing more will happen"),
    (NeverTells, ModelConformance.test_a_commit_of_silence_ends_in_listening, "nothing more will happen"),
    (TellsTwice, ModelConformance.test_each_unit_is_told_of_once, "8 units of silence"),
    (TellsUnderAnOldFence, ModelConformance.test_a_question_about_nothing_ends_once, "nothing more will happen"),
    (WaitsForAudio, ModelConformance.test_it_goes_on_when_the_microphone_stops, "nothing more will happen"),
    (NeverRests, ModelConformance.test_it_goes_on_when_the_microphone_stops, "still waits"),
    (AnswersCommits, ModelConformance.test_a_commit_is_no_question, "more than once"),
    (WaitsForTheWholeUnit, ModelConformance.test_a_commit_of_silence_ends_in_listening, "left to fill up"),
    (ListensToNobody, ModelConformance.test_what_it_is_made_to_listen_to_is_not_answered, "was answered"),
    (ListensToNobody, ModelConformance.test_after_an_interruption_it_listens_on, "is to be listened to"),
    (StopsListening, ModelConformance.test_after_an_interruption_it_listens_on, "not what understands the user"),
    (LosesACommit, ModelConformance.test_a_commit_is_no_question, "came to no end"),
]


@pytest.mark.parametrize(("fault", "test", "complaint"), FAULTS)
def test_a_faulty_session_fails(
    fault: type[NativeSession], test: Callable[[ModelConformance, StageHost], None], complaint: str
) -> None:
    suite = faulty(fault)
    with pytest.raises(AssertionError, match=complaint):
        test(suite, host_of(suite))


def test_a_second_response_for_one_question_is_the_models_fault() -> None:
    suite = faulty(TakesItsOwnTurnAllTheSame)
    with pytest.raises(ModelFault, match="a turn begins while"):
        suite.test_a_question_is_answered_once(host_of(suite))


def test_a_count_that_is_lost_at_an_interruption_is_noticed() -> None:
    suite = faulty(DropsWhatIsStale)
    with pytest.raises(ValueError, match="one was lost on the way"):
        suite.test_after_an_interruption_it_listens_on(host_of(suite))


def test_native_without_a_fault_passes_the_same_tests() -> None:
    suite = faulty(NativeSession)
    host = host_of(suite)
    for _, test, _ in FAULTS:
        test(suite, host)
