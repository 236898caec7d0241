"""What the stages did stands in the answer that it was done for, once, whatever became of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from duplex_core import commands as c
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    OutputAudioDelta,
    ResponseCreated,
    ResponseDone,
    ResponseMetrics,
    ResponseStatus,
)
from duplex_core.fence import Fence
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.machine.spending import Spending
from duplex_core.stage_metrics import merged
from duplex_core.stages import Lane, StageMetrics, StageReply, StageRequest
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.echo import ECHO
from duplex_core.testing.examples import EVENT_EXAMPLES


def asked(request_id: str, turn: int, lane: Lane = Lane.OUTPUT, stage: str = "thinker") -> StageRequest:
    fence = Fence(session_id="sess_1", turn=turn)
    return StageRequest(stage=stage, request_id=request_id, fence=fence, lane=lane, payload=None)


def ended(request: StageRequest, failed: bool = False, **metrics: Any) -> StageReply:
    told = (StageMetrics(stage=request.stage, **metrics),)
    if failed:
        return request.failed(error(ErrorCode.ENGINE_ERROR, "no words"), metrics=told)
    return request.output(final=True, metrics=told)


class Answers:
    """Opens and ends answers by hand; ``known`` says what is known of open requests, by id."""

    def __init__(self, known: Mapping[str, StageMetrics] | None = None) -> None:
        self.spending = Spending(lambda request: (known[request.request_id],) if known else ())

    def opens(self, turn: int, now_ms: float) -> None:
        example = EVENT_EXAMPLES["response.created"]
        assert isinstance(example, ResponseCreated)
        self.spending.complete(ResponseCreated(response=example.response, turn_id=turn), now_ms)

    def ends(self, turn: int, now_ms: float) -> tuple[StageMetrics, ...]:
        example = EVENT_EXAMPLES["response.done"]
        assert isinstance(example, ResponseDone)
        bare = ResponseMetrics(
            first_output_ms=None, first_audio_ms=None, total_ms=1.0, output_tokens=None, ms_per_output_token=None
        )
        event = ResponseDone(response=example.response, turn_id=turn, metrics=bare)
        told = self.spending.complete(event, now_ms)
        assert isinstance(told, ResponseDone)
        assert told.metrics is not None
        return told.metrics.stages


@pytest.mark.parametrize("failed", [False, True])
def test_work_for_an_answer_counts_from_its_opening(failed: bool) -> None:
    answers = Answers()
    answers.opens(1, 1000.0)
    first, second = asked("r1", 1), asked("r2", 1, stage="talker")
    answers.spending.submitted(first, 1010.0)
    answers.spending.submitted(second, 1050.0)
    answers.spending.ended(ended(second, total_ms=30.0, steps=3))
    answers.spending.ended(ended(first, failed, first_ms=20.0, total_ms=90.12345))
    assert answers.ends(1, 1100.0) == (
        StageMetrics(stage="thinker", begun_ms=10.0, first_ms=20.0, total_ms=90.123),
        StageMetrics(stage="talker", begun_ms=50.0, total_ms=30.0, steps=3),
    )
    answers.opens(2, 2000.0)
    assert answers.ends(2, 2001.0) == (), "and it is told once"


def test_work_that_is_open_at_the_end_is_told_as_far_as_it_is_known_and_not_again() -> None:
    answers = Answers({"r1": StageMetrics(stage="thinker", first_ms=5.0, total_ms=60.0, whole=False)})
    answers.opens(1, 0.0)
    request = asked("r1", 1)
    answers.spending.submitted(request, 10.0)
    assert answers.ends(1, 70.0) == (
        StageMetrics(stage="thinker", begun_ms=10.0, first_ms=5.0, total_ms=60.0, whole=False),
    )
    answers.opens(2, 80.0)
    answers.spending.ended(ended(request, total_ms=999.0))
    assert answers.ends(2, 90.0) == ()


def test_work_begun_ahead_belongs_to_the_answer_that_it_was_begun_for() -> None:
    """At a pause of the user's, an answer is begun under the turn before; another one was thrown away when they went on."""
    thrown = StageMetrics(stage="thinker", total_ms=40.0, whole=False)
    answers = Answers({"thrown away": thrown})
    given_up, wanted = asked("thrown away", 0), asked("wanted", 0)
    answers.spending.submitted(given_up, 700.0)
    answers.spending.stopped([given_up], by_model=True)
    answers.spending.submitted(wanted, 900.0)
    answers.opens(1, 1000.0)
    answers.spending.ended(ended(wanted, first_ms=80.0, total_ms=150.0))
    assert answers.ends(1, 1060.0) == (StageMetrics(stage="thinker", begun_ms=-100.0, first_ms=80.0, total_ms=150.0),)


