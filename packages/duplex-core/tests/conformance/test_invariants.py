"""What holds for every conversation is noticed when it does not: a real conversation's events, with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest

from duplex_core.commands import (
    ConversationItemCreate,
    InputAudioBufferCommit,
    OutputAudioBufferClear,
    PlaybackAck,
    ResponseCreate,
    SessionClose,
    SessionUpdate,
)
from duplex_core.config import FunctionTool, ServerVad
from duplex_core.events import (
    ContentPartAdded,
    Event,
    FunctionArgumentsDone,
    InputCommitted,
    ItemAdded,
    ItemDone,
    OutputAudioDelta,
    OutputAudioDone,
    OutputBufferCleared,
    OutputItemDone,
    OutputTranscriptDelta,
    OutputTranscriptDone,
    PlaybackAcknowledged,
    RateLimitsUpdated,
    ResponseCreated,
    ResponseDone,
    ResponseSpeak,
    SessionClosed,
    SessionCreated,
    SpeechStarted,
    SpeechStopped,
)
from duplex_core.items import FunctionCallItem, InputText, MessageItem, Role
from duplex_core.ledger import PlaybackLedger, TextMark
from duplex_core.patch import SessionPatch
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.echo import ECHO
from duplex_core.testing.invariants import violations
from duplex_core.testing.speech import burst, silence

E = TypeVar("E")
RATE = 16000


@pytest.fixture(scope="module")
def conversation() -> list[Event]:
    """A spoken turn, an acknowledged one that is interrupted, a tool call, a close."""
    driver = ConversationDriver(ECHO)
    speech = silence(400, RATE) + burst(900, RATE) + silence(900, RATE)
    driver.stream(speech)
    driver.wait_for(ResponseDone)
    driver.settle()
    driver.stream(speech)
    driver.wait_for(ResponseCreated, count=2)
    driver.advance(500)
    driver.send(PlaybackAck(played_ms=150), PlaybackAck(played_ms=250))
    driver.send(OutputAudioBufferClear())
    driver.settle()
    tool = FunctionTool(name="lookup")
    driver.send(SessionUpdate(session=SessionPatch(tools=[tool])))
    asked = MessageItem(role=Role.USER, content=(InputText(text='call lookup {"word": "gudgeon"}'),))
    driver.send(ConversationItemCreate(item=asked), ResponseCreate())
    driver.wait_for(ResponseDone, count=3)
    driver.send(SessionClose())
    driver.settle()
    return driver.events


def first(events: list[Event], kind: type[E], nth: int = 0) -> int:
    """Where the nth event of a type stands."""
    return [index for index, event in enumerate(events) if isinstance(event, kind)][nth]


def drop(kind: type[Event], nth: int = 0) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        del events[first(events, kind, nth)]

    return change


def double(kind: type[Event], nth: int = 0) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        at = first(events, kind, nth)
        events.insert(at, events[at])

    return change


def swap(one: type[Event], other: type[Event]) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        left, right = first(events, one), first(events, other)
        events[left], events[right] = events[right], events[left]

    return change


def late(kind: type[Event], nth: int = 0) -> Callable[[list[Event]], None]:
    """Move an event behind the fence that should have kept it out."""

    def change(events: list[Event]) -> None:
        event = events.pop(first(events, kind, nth))
        events.insert(first(events, OutputBufferCleared) + 1, event)

    return change


def edit(kind: type[E], nth: int = 0, /, **fields: object) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        at = first(events, kind, nth)
        events[at] = msgspec.structs.replace(events[at], **fields)

    return change


def edit_metadata(nth: int, **fields: object) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        at = first(events, OutputAudioDelta, nth)
        event = events[at]
        assert isinstance(event, OutputAudioDelta)
        events[at] = msgspec.structs.replace(event, metadata=msgspec.structs.replace(event.metadata, **fields))

    return change


def break_arguments(events: list[Event]) -> None:
    at = next(
        index
        for index, event in enumerate(events)
        if isinstance(event, OutputItemDone) and isinstance(event.item, FunctionCallItem)
    )
    event = events[at]
    assert isinstance(event, OutputItemDone)
    events[at] = msgspec.structs.replace(event, item=msgspec.structs.replace(event.item, arguments="{"))


def number(events: list[Event]) -> None:
    """Stamp the events, with a gap."""
    for index, event in enumerate(events):
        seq = index + 1 if index < 5 else index + 2
        events[index] = msgspec.structs.replace(event, server_event_seq=seq)


def mark(chars: int, ms: float) -> list[TextMark]:
    return [TextMark(chars=chars, ms=ms)]


def test_a_real_conversation_is_well(conversation: list[Event]) -> None:
    assert violations(conversation) == []
    assert first(conversation, PlaybackAcknowledged, 1)
    assert first(conversation, FunctionArgumentsDone)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (drop(SessionCreated), "the first event is not session.created"),
        (double(SessionClosed), "session.closed came 2 times"),
        (swap(SessionClosed, RateLimitsUpdated), "came after session.closed"),
        (number, "server_event_seq does not rise by one"),
        (drop(ResponseDone), "was created while"),
        (drop(ResponseDone, 2), "was created and never done"),
        (double(ResponseDone), "which is not being made"),
        (double(ResponseCreated), "was created twice"),
        (drop(RateLimitsUpdated), "rate_limits.updated does not follow"),
        (edit(ResponseSpeak, response_id="resp_other"), "response.speak of resp_other, which is not being made"),
        (late(OutputTranscriptDelta, 2), "of epoch 0 came after epoch 1"),
        (edit_metadata(3, epoch=5), "of epoch 0 came after epoch 5"),
        (swap(OutputAudioDone, OutputTranscriptDone), "out of order"),
        (double(ResponseSpeak), "out of order"),
        (drop(ContentPartAdded), "out of order"),
        (drop(OutputItemDone), "was begun and never done"),
        (double(ItemAdded), "came twice"),
        (double(ItemDone), "came twice"),
        (drop(ItemAdded), "was done before it was added"),
        (edit(ItemAdded, 1, previous_item_id="item_none"), "was put behind item_none"),
        (drop(SpeechStopped), "was committed before it stopped"),
        (drop(SpeechStarted), "nobody was being spoken"),
        (swap(SpeechStopped, InputCommitted), "was committed before it stopped"),
        (edit(SpeechStopped, audio_end_ms=1), "before it starts"),
        (edit(SpeechStarted, 1, audio_start_ms=1), "before"),
        (edit(OutputTranscriptDone, transcript="something else"), "says 'something else'"),
        (break_arguments, "not JSON"),
        (drop(OutputAudioDelta, 1), "the ledger says"),
        (edit(PlaybackAcknowledged, 1, playback=PlaybackLedger(generated_ms=1.0)), "fell from"),
        (edit_metadata(8, audio_text_marks=mark(1, 1.0)), "falls back"),
    ],
)
def test_it_is_noticed(conversation: list[Event], change: Callable[[list[Event]], None], sentence: str) -> None:
    events = list(conversation)
    change(events)
    wrong = violations(events)
    assert any(sentence in each for each in wrong), wrong


def test_a_conversation_that_goes_on_may_be_unfinished(conversation: list[Event]) -> None:
    unfinished = conversation[: first(conversation, OutputAudioDelta, 2)]
    assert violations(unfinished, complete=False) == []
    assert any("never done" in sentence for sentence in violations(unfinished))


def test_a_client_that_commits_has_no_speech_events() -> None:
    driver = ConversationDriver(ECHO)
    driver.send(SessionUpdate(session=SessionPatch(turn_detection=None)))
    driver.stream(burst(500, RATE))
    driver.send(InputAudioBufferCommit(response_create=True))
    driver.wait_for(ResponseDone)
    driver.settle()
    assert violations(driver.events) == []
    assert not driver.all_of(SpeechStarted)
    assert isinstance(driver.spec.session_config(driver.deploy).turn_detection, ServerVad)
