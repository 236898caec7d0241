"""Tool calls: streamed, several at once, cut off, and answered."""

from __future__ import annotations

import pytest

from duplex_core import commands as c
from duplex_core import events as e
from duplex_core import model as m
from duplex_core.config import FunctionTool, ServerVad, ToolFunction, ToolMode
from duplex_core.errors import ErrorCode
from duplex_core.events import (
    FunctionArgumentsDelta,
    FunctionArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    ResponseDone,
)
from duplex_core.items import FunctionCallItem, FunctionCallOutputItem, ItemStatus
from duplex_core.machine.io import Step
from duplex_core.machine.output import ModelFault
from duplex_core.patch import ItemReference, ResponseParams, SessionPatch
from tests.support.machines import Bench, kinds, said, told


def calling() -> Bench:
    bench = Bench(capabilities={"tools": True})
    bench.ask("What time is it?")
    return bench


def call(bench: Bench, call_id: str, arguments: str, *, final: bool = False, name: str = "clock") -> Step:
    decision = m.ToolCall(fence=bench.fence, call_id=call_id, name=name, arguments=arguments, final=final)
    return bench.do(decision)


def output(call_id: str, text: str = "noon") -> c.ConversationItemCreate:
    return c.ConversationItemCreate(item=FunctionCallOutputItem(call_id=call_id, output=text))


def test_a_call_in_two_pieces() -> None:
    bench = calling()
    assert kinds(call(bench, "c1", '{"zone":').events) == ["OutputItemAdded", "ItemAdded", "FunctionArgumentsDelta"]
    assert kinds(call(bench, "c1", '"UTC"}').events) == ["FunctionArgumentsDelta"]
    assert kinds(call(bench, "c1", "", final=True).events) == ["FunctionArgumentsDone", "OutputItemDone", "ItemDone"]
    bench.end()
    done = bench.only(FunctionArgumentsDone)
    assert (done.call_id, done.name, done.arguments) == ("c1", "clock", '{"zone":"UTC"}')
    item = bench.history[-1]
    assert isinstance(item, FunctionCallItem)
    assert (item.call_id, item.arguments, item.status) == ("c1", '{"zone":"UTC"}', ItemStatus.COMPLETED)
    assert bench.only(ResponseDone).response.output == [item]


def test_several_calls_at_once_are_kept_apart() -> None:
    bench = calling()
    call(bench, "c1", '{"a":')
    call(bench, "c2", '{"b":')
    call(bench, "c1", "1}", final=True)
    call(bench, "c2", "2}", final=True)
    bench.end()
    assert [(event.call_id, event.arguments) for event in bench.of(FunctionArgumentsDone)] == [
        ("c1", '{"a":1}'),
        ("c2", '{"b":2}'),
    ]
    assert [event.output_index for event in bench.of(OutputItemAdded)] == [0, 1]
    assert "".join(event.delta for event in bench.of(FunctionArgumentsDelta) if event.call_id == "c2") == '{"b":2}'


def test_words_beside_a_call() -> None:
    bench = calling()
    bench.speak("Let me see.", ms=500)
    call(bench, "c1", "{}", final=True)
    bench.speak(" One moment.", ms=500)
    bench.end()
    assert [event.output_index for event in bench.of(OutputItemDone)] == [1, 0]
    assert kinds(bench.only(ResponseDone).response.output) == ["MessageItem", "FunctionCallItem"]


def test_an_interrupted_call_is_incomplete_and_nobody_is_told_of_it() -> None:
    bench = calling()
    call(bench, "c1", '{"zone":')
    bench.do(c.ResponseCancel())
    assert bench.only(FunctionArgumentsDone).arguments == '{"zone":'
    assert bench.only(OutputItemDone).item.status is ItemStatus.INCOMPLETE
    assert kinds(bench.history) == ["MessageItem"]
    bench.refused_with(ErrorCode.INVALID_VALUE, output("c1"), "item.call_id")


def test_a_whole_call_survives_the_interruption_of_its_answer() -> None:
    bench = calling()
    call(bench, "c1", "{}", final=True)
    call(bench, "c2", '{"half')
    bench.do(c.ResponseCancel())
    bench.do(output("c1"))
    assert kinds(bench.history) == ["MessageItem", "FunctionCallItem", "FunctionCallOutputItem"]


def test_outputs_are_joined_by_call_id_in_whatever_order() -> None:
    bench = calling()
    call(bench, "c1", "{}", final=True)
    call(bench, "c2", "{}", final=True)
    bench.end()
    for call_id, text in (("c2", "two"), ("c1", "one")):
        step = bench.do(output(call_id, text))
        (result,) = told(step.effects, m.ToolResult)
        assert (result.item.call_id, result.item.output) == (call_id, text)
        assert not told(step.effects, m.HistoryChanged)
    bench.do(c.ResponseCreate())
    history = bench.told(m.Respond)[-1].history
    results = [(item.call_id, item.output) for item in history if isinstance(item, FunctionCallOutputItem)]
    assert results == [("c2", "two"), ("c1", "one")]


def test_outputs_that_belong_to_nothing_are_refused() -> None:
    bench = calling()
    bench.refused_with(ErrorCode.CALL_NOT_FOUND, output("c9"), "item.call_id")
    call(bench, "c1", "{")
    bench.refused_with(ErrorCode.INVALID_VALUE, output("c1"), "item.call_id")
    call(bench, "c1", "}", final=True)
    bench.do(output("c1"))
    bench.refused_with(ErrorCode.INVALID_VALUE, output("c1"), "item.call_id")


