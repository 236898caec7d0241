"""A response from `response.created` to `response.done`: order, overrides, given input, failures."""

from __future__ import annotations

from typing import Any

import pytest

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.config import Modality
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    ErrorEvent,
    OutputAudioDelta,
    OutputTextDelta,
    OutputTextDone,
    OutputTranscriptDelta,
    OutputTranscriptDone,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    ResponseSpeak,
    ResponseStatus,
    StatusReason,
    Usage,
)
from duplex_core.items import ItemStatus, OutputAudio, item_text
from duplex_core.machine.output import ModelFault
from duplex_core.patch import ItemReference, ResponseParams
from duplex_core.testing import invariants
from tests.support.machines import Bench, kinds, said, told

BROKEN = error(ErrorCode.ENGINE_ERROR, "a stage broke")


def test_the_order_of_a_spoken_answer() -> None:
    bench = Bench()
    bench.ask()
    before = len(bench.events)
    bench.speak("One ", ms=100)
    bench.speak("two.", ms=100)
    bench.end(usage=m.TokenUsage(input_tokens=5, output_tokens=7))
    assert kinds(bench.events[before:]) == [
        "OutputItemAdded",
        "ItemAdded",
        "ContentPartAdded",
        "OutputTranscriptDelta",
        "ResponseSpeak",
        "OutputAudioDelta",
        "OutputTranscriptDelta",
        "OutputAudioDelta",
        "OutputAudioDone",
        "OutputTranscriptDone",
        "ContentPartDone",
        "OutputItemDone",
        "ItemDone",
        "ResponseDone",
        "RateLimitsUpdated",
    ]
    done = bench.only(ResponseDone).response
    assert done.usage == Usage(input_tokens=5, output_tokens=7, total_tokens=12)
    assert done.status is ResponseStatus.COMPLETED
    assert [item_text(item) for item in done.output] == ["One two."]
    assert bench.only(OutputTranscriptDone).transcript == "One two."
    assert "".join(event.delta for event in bench.of(OutputTranscriptDelta)) == "One two."
    created = bench.only(ResponseCreated)
    assert (created.epoch, created.turn_id) == (bench.fence.epoch, bench.fence.turn)
    assert done.conversation_id == created.response.conversation_id == "conv_sess_1"
    invariants.check(bench.events)


def test_the_order_of_a_written_answer() -> None:
    bench = Bench()
    bench.ask(response=ResponseParams(output_modalities=[Modality.TEXT]))
    before = len(bench.events)
    bench.speak("One ", ms=100)
    bench.speak("", ms=100)
    bench.speak("two.")
    bench.end()
    assert kinds(bench.events[before:]) == [
        "OutputItemAdded",
        "ItemAdded",
        "ContentPartAdded",
        "OutputTextDelta",
        "OutputTextDelta",
        "OutputTextDone",
        "ContentPartDone",
        "OutputItemDone",
        "ItemDone",
        "ResponseDone",
        "RateLimitsUpdated",
    ]
    assert "".join(event.delta for event in bench.of(OutputTextDelta)) == bench.only(OutputTextDone).text == "One two."
    assert not bench.of(OutputAudioDelta)
    invariants.check(bench.events)


def test_sound_before_words() -> None:
    bench = Bench()
    bench.ask()
    bench.speak(ms=100)
    assert kinds(bench.events)[-2:] == ["ResponseSpeak", "OutputAudioDelta"]
    bench.speak("Ah.")
    bench.end()
    assert len(bench.of(ResponseSpeak)) == 1
    invariants.check(bench.events)


def test_nothing_at_all_said() -> None:
    bench = Bench()
    bench.ask()
    bench.speak()
    bench.speak(marks=((0, 0.0),))
    bench.end()
    assert bench.only(ResponseDone).response.output == []
    assert [item_text(item) for item in bench.history] == ["Well?"]


def test_one_response_at_a_time() -> None:
    bench = Bench()
    running = bench.ask()
    command = c.ResponseCreate()
    bench.refused_with(ErrorCode.ACTIVE_RESPONSE, command)
    assert running in bench.of(ErrorEvent)[-1].error.message
    outside = c.ResponseCreate(response=ResponseParams(conversation="none"))
    bench.refused_with(ErrorCode.ACTIVE_RESPONSE, outside)


