"""Conformance: turns. Speech, text, tools, silence and chat are answered as the contracts say."""

from __future__ import annotations

import json

import pytest

from duplex_core.capabilities import TurnPolicy
from duplex_core.commands import ConversationItemCreate, InputAudioBufferCommit, ResponseCreate
from duplex_core.config import FunctionTool, Modality, ServerVad
from duplex_core.events import (
    InputCommitted,
    OutputAudioDelta,
    OutputTextDone,
    ResponseCreated,
    ResponseDone,
    ResponseSpeak,
    ResponseStatus,
)
from duplex_core.fence import Fence
from duplex_core.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputText,
    MessageItem,
    Role,
    item_text,
)
from duplex_core.model import BeginTurn, EndTurn, Listen, Respond, Speak
from duplex_core.patch import ResponseParams, SessionPatch
from duplex_core.testing.chat import ChatAnswer, chat
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.stages import StageHost
from duplex_core.testing.suite.base import Subject

LOOKUP = FunctionTool(
    name="lookup",
    description="Look a word up.",
    parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)


class Turns(Subject):
    """Turns of every kind."""

    def test_committed_speech_is_answered_in_speech(self, host: StageHost) -> None:
        driver = self.open(host)
        self.say(driver)
        done = self.answer(driver)
        assert done.response.status is ResponseStatus.COMPLETED
        assert driver.all_of(OutputAudioDelta), "no sound"
        assert [item_text(item) for item in done.response.output] != [""], "no words"
        driver.settle()
        self.well(driver)

    def test_a_detected_turn_is_answered(self, host: StageHost) -> None:
        driver = self.open(host, detection=ServerVad())
        driver.stream(self.quiet(400) + self.speech() + self.quiet(1200))
        done = driver.wait_for(ResponseDone)
        assert done.response.status is ResponseStatus.COMPLETED
        if driver.capabilities.turn_policy is TurnPolicy.COMMITTED:
            assert driver.all_of(InputCommitted)
        driver.settle()
        self.well(driver)

    def test_every_answer_ends_once_and_under_its_own_fence(self, host: StageHost) -> None:
        driver = self.open(host)
        self.say(driver)
        self.answer(driver)
        self.still_works(driver)
        outputs = [output for told in driver.told for output in told.outputs]
        turns = {asked.fence for asked in driver.heard_by_model(Respond)}
        for fence in turns:
            ends: list[EndTurn | Listen] = [
                each for each in outputs if isinstance(each, EndTurn) and each.fence == fence
            ]
            # Having ended a turn, a model that listens all the time does so under that turn's fence.
            if not ends or driver.capabilities.turn_policy is TurnPolicy.COMMITTED:
                ends += [each for each in outputs if isinstance(each, Listen) and each.fence == fence]
            assert len(ends) == 1, f"the turn {fence} was ended {len(ends)} times"
        turns |= self._taken(driver)
        spoken = {each.fence for each in outputs if isinstance(each, Speak)}
        assert spoken <= turns, "something was said in a turn that was neither given nor taken"

    @staticmethod
    def _taken(driver: ConversationDriver) -> set[Fence]:
        """The turns that the model took, if it is one that does."""
        if driver.capabilities.turn_policy is TurnPolicy.COMMITTED:
            return set()
        return {each.fence for told in driver.told for each in told.outputs if isinstance(each, BeginTurn)}

    def test_marks_stay_within_the_answer(self, host: StageHost) -> None:
        driver = self.open(host)
        self.say(driver)
        self.answer(driver)
        pieces = [each for told in driver.told for each in told.outputs if isinstance(each, Speak)]
        chars = sum(len(piece.text) for piece in pieces)
        for mark in (mark for piece in pieces for mark in piece.marks):
            assert 0 <= mark.chars <= chars, f"{mark} lies outside of a transcript of {chars} characters"

    def test_text_is_answered_in_text(self, host: StageHost) -> None:
        driver = self.open(host)
        can = driver.capabilities
        if not can.text_input or Modality.TEXT not in can.output_modalities:
            pytest.skip("the model declares no text turns")
        self.write(driver, self.question, ResponseParams(output_modalities=[Modality.TEXT]))
        done = self.answer(driver)
        assert done.response.status is ResponseStatus.COMPLETED
        assert driver.wait_for(OutputTextDone).text.strip(), "no words"
        assert not driver.all_of(OutputAudioDelta), "a written answer made sound"
        assert not driver.all_of(ResponseSpeak)
        driver.settle()
        self.well(driver)

    def test_silence_opens_no_turn(self, host: StageHost) -> None:
        driver = self.open(host, detection=ServerVad())
        driver.stream(self.quiet(4000))
        driver.settle()
        assert not driver.all_of(InputCommitted), "silence was taken for a turn"
        assert not driver.all_of(ResponseCreated), "silence was answered"
        self.well(driver)

    def test_silence_that_is_committed_ends_in_one_response(self, host: StageHost) -> None:
        driver = self.open(host)
        driver.stream(self.quiet(1000))
        driver.send(InputAudioBufferCommit(response_create=True))
        done = self.answer(driver)
        assert done.response.status is ResponseStatus.COMPLETED
        self.still_works(driver)

    def test_a_tool_is_called_and_its_result_used(self, host: StageHost) -> None:
        driver = self.open(host)
        if not driver.capabilities.tools or self.tool_request is None:
            pytest.skip("the model declares no tools, or none that it can be relied on to call")
        self.update(driver, SessionPatch(tools=[LOOKUP]))
        self.write(driver, self.tool_request)
        calls = [item for item in self.answer(driver).response.output if isinstance(item, FunctionCallItem)]
        assert [call.name for call in calls] == ["lookup"]
        assert isinstance(json.loads(calls[0].arguments), dict)
        assert calls[0].call_id is not None
        result = FunctionCallOutputItem(call_id=calls[0].call_id, output="a small river fish")
        driver.send(ConversationItemCreate(item=result), ResponseCreate())
        done = self.answer(driver)
        assert done.response.status is ResponseStatus.COMPLETED
        history = driver.heard_by_model(Respond)[-1].history
        assert isinstance(history[-1], FunctionCallOutputItem)
        assert any(item_text(item).strip() for item in done.response.output)
        self.still_works(driver)

    def test_chat_is_answered_in_writing(self, host: StageHost) -> None:
        if not self.spec.capabilities(self.deploy()).chat:
            pytest.skip("the model declares no chat")
        answer = self.ask_in_chat(host, InputText(text=self.question), Modality.TEXT)
        assert answer.text.strip(), "no words"
        assert not answer.pcm, "a chat request made sound"

    def test_chat_is_answered_in_speech(self, host: StageHost) -> None:
        can = self.spec.capabilities(self.deploy())
        if not can.chat_audio_output:
            pytest.skip("the model declares no speech in answers to chat requests")
        assert can.chat, "a model that speaks in chats must declare that it chats"
        answer = self.ask_in_chat(host, InputText(text=self.question), Modality.AUDIO)
        assert answer.text.strip(), "no words"
        assert answer.pcm, "no sound"
        assert len(answer.pcm) % 2 == 0, "the sound ends in the middle of a sample"

    def test_chat_understands_speech(self, host: StageHost) -> None:
        can = self.spec.capabilities(self.deploy())
        if not can.chat_audio_input:
            pytest.skip("the model declares no speech in chat requests")
        assert can.chat, "a model that hears in chats must declare that it chats"
        assert self.ask_in_chat(host, InputAudio(audio=self.speech()), Modality.TEXT).text.strip(), "no words"

    def ask_in_chat(self, host: StageHost, part: InputText | InputAudio, modality: Modality) -> ChatAnswer:
        """The answer to a chat request of one part."""
        answer = chat(
            self.spec,
            (MessageItem(id="item_1", role=Role.USER, content=(part,)),),
            host=host,
            config=self.config(),
            deploy=self.deploy(),
            checkpoint=self.checkpoint(),
            modality=modality,
        )
        assert answer.error is None, answer.error
        return answer