def test_a_call_that_ended_cannot_begin_again() -> None:
    bench = calling()
    call(bench, "c1", "{}", final=True)
    with pytest.raises(ModelFault, match="'c1' already"):
        call(bench, "c1", "{}")
    bench = calling()
    call(bench, "c1", "{}", final=True)
    bench.end()
    bench.do(c.ResponseCreate())
    with pytest.raises(ModelFault, match="'c1' already"):
        call(bench, "c1", "{}", final=True)


def test_a_call_that_was_not_ended_is_incomplete_however_the_answer_ends() -> None:
    bench = calling()
    call(bench, "c1", '{"zone":')
    bench.end()
    assert bench.only(OutputItemDone).item.status is ItemStatus.INCOMPLETE
    assert kinds(bench.history) == ["MessageItem"]
    bench.refused_with(ErrorCode.INVALID_VALUE, output("c1"), "item.call_id")


def test_a_call_of_the_clients_own_making() -> None:
    bench = calling()
    bench.end()
    bench.do(c.ConversationItemCreate(item=FunctionCallItem(name="f", arguments="{}", call_id="mine")))
    bench.do(c.ConversationItemCreate(item=FunctionCallItem(name="g", arguments="{}")))
    bench.do(output("mine"))
    calls = [item for item in bench.history if isinstance(item, FunctionCallItem)]
    assert all(item.call_id for item in calls)
    double = c.ConversationItemCreate(item=FunctionCallItem(name="f", arguments="{}", call_id="mine"))
    bench.refused_with(ErrorCode.INVALID_VALUE, double, "item.call_id")


def test_an_output_without_its_call_is_not_told() -> None:
    bench = calling()
    call(bench, "c1", "{}", final=True)
    bench.end()
    bench.do(output("c1"))
    bench.do(c.ConversationItemDelete(item_id=bench.history[1].id or ""))
    assert kinds(bench.history) == ["MessageItem"]


def test_given_input_may_hold_a_call_with_its_output() -> None:
    bench = Bench(capabilities={"tools": True})
    given = (
        said("Time?"),
        FunctionCallItem(name="clock", arguments="{}", call_id="g1"),
        FunctionCallOutputItem(call_id="g1", output="noon"),
    )
    bench.do(c.ResponseCreate(response=ResponseParams(conversation="none", input=given)))
    assert kinds(bench.told(m.Respond)[0].history) == ["MessageItem", "FunctionCallItem", "FunctionCallOutputItem"]
    bench.end()
    lonely = (FunctionCallOutputItem(call_id="g2", output="noon"),)
    command = c.ResponseCreate(response=ResponseParams(input=lonely))
    bench.refused_with(ErrorCode.CALL_NOT_FOUND, command, "response.input[0].call_id")
    unknown = c.ResponseCreate(response=ResponseParams(input=(said("a"), ItemReference(id="item_x"))))
    bench.refused_with(ErrorCode.ITEM_NOT_FOUND, unknown, "response.input[1].id")


CLOCK = FunctionTool(name="clock", parameters={"type": "object"})


def called(*, create_response: bool = True) -> Bench:
    """A session whose model has called `clock`, and whose user has begun to speak."""
    vad = ServerVad(create_response=create_response, silence_duration_ms=500)
    bench = Bench(vad=vad, capabilities={"tools": True}, tools=(CLOCK,))
    bench.ask("What time is it?")
    bench.do(m.ToolCall(fence=bench.fence, call_id="call_1", name="clock", arguments="{}", final=True))
    bench.end()
    bench.speech("s" * 20)
    bench.events.clear()
    bench.do(c.ConversationItemCreate(item=FunctionCallOutputItem(call_id="call_1", output="noon")))
    bench.do(c.ResponseCreate())
    return bench


def test_a_result_that_comes_while_the_user_speaks_is_answered_with_what_the_user_says() -> None:
    """FIELD-CASES 31."""
    bench = called()
    assert not bench.of(e.ResponseCreated)
    assert not bench.of(e.ErrorEvent)
    bench.speech("." * 20)
    assert len(bench.of(e.ResponseCreated)) == 1
    history = bench.told(m.Respond)[-1].history
    assert [type(item).__name__ for item in history[-3:]] == [
        "FunctionCallItem",
        "FunctionCallOutputItem",
        "MessageItem",
    ]
    bench.end()
    assert len(bench.of(e.ResponseCreated)) == 1


def test_it_is_answered_alone_when_the_users_turn_is_not() -> None:
    bench = called(create_response=False)
    assert not bench.of(e.ResponseCreated)
    bench.speech("." * 20)
    assert len(bench.of(e.ResponseCreated)) == 1


def test_it_is_answered_at_once_when_the_speech_is_withdrawn() -> None:
    bench = called()
    bench.do(c.InputAudioBufferClear())
    assert len(bench.of(e.ResponseCreated)) == 1


def test_what_waits_was_checked_when_it_came() -> None:
    """Its tools may be gone by the time that it is carried out: that is no fault of the command that sets it free."""
    bench = called(create_response=False)
    bench.do(c.ResponseCreate(response=ResponseParams(tool_choice=ToolFunction(name="clock"), metadata={"k": "v"})))
    bench.do(c.SessionUpdate(session=SessionPatch(tools=[], tool_choice=ToolMode.AUTO)))
    assert not bench.of(e.ErrorEvent)
    bench.speech("." * 20)
    assert bench.told(m.Respond)[-1].config.tool_choice == ToolFunction(name="clock")
    assert bench.of(e.ResponseCreated)[-1].response.metadata == {"k": "v"}