def test_overrides_hold_for_one_response() -> None:
    bench = Bench(instructions="Be brief.", capabilities={"temperature": True, "voices": ("ann", "bob")}, voice="ann")
    params = ResponseParams(
        instructions="Be long.",
        output_modalities=[Modality.TEXT],
        max_output_tokens=5,
        voice="bob",
        metadata={"k": "v"},
    )
    bench.do(c.ResponseCreate(response=params))
    (respond,) = bench.told(m.Respond)
    assert respond.config.instructions == "Be long."
    assert (respond.config.modality, respond.config.max_output_tokens) == (Modality.TEXT, 5)
    assert bench.machine.response_config == respond.config
    created = bench.only(ResponseCreated).response
    assert (created.max_output_tokens, created.metadata, created.audio.output.voice) == (5, {"k": "v"}, "bob")
    bench.end()
    assert getattr(bench.machine, "response_config", 0) is None
    bench.do(c.ResponseCreate())
    assert bench.told(m.Respond)[-1].config == bench.machine.config
    assert bench.machine.config.instructions == "Be brief."


def test_an_override_that_cannot_be_served() -> None:
    bench = Bench()
    command = c.ResponseCreate(response=ResponseParams(temperature=0.5))
    bench.refused_with(ErrorCode.UNSUPPORTED_PARAMETER, command, "response.temperature")
    command = c.ResponseCreate(response=ResponseParams(voice="nobody"))
    bench.refused_with(ErrorCode.INVALID_VALUE, command, "response.voice")


def test_out_of_band_touches_no_history() -> None:
    bench = Bench()
    bench.do(c.ConversationItemCreate(item=said("Well?")))
    bench.do(c.ResponseCreate(response=ResponseParams(conversation="none")))
    before = len(bench.events)
    bench.speak("Aside.", ms=100)
    bench.end()
    assert "ItemAdded" not in kinds(bench.events[before:])
    assert "ItemDone" not in kinds(bench.events[before:])
    assert bench.only(ResponseDone).response.conversation_id is None
    assert len(bench.only(ResponseDone).response.output) == 1
    assert [item_text(item) for item in bench.history] == ["Well?"]
    assert [item_text(item) for item in bench.told(m.Respond)[0].history] == ["Well?"], "it may be made from it"
    invariants.check(bench.events)


def test_given_input_replaces_the_history() -> None:
    bench = Bench()
    bench.do(c.ConversationItemCreate(item=said("One?", item_id="one")), c.ConversationItemCreate(item=said("Two?")))
    given = (said("First."), ItemReference(id="one"))
    bench.do(c.ResponseCreate(response=ResponseParams(input=given)))
    (respond,) = bench.told(m.Respond)
    assert [item_text(item) for item in respond.history] == ["First.", "One?"]
    assert all(item.id for item in respond.history)
    assert len(bench.history) == 2
    bench.end()
    bench.do(c.ResponseCreate(response=ResponseParams(input=())))
    assert bench.told(m.Respond)[-1].history == ()


def test_a_reference_gives_what_was_heard() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One two three four.", ms=1000, marks=((7, 400.0), (19, 1000.0)))
    answer = bench.machine._core.history.last_id or ""
    bench.wait(450)
    bench.do(c.ResponseCancel())
    bench.do(c.ResponseCreate(response=ResponseParams(input=(ItemReference(id=answer),))))
    assert [item_text(item) for item in bench.told(m.Respond)[-1].history] == ["One two"]
    bench.speak("Unheard.", ms=1000)
    unheard = bench.machine._core.history.last_id or ""
    bench.do(c.ResponseCancel())
    bench.do(c.ResponseCreate(response=ResponseParams(input=(ItemReference(id=unheard), said("And?")))))
    assert [item_text(item) for item in bench.told(m.Respond)[-1].history] == ["And?"]


def test_given_input_is_checked_as_created_items_are() -> None:
    bench = Bench()
    bench.do(c.ConversationItemCreate(item=said("One?", item_id="one")))
    taken = c.ResponseCreate(response=ResponseParams(input=(said("x"), said("y", item_id="one"))))
    bench.refused_with(ErrorCode.ITEM_EXISTS, taken, "response.input[1].id")


def test_max_tokens_leaves_the_answer_incomplete() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One two", ms=100)
    bench.end(reason=m.StopReason.MAX_TOKENS)
    done = bench.only(ResponseDone).response
    assert done.status is ResponseStatus.INCOMPLETE
    assert done.status_details is not None
    assert done.status_details.reason is StatusReason.MAX_OUTPUT_TOKENS
    assert done.output[0].status is ItemStatus.INCOMPLETE
    bench.wait(100)
    assert item_text(bench.history[-1]) == "One two"


