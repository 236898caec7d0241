"""What a client may say of one answer, or of all: instructions and a limit of tokens, down to the units; over stages on paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from duplex_core import model as m
from duplex_core.commands import ConversationItemCreate, ResponseCreate, SessionUpdate
from duplex_core.config import FunctionTool, Modality, ToolMode
from duplex_core.errors import ErrorCode
from duplex_core.events import (
    ErrorEvent,
    OutputTranscriptDelta,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    StatusReason,
)
from duplex_core.fence import Fence
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.patch import ResponseParams, SessionPatch
from duplex_core.spec import Checkpoint, SessionContext
from duplex_core.stages import Lane, StageRequest
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.speech import burst, silence
from model_minicpmo.payloads import Decided, Unit
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.rules.limit import ends_turn, tokens_left
from model_minicpmo.session import MiniCPMOSession
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.paper import Paper, PaperHost

(SPEC,) = duplex_register_models()
SECOND = silence(1000.0, 16_000)
WHOLE = "1 of 3. 2 of 3. 3 of 3."
"""What the stages on paper say in a turn: three units of three tokens each."""


class Talk:
    """One conversation over stages on paper, silent but for what a test does."""

    def __init__(self, **settings: Any) -> None:
        self.host = PaperHost()
        deploy = MiniCPMOSettings(**settings)
        config = msgspec.structs.replace(SPEC.session_config(deploy), turn_detection=None)
        self.driver = ConversationDriver(SPEC, deploy=deploy, config=config, host=self.host)

    def units(self) -> list[Unit]:
        return [payload for _, payload in self.host.paper.given if isinstance(payload, Unit)]

    def texts(self) -> list[str]:
        return [unit.orders.text for unit in self.units() if unit.orders.text]

    def write(self, text: str) -> None:
        item = MessageItem(role=Role.USER, content=(InputText(text=text),))
        self.driver.send(ConversationItemCreate(item=item))

    def answer(self, **params: Any) -> ResponseDone:
        done = len(self.driver.all_of(ResponseDone))
        self.driver.send(ResponseCreate(response=ResponseParams(**params)))
        return self.driver.wait_for(ResponseDone, count=done + 1)

    def said(self, done: ResponseDone) -> str:
        deltas = self.driver.all_of(OutputTranscriptDelta)
        return "".join(each.delta for each in deltas if each.response_id == done.response.id)


def reason(done: ResponseDone) -> StatusReason | None:
    assert done.response.status_details is not None
    return done.response.status_details.reason


# -- instructions ------------------------------------------------------------------------------------------------------


def test_an_answer_s_own_instructions_are_taken_in_with_the_unit_that_answers_and_no_other() -> None:
    talk = Talk()
    talk.driver.stream(SECOND)
    assert talk.answer(instructions="Greet the user.").response.status is ResponseStatus.COMPLETED
    assert talk.texts() == ["Greet the user."]
    (asked,) = [unit.orders for unit in talk.units() if unit.orders.text]
    assert asked.asked
    talk.answer()
    talk.driver.stream(SECOND)
    assert talk.texts() == ["Greet the user."]


def test_they_stand_before_what_was_written_since() -> None:
    talk = Talk()
    talk.write("Is anybody there?")
    talk.answer(instructions="Answer in Dutch.")
    assert talk.texts() == ["Answer in Dutch.\nIs anybody there?"]


@pytest.mark.parametrize("own", ["", MiniCPMOSettings().instructions])
def test_those_that_say_nothing_new_are_not_taken_in(own: str) -> None:
    talk = Talk()
    talk.answer(instructions=own)
    assert talk.texts() == []


# -- a limit of tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "text", "whole"),
    [(1, "1", False), (3, "1 of 3.", False), (4, "1 of 3. 2", False), (9, WHOLE, True), (10, WHOLE, True)],
)
def test_an_answer_ends_with_as_many_tokens_as_it_may_have(limit: int, text: str, whole: bool) -> None:
    talk = Talk()
    done = talk.answer(max_output_tokens=limit)
    assert talk.said(done).strip() == text
    assert done.response.usage is not None
    assert done.response.usage.output_tokens == min(limit, 9)
    if whole:
        assert done.response.status is ResponseStatus.COMPLETED
    else:
        assert (done.response.status, reason(done)) == (
            ResponseStatus.INCOMPLETE,
            StatusReason.MAX_OUTPUT_TOKENS,
        )
    for _ in range(4):
        talk.driver.stream(SECOND)
    assert len(talk.driver.all_of(ResponseCreated)) == 1, "the model has closed its turn and does not go on"
    assert not any(unit.orders.forced for unit in talk.units()), "nothing of what is heard is lost to that"
    assert talk.said(talk.answer()).strip() == WHOLE


def test_the_session_s_limit_holds_for_turns_that_the_model_takes_and_an_answer_s_own_for_that_answer() -> None:
    talk = Talk()
    talk.driver.stream(SECOND)
    talk.driver.send(SessionUpdate(session=SessionPatch(max_output_tokens=4)))
    talk.driver.stream(burst(1000.0, 16_000) + SECOND * 3)
    own = talk.driver.wait_for(ResponseDone)
    assert (talk.said(own), reason(own)) == ("1 of 3. 2", StatusReason.MAX_OUTPUT_TOKENS)
    assert talk.said(talk.answer(max_output_tokens=2)).strip() == "1 of"
    assert talk.said(talk.answer(max_output_tokens="inf")).strip() == WHOLE
    assert talk.said(talk.answer()) == "1 of 3. 2"


def submitted(outputs: Any) -> list[Unit]:
    given = [each.request.payload for each in outputs if isinstance(each, m.Submit)]
    return [each for each in given if isinstance(each, Unit)]


def test_a_unit_that_was_under_way_when_the_answer_was_asked_for_may_say_too_much_and_the_next_says_nothing() -> None:
    config = SPEC.session_config(MiniCPMOSettings())
    context = SessionContext(
        session_id="s", config=config, deploy=MiniCPMOSettings(), checkpoint=Checkpoint(name="minicpmo")
    )
    session = MiniCPMOSession(context)
    fence = Fence(session_id="s")
    session.handle(m.Configured(config=config, fence=fence), 0.0)
    (first,) = submitted(session.handle(m.AudioArrived(pcm=SECOND, start_ms=0.0, fence=fence), 0.0))
    assert first.orders.most_tokens is None
    limited = msgspec.structs.replace(config, max_output_tokens=2)
    respond = m.Respond(
        response_id="r", fence=fence.next_turn(), config=limited, history=(), cause=m.ResponseCause.CLIENT
    )
    assert not submitted(session.handle(respond, 0.0))
    asked = StageRequest(stage="senses", request_id="unit-1", fence=fence, lane=Lane.INPUT, payload=first)
    decided = Decided(number=0, listens=False, text="One two three", tokens=3)
    outputs = session.handle(asked.output(decided), 0.0)
    assert [each.text for each in outputs if isinstance(each, m.Speak)] == ["One two three"]
    (second,) = submitted(outputs)
    assert second.orders.most_tokens == 0
    session.handle(asked.output(final=True), 0.0)
    next_one = msgspec.structs.replace(asked, request_id="unit-2", payload=second)
    session.handle(next_one.output(Decided(number=1, listens=False, ends_turn=True, cut=True)), 0.0)
    (end,) = session.handle(next_one.output(final=True), 0.0)
    assert isinstance(end, m.EndTurn)
    assert (end.reason, end.usage.output_tokens) == (m.StopReason.MAX_TOKENS, 3)


def test_a_turn_that_the_model_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model on paper goes on for as long as it may, without a word."""

    def endless(paper: Paper, session_id: str, unit: Unit, emit: Callable[[Any], None]) -> None:
        over = unit.orders.most_tokens == 0
        emit(Decided(number=unit.orders.number, listens=False, ends_turn=over, cut=over))

    monkeypatch.setattr(Paper, "_unit", endless)
    talk = Talk(turn_units=5)
    done = talk.answer()
    assert reason(done) is StatusReason.MAX_OUTPUT_TOKENS
    assert [unit.orders.most_tokens for unit in talk.units()] == [None] * 5 + [0]
    talk.answer(max_output_tokens=50)
    assert [unit.orders.most_tokens for unit in talk.units()[6:]] == [50] * 5 + [0]


