"""The cascade's session in virtual time: what it asks of its stages, and when, with scripted stages.

The stages are fakes here, since this is about the session's logic; the real ones are in ``tests/parts`` and in the
conversations over the socket.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from duplex_core import commands as c
from duplex_core import events as e
from duplex_core import model as m
from duplex_core.config import FunctionTool, Modality
from duplex_core.errors import ErrorCode, error
from duplex_core.items import FunctionCallItem, FunctionCallOutputItem, InputText, MessageItem, Role
from duplex_core.patch import ResponseParams, SessionPatch
from duplex_core.stages import StagePlan, StageWorker
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.invariants import check
from duplex_core.testing.pipelines import Threaded
from duplex_core.testing.speech import burst, silence
from duplex_core.testing.stages import StageHost
from duplex_core.transcribing import Recognized
from model_cascade.parts.language_model import ChatRequest, Finished, FinishReason, TextDelta, ToolCallDelta, Usage
from model_cascade.payloads import Prepare, Uttered
from model_cascade.plugin import OUTPUT_RATE_HZ, duplex_register_models

RATE_HZ = 16000
SPEC = duplex_register_models()[0]

Reply = Callable[[ChatRequest], list[Any]]


def finished(read: int, written: int) -> Finished:
    """The end of an answer that took these many tokens."""
    return Finished(reason=FinishReason.STOP, usage=Usage(prompt_tokens=read, completion_tokens=written))


def said(text: str) -> list[Any]:
    """What a language model gives for a plain answer, word by word."""
    words = [TextDelta(text=word + " ") for word in text.split()]
    return [*words, finished(7, len(words))]


@dataclasses.dataclass
class Scripted(StageWorker):
    """A stage whose pieces a function makes; keeps what it was given."""

    answer: Callable[[Any], list[Any]]
    given: list[Any] = dataclasses.field(default_factory=list)

    def run(self, payload: Any, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        self.given.append(payload)
        for piece in self.answer(payload):
            emit(piece)

    def close(self) -> None:
        pass


@dataclasses.dataclass
class Language(Scripted):
    """A language model that is also told what to read ahead."""

    prepared: list[Prepare] = dataclasses.field(default_factory=list)

    def run(self, payload: Any, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        if isinstance(payload, Prepare):
            self.prepared.append(payload)
        else:
            super().run(payload, emit, cancelled)


class Stages(StageHost):
    """The cascade's stages, scripted: what is heard, what is answered; a clause lasts 60 ms a character."""

    def __init__(self) -> None:
        super().__init__(StagePlan())
        self.heard = "what is the time"
        self.reply: Reply = lambda ask: said("It is noon. And the sun is high above the old town today.")
        self.recognizer = Scripted(lambda payload: [Recognized(text=self.heard)])
        self.language = Language(lambda ask: self.reply(ask))  # noqa: PLW0108 -- tests change the reply
        self.voice = Scripted(lambda utter: [Uttered(pcm=bytes(2 * (OUTPUT_RATE_HZ * 60 // 1000) * len(utter.text)))])

    def stage(self, name: str) -> Threaded:
        return Threaded({"recognizer": self.recognizer, "language": self.language, "voice": self.voice}[name])


@pytest.fixture
def stages() -> Stages:
    return Stages()


@pytest.fixture
def talk(stages: Stages) -> Iterator[ConversationDriver]:
    driver = ConversationDriver(SPEC, host=stages)
    yield driver
    check(driver.events)


def say(talk: ConversationDriver, ms: float = 1200.0) -> None:
    """Speak for a while, then be silent long enough for the turn to end."""
    talk.stream(burst(ms, RATE_HZ) + silence(800, RATE_HZ))


def last_user_message(ask: ChatRequest) -> str:
    return [message.content for message in ask.messages if message.role == "user"][-1]


def types(talk: ConversationDriver) -> list[str]:
    return [str(type(event).__struct_config__.tag) for event in talk.events]


def test_a_spoken_turn_is_transcribed_and_answered_aloud(talk: ConversationDriver, stages: Stages) -> None:
    say(talk)
    done = talk.wait_for(e.ResponseDone)
    assert done.response.status is e.ResponseStatus.COMPLETED
    transcript = talk.all_of(e.TranscriptionCompleted)
    assert [event.transcript for event in transcript] == ["what is the time"]
    assert talk.all_of(e.OutputTranscriptDone)[0].transcript.strip() == (
        "It is noon. And the sun is high above the old town today."
    )
    assert done.response.usage is not None
    assert (done.response.usage.input_tokens, done.response.usage.output_tokens) == (7, 13)
    assert len(talk.audio()) > OUTPUT_RATE_HZ


def test_the_answer_is_begun_at_the_pause_and_given_when_the_turn_is_over(
    talk: ConversationDriver, stages: Stages
) -> None:
    talk.stream(burst(1200, RATE_HZ) + silence(400, RATE_HZ))
    assert len(stages.language.given) == 1, "the language model works during the hangover"
    assert not talk.all_of(e.ResponseCreated), "but nothing is said before the turn is over"
    talk.stream(silence(200, RATE_HZ))
    created = talk.wait_for(e.ResponseCreated)
    assert created.response.status is e.ResponseStatus.IN_PROGRESS
    talk.wait_for(e.ResponseDone)
    assert len(stages.language.given) == 1, "the answer begun at the pause is the one that was given"


def test_going_on_after_a_pause_throws_the_begun_answer_away(talk: ConversationDriver, stages: Stages) -> None:
    stages.heard = "I would like"
    talk.stream(burst(900, RATE_HZ) + silence(300, RATE_HZ))
    assert last_user_message(stages.language.given[-1]) == "I would like"
    stages.heard = "I would like a cup of tea"
    talk.stream(burst(900, RATE_HZ) + silence(800, RATE_HZ))
    talk.wait_for(e.ResponseDone)
    assert len(talk.all_of(e.ResponseDone)) == 1
    assert last_user_message(stages.language.given[-1]) == "I would like a cup of tea"
    assert [event.transcript for event in talk.all_of(e.TranscriptionCompleted)] == ["I would like a cup of tea"]


def test_partial_transcripts_come_while_the_user_speaks(talk: ConversationDriver, stages: Stages) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    stages.recognizer.answer = lambda payload: [
        Recognized(text=" ".join(words[: max(1, len(payload.pcm) // (2 * RATE_HZ // 3))]))
    ]
    talk.stream(burst(3000, RATE_HZ))
    deltas = [event.delta for event in talk.all_of(e.TranscriptionDelta)]
    assert len(deltas) >= 3
    assert words[: len("".join(deltas).split())] == "".join(deltas).split()
    assert not talk.all_of(e.InputCommitted)


def test_speech_without_words_gets_no_answer(talk: ConversationDriver, stages: Stages) -> None:
    stages.heard = ""
    say(talk)
    done = talk.wait_for(e.ResponseDone)
    assert done.response.output == []
    assert done.response.status is e.ResponseStatus.COMPLETED
    assert talk.all_of(e.ResponseListen)
    assert stages.language.given == []


def test_an_interruption_stops_the_answer_and_the_history_keeps_what_was_heard(
    talk: ConversationDriver, stages: Stages
) -> None:
    say(talk)
    talk.wait_for(e.OutputAudioDelta)
    talk.advance(900)
    stages.heard = "stop please"
    say(talk)
    talk.wait_for(e.ResponseDone, count=2)
    talk.wait_for(e.OutputTranscriptDone, count=2)
    told = [message.content for message in stages.language.given[-1].messages if message.role == "assistant"]
    spoken = "It is noon. And the sun is high above the old town today."
    assert len(told) == 1
    assert spoken.startswith(told[0])
    assert 0 < len(told[0]) < len(spoken)
    assert last_user_message(stages.language.given[-1]) == "stop please"


def test_history_grows_over_turns_and_speculation_stays_right(talk: ConversationDriver, stages: Stages) -> None:
    for turn in range(1, 11):
        stages.heard = f"question {turn}"
        stages.reply = lambda ask, turn=turn: said(f"Answer {turn}.")  # type: ignore[misc]
        say(talk)
        talk.wait_for(e.ResponseDone, count=turn)
        talk.advance(3000)
    assert len(stages.language.given) == 10, "each answer was asked for once: what was begun at the pause held"
    contents = [message.content for message in stages.language.given[-1].messages[1:]]
    assert contents[:4] == ["question 1", "Answer 1.", "question 2", "Answer 2."]
    assert contents[-1] == "question 10"


def test_a_text_turn_is_answered_in_text_when_asked(talk: ConversationDriver, stages: Stages) -> None:
    item = MessageItem(role=Role.USER, content=(InputText(text="Hello"),))
    talk.send(
        c.ConversationItemCreate(item=item),
        c.ResponseCreate(response=ResponseParams(output_modalities=[Modality.TEXT])),
    )
    talk.wait_for(e.ResponseDone)
    assert "".join(event.delta for event in talk.all_of(e.OutputTextDelta)).startswith("It is noon.")
    assert stages.voice.given == []
    assert talk.audio() == b""


def test_a_tool_call_and_its_result(talk: ConversationDriver, stages: Stages) -> None:
    tool = FunctionTool(name="clock", description="tells the time", parameters={"type": "object"})
    talk.send(c.SessionUpdate(session=SessionPatch(tools=[tool])))
    stages.reply = lambda ask: [
        ToolCallDelta(index=0, call_id="call_7", name="clock", arguments='{"zone":'),
        ToolCallDelta(index=0, call_id="call_7", name="clock", arguments=' "utc"}'),
        ToolCallDelta(index=1, call_id="call_8", name="clock", arguments="{}"),
        finished(1, 1),
    ]
    say(talk)
    done = talk.wait_for(e.ResponseDone)
    calls = [item for item in done.response.output if isinstance(item, FunctionCallItem)]
    assert [(call.call_id, json.loads(call.arguments)) for call in calls] == [
        ("call_7", {"zone": "utc"}),
        ("call_8", {}),
    ]
    assert [event.call_id for event in talk.all_of(e.FunctionArgumentsDone)] == ["call_7", "call_8"]
    stages.reply = lambda ask: said("Noon.")
    for call, output in (("call_8", "eight"), ("call_7", "seven")):
        talk.send(c.ConversationItemCreate(item=FunctionCallOutputItem(call_id=call, output=output)))
    talk.send(c.ResponseCreate())
    talk.wait_for(e.ResponseDone, count=2)
    messages = stages.language.given[-1].messages
    assert [(message.tool_call_id, message.content) for message in messages if message.role == "tool"] == [
        ("call_8", "eight"),
        ("call_7", "seven"),
    ]
    assert [call.call_id for message in messages for call in message.tool_calls] == ["call_7", "call_8"]


@pytest.mark.parametrize("stage", ["recognizer", "language", "voice"])
def test_a_stage_that_fails_fails_the_answer_and_the_next_turn_works(
    talk: ConversationDriver, stages: Stages, stage: str
) -> None:
    broken = error(ErrorCode.ENGINE_ERROR, "the stage broke")
    worker: Scripted = getattr(stages, stage)
    works = worker.answer
    original = stages.work

    def work(request: Any) -> Iterator[Any]:
        if request.stage == stage:
            return iter([request.failed(broken)])
        return original(request)

    stages.work = work  # type: ignore[method-assign]
    talk.send(c.SessionUpdate(session=SessionPatch(turn_detection=None)))
    talk.stream(burst(800, RATE_HZ))
    talk.send(c.InputAudioBufferCommit(), c.ResponseCreate())
    done = talk.wait_for(e.ResponseDone)
    assert done.response.status is e.ResponseStatus.FAILED
    assert done.response.status_details is not None
    assert done.response.status_details.error is not None
    assert done.response.status_details.error.code == "engine_error"
    stages.work = original  # type: ignore[method-assign]
    worker.answer = works
    talk.send(c.InputAudioBufferClear())
    talk.stream(burst(800, RATE_HZ))
    talk.send(c.InputAudioBufferCommit(), c.ResponseCreate())
    assert talk.wait_for(e.ResponseDone, count=2).response.status is e.ResponseStatus.COMPLETED


def test_cancelling_an_answer_leaves_the_users_transcript_alone(talk: ConversationDriver, stages: Stages) -> None:
    say(talk)
    talk.wait_for(e.OutputAudioDelta)
    stages.heard = "something else"
    talk.stream(burst(1200, RATE_HZ))
    talk.send(c.OutputAudioBufferClear()) if talk.all_of(e.ResponseDone) == [] else None
    talk.stream(silence(800, RATE_HZ))
    talk.run_until(lambda: len(talk.all_of(e.TranscriptionCompleted)) == 2)
    assert talk.all_of(e.TranscriptionCompleted)[1].transcript == "something else"


def test_marks_place_words_in_time(talk: ConversationDriver) -> None:
    say(talk)
    talk.wait_for(e.ResponseDone)
    marks = [mark for event in talk.all_of(e.OutputAudioDelta) for mark in event.metadata.audio_text_marks]
    text = "".join(event.delta for event in talk.all_of(e.OutputTranscriptDelta))
    assert [mark.chars for mark in marks] == sorted({mark.chars for mark in marks})
    assert [mark.ms for mark in marks] == sorted(mark.ms for mark in marks)
    assert marks[-1].chars == len(text)
    assert all(text[mark.chars - 1].isspace() for mark in marks)


def test_the_system_prompt_is_read_ahead_once_and_again_when_it_changes(
    talk: ConversationDriver, stages: Stages
) -> None:
    talk.stream(silence(200, RATE_HZ))
    talk.send(c.SessionUpdate(session=SessionPatch(parallel_tool_calls=False)))
    talk.send(c.SessionUpdate(session=SessionPatch(instructions="Be brief.")))
    talk.settle()
    read = [[message.content for message in each.messages] for each in stages.language.prepared]
    assert [len(messages) for messages in read] == [1, 1]
    assert read[1] == ["Be brief."]


def test_a_chat_request_is_answered_in_text(stages: Stages) -> None:
    from duplex_core.spec import Checkpoint, SessionContext

    settings = SPEC.deploy_model()
    config = msgspec.structs.replace(SPEC.session_config(settings), modality=Modality.TEXT)
    context = SessionContext(
        session_id="chat_1", config=config, deploy=settings, checkpoint=Checkpoint(name="cascade"), chat=True
    )
    session = SPEC.create_session(context)
    fence = m.Respond(
        response_id="r",
        fence=talk_fence(),
        config=config,
        history=(MessageItem(id="i", role=Role.USER, content=(InputText(text="Hi"),)),),
        cause=m.ResponseCause.CLIENT,
    )
    assert session.handle(m.Configured(config=config, fence=talk_fence()), 0.0) == []
    (submit,) = session.handle(fence, 0.0)
    assert isinstance(submit, m.Submit)
    ask = submit.request.payload
    assert isinstance(ask, ChatRequest)
    assert [message.content for message in ask.messages][-1] == "Hi"
    texts = []
    for piece in said("Good day."):
        output = m.StageOutput(
            stage="language",
            request_id=submit.request.request_id,
            fence=fence.fence,
            lane=m.Lane.OUTPUT,
            payload=piece,
        )
        texts += [d.text for d in session.handle(output, 0.0) if isinstance(d, m.Speak)]
    assert "".join(texts).strip() == "Good day."


def talk_fence() -> Any:
    from duplex_core.fence import Fence

    return Fence(session_id="chat_1", turn=1)