def test_an_answer_that_cannot_be_made() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One", ms=100)
    bench.do(m.Failed(fence=bench.fence, error=BROKEN))
    done = bench.only(ResponseDone).response
    assert done.status is ResponseStatus.FAILED
    assert done.status_details is not None
    assert done.status_details.error is not None
    assert done.status_details.error.code == "engine_error"
    assert bench.fence.epoch == 0
    bench.ask()
    bench.end()
    assert bench.of(ResponseDone)[-1].response.status is ResponseStatus.COMPLETED, "the session goes on"


def test_what_comes_after_the_end_is_dropped() -> None:
    bench = Bench()
    bench.ask()
    bench.end()
    before = len(bench.events)
    bench.speak("More", ms=100)
    bench.end()
    bench.do(m.ToolCall(fence=bench.fence, call_id="c", name="f", arguments="{}"))
    bench.do(m.Failed(fence=bench.fence, error=BROKEN))
    assert bench.events[before:] == []
    bench.ask()
    older = bench.fence
    bench.end()
    bench.ask()
    bench.speak("Of the turn before", fence=older)
    assert not bench.of(OutputTranscriptDelta)


def test_a_listening_model_ends_the_response_that_it_was_asked_for() -> None:
    bench = Bench()
    response_id = bench.ask()
    step = bench.do(m.Listen(fence=bench.fence))
    assert kinds(step.events) == ["ResponseListen", "ResponseDone", "RateLimitsUpdated"]
    assert bench.only(ResponseListen).response_id == response_id
    done = bench.only(ResponseDone).response
    assert (done.status, done.output) == (ResponseStatus.COMPLETED, [])


def test_listening_ends_no_answer_that_has_begun() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One", ms=100)
    assert kinds(bench.do(m.Listen(fence=bench.fence)).events) == ["ResponseListen"]
    assert bench.only(ResponseListen).response_id is None
    bench.end()
    assert bench.only(ResponseDone).response.status is ResponseStatus.COMPLETED


@pytest.mark.parametrize("kind", [m.Listen, m.EndTurn, m.Speak])
def test_a_turn_that_was_never_opened_is_the_models_fault(kind: type[m.Listen | m.EndTurn | m.Speak]) -> None:
    bench = Bench()
    bench.ask()
    with pytest.raises(ModelFault, match="the last turn opened is 1"):
        bench.do(kind(fence=bench.fence.next_turn()))
    with pytest.raises(ModelFault):
        bench.do(m.ToolCall(fence=bench.fence.next_turn(), call_id="c", name="f", arguments=""))
    bench.end()
    bench.only(ResponseDone)


def test_a_decision_of_another_session_is_dropped() -> None:
    bench = Bench()
    bench.ask()
    other = Bench(session_id="sess_2")
    other.ask()
    assert not bench.do(m.Speak(fence=other.fence, text="Not yours.")).events


def test_the_model_is_told_after_the_client_is() -> None:
    """The step's effects come first, but a Tell is worked off after the events are sent: see Exchange."""
    bench = Bench()
    step = bench.do(c.ResponseCreate())
    assert kinds(step.events) == ["ResponseCreated"]
    assert kinds(told(step.effects, object)) == ["Configured", "Respond"]


def test_the_transcript_of_the_history_is_the_audio_part() -> None:
    bench = Bench()
    bench.ask()
    bench.speak("One.", ms=100)
    bench.end()
    item = bench.history[-1]
    assert getattr(item, "content", None) == (OutputAudio(transcript="One."),)


@pytest.mark.parametrize(
    ("params", "named"), [({"conversation": "none"}, "response.conversation"), ({"input": ()}, "response.input")]
)
def test_a_model_that_cannot_leave_the_conversation_alone_refuses_to(params: dict[str, Any], named: str) -> None:
    bench = Bench(capabilities={"out_of_band": False})
    bench.refused_with(ErrorCode.UNSUPPORTED_PARAMETER, c.ResponseCreate(response=ResponseParams(**params)), named)
    assert not bench.told(m.Respond)
    bench.do(c.ResponseCreate(response=ResponseParams(conversation="auto")))
    assert bench.told(m.Respond)