def test_the_limit_rule() -> None:
    assert [tokens_left(None, 7), tokens_left(5, 3), tokens_left(5, 5), tokens_left(5, 9)] == [None, 2, 0, 0]
    assert [tokens_left(limit, 1, units=7, most_units=most) for limit in (None, 5) for most in (7, 8)] == [
        0,
        None,
        0,
        4,
    ]
    assert [ends_turn(None, 99), ends_turn(3, 2), ends_turn(3, 3), ends_turn(0, 0)] == [False, False, True, True]


# -- what cannot be honoured -------------------------------------------------------------------------------------------

LOOKUP = FunctionTool(name="lookup")


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"output_modalities": [Modality.TEXT]}, "response.output_modalities"),
        ({"modalities": [Modality.TEXT]}, "response.modalities"),
        ({"tools": [LOOKUP]}, "response.tools"),
        ({"conversation": "none"}, "response.conversation"),
        ({"input": ()}, "response.input"),
        ({"prompt": {"id": "p"}}, "response.prompt"),
        ({"reasoning": {"effort": "low"}}, "response.reasoning"),
    ],
)
def test_what_an_answer_cannot_have_is_refused_by_name(params: dict[str, Any], named: str) -> None:
    talk = Talk()
    talk.driver.send(ResponseCreate(response=ResponseParams(**params)))
    refusal = talk.driver.wait_for(ErrorEvent).error
    assert (refusal.code, refusal.param) == (ErrorCode.UNSUPPORTED_PARAMETER, named)
    assert not talk.driver.all_of(ResponseCreated)


@pytest.mark.parametrize(
    ("patch", "named"),
    [
        ({"instructions": "Be somebody else."}, "session.instructions"),
        ({"options": {"greedy": True}}, "session.options"),
        ({"output_modalities": [Modality.TEXT]}, "session.output_modalities"),
        ({"tools": [LOOKUP]}, "session.tools"),
        ({"speed": 1.2}, "session.speed"),
        ({"include": ["item.input_audio_transcription.logprobs"]}, "session.include"),
        ({"truncation": "disabled"}, "session.truncation"),
    ],
)
def test_what_a_session_that_has_begun_cannot_change_or_have_is_refused_by_name(
    patch: dict[str, Any], named: str
) -> None:
    talk = Talk()
    talk.driver.stream(SECOND)
    before = talk.units()[-1].orders
    talk.driver.send(SessionUpdate(session=SessionPatch(max_output_tokens=3, **patch)))
    refusal = talk.driver.wait_for(ErrorEvent).error
    assert (refusal.code, refusal.param) == (ErrorCode.UNSUPPORTED_PARAMETER, named)
    talk.driver.stream(SECOND)
    assert talk.units()[-1].orders.most_tokens is before.most_tokens is None, "nothing of the update holds"


def test_a_tool_cannot_be_demanded_where_there_is_none() -> None:
    talk = Talk()
    talk.driver.send(ResponseCreate(response=ResponseParams(tool_choice=ToolMode.REQUIRED)))
    refusal = talk.driver.wait_for(ErrorEvent).error
    assert (refusal.code, refusal.param) == (ErrorCode.INVALID_VALUE, "response.tool_choice")
