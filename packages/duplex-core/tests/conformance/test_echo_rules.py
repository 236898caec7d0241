"""Echo's own rules: what it says, when it calls, how a reply is cut."""

from __future__ import annotations

import json

import msgspec
import pytest

from duplex_core.commands import ConversationItemCreate, InputAudioBufferCommit, ResponseCreate, SessionUpdate
from duplex_core.config import FunctionTool, Modality, SessionConfig, ToolFunction, ToolMode, Transcription
from duplex_core.events import (
    OutputAudioDelta,
    OutputTextDelta,
    ResponseDone,
    ResponseListen,
    ResponseStatus,
    StatusReason,
    TranscriptionCompleted,
)
from duplex_core.items import (
    FunctionCallOutputItem,
    InputAudio,
    InputText,
    Item,
    MessageItem,
    OutputText,
    Role,
    item_text,
)
from duplex_core.model import ResponseCause
from duplex_core.patch import AudioPatch, InputPatch, ResponseParams, SessionPatch
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.echo import ECHO
from duplex_core.testing.echo.reply import HUM_MS_PER_CHAR, RATE_HZ, Reply, reply_to
from duplex_core.testing.echo.silence import is_silent
from duplex_core.testing.echo.stage import pieces
from duplex_core.testing.echo.tools import wanted_call
from duplex_core.testing.speech import burst, silence

CONFIG = SessionConfig(model="echo")
TOOLS = (FunctionTool(name="lookup"), FunctionTool(name="weather"))
SECOND = burst(1000, RATE_HZ)


def user(*content: InputText | InputAudio) -> MessageItem:
    return MessageItem(role=Role.USER, content=content)


@pytest.mark.parametrize(
    ("history", "cause", "said"),
    [
        ((user(InputText(text="Good day")),), ResponseCause.CLIENT, "Good day"),
        ((user(InputAudio(audio=SECOND)),), ResponseCause.COMMIT, "You said 1000 milliseconds."),
        (
            (user(InputText(text="this"), InputAudio(audio=SECOND)),),
            ResponseCause.COMMIT,
            "You said 1000 milliseconds.",
        ),
        ((FunctionCallOutputItem(call_id="c", output="42"),), ResponseCause.CLIENT, "The tool gave 42"),
        ((), ResponseCause.CLIENT, "Are you there?"),
        ((user(InputText(text="Good day")),), ResponseCause.IDLE, "Are you there?"),
    ],
)
def test_what_is_said(history: tuple[Item, ...], cause: ResponseCause, said: str) -> None:
    reply = reply_to(history, CONFIG, cause)
    assert isinstance(reply, Reply)
    assert reply.text == said
    assert not reply.cut


def test_speech_comes_back_as_it_was_and_text_is_hummed() -> None:
    spoken = reply_to((user(InputAudio(audio=SECOND)),), CONFIG, ResponseCause.COMMIT)
    assert isinstance(spoken, Reply)
    assert spoken.pcm == SECOND
    hummed = reply_to((user(InputText(text="Good day")),), CONFIG, ResponseCause.CLIENT)
    assert isinstance(hummed, Reply)
    assert len(hummed.pcm) == int(8 * HUM_MS_PER_CHAR * RATE_HZ / 1000) * 2
    assert not is_silent(hummed.pcm)
    written = reply_to(
        (user(InputText(text="Good day")),),
        msgspec.structs.replace(CONFIG, modality=Modality.TEXT, instructions="It says:"),
        ResponseCause.CLIENT,
    )
    assert written == Reply(text="It says: Good day")