def test_what_the_model_stops_counts_for_the_answer_under_whose_turn_it_was_asked_for() -> None:
    """The model drops an answer that it had begun ahead, when the one that is wanted is open already, and a clause of that."""
    stopped = {name: StageMetrics(stage=name, total_ms=40.0, whole=False) for name in ("ahead", "clause")}
    answers = Answers(stopped)
    ahead, clause = asked("ahead", 0), asked("clause", 1)
    answers.spending.submitted(ahead, 900.0)
    answers.opens(1, 1000.0)
    answers.spending.submitted(clause, 1000.0)
    answers.spending.stopped([ahead, clause], by_model=True)
    assert [each.stage for each in answers.ends(1, 1100.0)] == ["clause"]


def test_hearing_is_no_part_of_an_answer_before_it_and_after_it() -> None:
    answers = Answers()
    heard = [asked(f"unit {number}", turn, Lane.INPUT) for number, turn in enumerate((0, 1, 1))]
    for number, request in enumerate(heard):
        if number == 1:
            answers.opens(1, 1000.0)
        answers.spending.submitted(request, 1000.0 * number)
        answers.spending.ended(ended(request, total_ms=50.0))
        if number == 1:
            (unit,) = answers.ends(1, 1200.0)
            assert unit.begun_ms == 0.0
    answers.opens(2, 4000.0)
    assert answers.ends(2, 4100.0) == ()


def test_what_is_kept_does_not_grow_with_the_work() -> None:
    answers = Answers()
    answers.opens(1, 0.0)
    for number in range(500):
        request = asked(f"r{number}", 1, Lane.INPUT if number % 2 else Lane.OUTPUT)
        answers.spending.submitted(request, 10.0 * number)
        answers.spending.ended(ended(request, total_ms=10.0, steps=1))
    assert sum(map(len, answers.spending._done.values())) == 2
    (all_of_it,) = answers.ends(1, 5000.0)
    assert (all_of_it.steps, all_of_it.begun_ms, all_of_it.total_ms) == (500, 0.0, 5000.0)


def test_pieces_of_a_stages_work_become_one_from_the_first_ones_beginning_to_the_last_ones_end() -> None:
    pieces = [
        StageMetrics(stage="talker", begun_ms=50.0, queue_ms=5.0, total_ms=20.0, output_tokens=1, deadline_misses=1),
        StageMetrics(
            stage="talker", begun_ms=20.0, queue_ms=4.0, first_ms=9.0, total_ms=10.0, output_tokens=3, ms_per_token=2.0
        ),
        StageMetrics(stage="thinker", begun_ms=30.0, preemptions=2),
        StageMetrics(
            stage="talker", begun_ms=60.0, first_ms=3.0, total_ms=5.0, output_tokens=9, ms_per_token=7.0, whole=False
        ),
    ]
    assert merged(pieces) == (
        StageMetrics(
            stage="talker",
            begun_ms=20.0,
            queue_ms=4.0,
            first_ms=9.0,
            total_ms=50.0,
            output_tokens=13,
            ms_per_token=6.0,
            deadline_misses=1,
            whole=False,
        ),
        StageMetrics(stage="thinker", begun_ms=30.0, preemptions=2),
    )
    assert merged([]) == ()


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_whole_conversation_has_them(interrupted: bool) -> None:
    driver = ConversationDriver(ECHO, ms_per_piece=25.0)
    text = MessageItem(role=Role.USER, content=(InputText(text="one two three four five six seven eight"),))
    driver.send(c.ConversationItemCreate(item=text), c.ResponseCreate())
    if interrupted:
        driver.wait_for(OutputAudioDelta)
        driver.send(c.ResponseCancel())
    done = driver.wait_for(ResponseDone)
    assert done.response.status is (ResponseStatus.CANCELLED if interrupted else ResponseStatus.COMPLETED)
    assert done.metrics is not None
    (cut,) = done.metrics.stages
    assert (cut.stage, cut.begun_ms, cut.first_ms, cut.whole) == ("cut", 0.0, 25.0, not interrupted)
    assert cut.total_ms <= done.metrics.total_ms
    driver.close()