@pytest.mark.parametrize("modality", list(Modality))
def test_a_limit_leaves_words_out_and_says_so(modality: Modality) -> None:
    config = msgspec.structs.replace(CONFIG, max_output_tokens=2, modality=modality)
    reply = reply_to((user(InputAudio(audio=SECOND)),), config, ResponseCause.COMMIT)
    assert isinstance(reply, Reply)
    assert (reply.text, reply.cut) == ("You said", True)
    assert len(reply.pcm) == (len(SECOND) // 2 if modality is Modality.AUDIO else 0)


@pytest.mark.parametrize(
    ("pcm", "silent"),
    [(b"", True), (bytes(3200), True), (b"\x3f\x00" * 99, True), (b"\x40\x00", False), (b"\x00\x80", False)],
)
def test_silence(pcm: bytes, silent: bool) -> None:
    assert is_silent(pcm) is silent
    reply = reply_to((user(InputAudio(audio=pcm)),), CONFIG, ResponseCause.COMMIT)
    assert (reply is None) == (silent and pcm != b"")


@pytest.mark.parametrize(
    ("text", "choice", "call"),
    [
        ('call lookup {"word": "gudgeon"}', ToolMode.AUTO, ("lookup", {"word": "gudgeon"})),
        ("please call weather", ToolMode.AUTO, ("weather", {})),
        ("call lookup {broken}", ToolMode.AUTO, ("lookup", {"text": "{broken}"})),
        ("call nobody {}", ToolMode.AUTO, None),
        ("what a day", ToolMode.AUTO, None),
        ("call lookup {}", ToolMode.NONE, None),
        ("what a day", ToolMode.REQUIRED, ("lookup", {"text": "what a day"})),
        ("call lookup {}", ToolFunction(name="weather"), ("weather", {"text": "call lookup {}"})),
    ],
)
def test_what_is_called(text: str, choice: ToolMode | ToolFunction, call: tuple[str, dict[str, str]] | None) -> None:
    found = wanted_call(text, msgspec.structs.replace(CONFIG, tools=TOOLS, tool_choice=choice))
    assert (found and (found.name, json.loads(found.arguments))) == call
    assert wanted_call(text, CONFIG) is None


@pytest.mark.parametrize("chunk_ms", [20.0, 100.0, 333.0, 5000.0])
def test_a_reply_is_cut_without_loss_and_marked_in_order(chunk_ms: float) -> None:
    reply = Reply(text="You said 1000 milliseconds.", pcm=SECOND)
    cut = list(pieces(reply, chunk_ms))
    assert b"".join(piece.pcm for piece in cut) == SECOND
    assert "".join(piece.text for piece in cut) == reply.text
    marks = [mark for piece in cut for mark in piece.marks]
    assert marks == sorted(marks, key=lambda mark: (mark.chars, mark.ms))
    assert marks[-1].chars == len(reply.text)
    ends = 0.0
    for piece in cut:
        ends += len(piece.pcm) / 2 / RATE_HZ * 1000
        assert all(mark.ms <= ends + 0.01 for mark in piece.marks)


def test_a_written_reply_goes_word_by_word() -> None:
    assert [piece.text for piece in pieces(Reply(text="It is so"), 100.0)] == ["It ", "is ", "so"]


def written(driver: ConversationDriver, text: str, params: ResponseParams | None = None) -> ResponseDone:
    before = len(driver.all_of(ResponseDone))
    driver.send(ConversationItemCreate(item=user(InputText(text=text))), ResponseCreate(response=params))
    return driver.wait_for(ResponseDone, count=before + 1)


def test_an_answer_is_given_out_at_the_pace_at_which_it_sounds() -> None:
    driver = ConversationDriver(ECHO)
    begun = driver.now_ms
    written(driver, "a hundred characters " * 5)
    sounds_ms = sum(event.metadata.audio_duration_ms for event in driver.all_of(OutputAudioDelta))
    assert driver.now_ms - begun == pytest.approx(sounds_ms, abs=120.0)


def test_all_at_once_when_it_is_told_so() -> None:
    driver = ConversationDriver(ECHO)
    driver.send(SessionUpdate(session=SessionPatch(options={"pace": 0.0, "chunk_ms": 500.0})))
    begun = driver.now_ms
    written(driver, "a hundred characters " * 5)
    durations = {event.metadata.audio_duration_ms for event in driver.all_of(OutputAudioDelta)}
    assert max(durations) == 500.0
    assert driver.now_ms - begun < 150.0


def test_what_was_said_is_transcribed_when_it_is_wanted() -> None:
    driver = ConversationDriver(ECHO)
    wanted = InputPatch(turn_detection=None, transcription=Transcription())
    driver.send(SessionUpdate(session=SessionPatch(audio=AudioPatch(input=wanted))))
    driver.stream(SECOND)
    driver.send(InputAudioBufferCommit())
    assert driver.wait_for(TranscriptionCompleted).transcript == "1000 milliseconds"


def test_nothing_to_say_is_told_as_listening() -> None:
    driver = ConversationDriver(ECHO)
    driver.send(SessionUpdate(session=SessionPatch(turn_detection=None)))
    driver.stream(silence(500, RATE_HZ))
    driver.send(InputAudioBufferCommit(response_create=True))
    done = driver.wait_for(ResponseDone)
    assert driver.wait_for(ResponseListen).response_id == done.response.id
    assert done.response.output == []


def test_a_limited_answer_is_incomplete() -> None:
    done = written(ConversationDriver(ECHO), "one two three", ResponseParams(max_output_tokens=2))
    assert done.response.status is ResponseStatus.INCOMPLETE
    assert done.response.status_details is not None
    assert done.response.status_details.reason is StatusReason.MAX_OUTPUT_TOKENS
    assert item_text(done.response.output[0]) == "one two"


def test_a_written_answer_counts_its_words() -> None:
    driver = ConversationDriver(ECHO)
    done = written(driver, "one two three", ResponseParams(output_modalities=[Modality.TEXT]))
    assert done.response.usage is not None
    assert (done.response.usage.input_tokens, done.response.usage.output_tokens) == (3, 3)
    assert [event.delta for event in driver.all_of(OutputTextDelta)] == ["one ", "two ", "three"]
    message = done.response.output[0]
    assert isinstance(message, MessageItem)
    assert message.content == (OutputText(text="one two three"),)


def test_two_calls_in_two_turns_have_two_ids() -> None:
    driver = ConversationDriver(ECHO)
    driver.send(SessionUpdate(session=SessionPatch(tools=list(TOOLS))))
    ids = {getattr(written(driver, "call lookup {}").response.output[0], "call_id", None) for _ in range(2)}
    assert len(ids) == 2
    assert None not in ids
