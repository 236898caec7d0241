"""What holds for the events of every conversation, whatever the model and whatever happened.

Called by the conformance kit, by the core's tests and by tests over a real socket, with the events in the order in which
the client got them. Pure: reads a list, gives sentences about what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from duplex_core.events import (
    STREAM_DELTAS,
    ContentPartAdded,
    ContentPartDone,
    Event,
    FunctionArgumentsDelta,
    FunctionArgumentsDone,
    InputCleared,
    InputCommitted,
    ItemAdded,
    ItemDone,
    OutputAudioDelta,
    OutputAudioDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    OutputTranscriptDelta,
    OutputTranscriptDone,
    PlaybackAcknowledged,
    RateLimitsUpdated,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    ResponseSpeak,
    SessionClosed,
    SessionCreated,
    SpeechStarted,
    SpeechStopped,
)
from duplex_core.items import FunctionCallItem, ItemStatus, item_text
from duplex_core.ledger import PlaybackLedger

MADE = (*STREAM_DELTAS, ResponseSpeak)
"""Events that carry something generated: what a fence keeps out."""
OF_A_RESPONSE = (
    *MADE,
    ResponseListen,
    OutputItemAdded,
    OutputItemDone,
    ContentPartAdded,
    ContentPartDone,
    OutputAudioDone,
    OutputTranscriptDone,
    OutputTextDone,
    FunctionArgumentsDone,
)
"""Events that may only stand between ``response.created`` and ``response.done`` of the response that they name."""

_LETTERS: dict[type[Any], str] = {
    OutputItemAdded: "A",
    ItemAdded: "a",
    ContentPartAdded: "P",
    ResponseSpeak: "S",
    OutputAudioDelta: "D",
    OutputTranscriptDelta: "T",
    OutputTextDelta: "X",
    FunctionArgumentsDelta: "F",
    OutputAudioDone: "d",
    OutputTranscriptDone: "t",
    OutputTextDone: "x",
    FunctionArgumentsDone: "f",
    ContentPartDone: "p",
    OutputItemDone: "Z",
    ItemDone: "z",
}
_ORDER = re.compile("Aa?PT*(S[DT]*)?dtpZz?|Aa?PX*xpZz?|Aa?F*fZz?")
"""The order of an output item's events, spoken, written or called. Lower case ``a`` and ``z`` are missing out of band."""


def check(events: Sequence[Event], *, complete: bool = True) -> None:
    """Assert that nothing is wrong with ``events``; see :func:`violations`."""
    wrong = violations(events, complete=complete)
    assert not wrong, "\n".join(["these events break what always holds:", *wrong])


def violations(events: Sequence[Event], *, complete: bool = True) -> list[str]:
    """Everything that is wrong with ``events``, in sentences; empty when all is well.

    Args:
        events: from the session's first to its last, or to now.
        complete: whether the conversation has come to rest, so that what was begun must have ended.
    """
    checks = (_session, _responses, _fences, _order, _items, _speech, _texts, _ledger)
    wrong = [sentence for one in checks for sentence in one(events)]
    return wrong + (list(_unfinished(events)) if complete else [])


def _session(events: Sequence[Event]) -> Iterator[str]:
    if not events or not isinstance(events[0], SessionCreated):
        yield "the first event is not session.created"
    closed = [index for index, event in enumerate(events) if isinstance(event, SessionClosed)]
    if len(closed) > 1:
        yield f"session.closed came {len(closed)} times"
    if closed and closed[0] != len(events) - 1:
        yield f"{_name(events[-1])} came after session.closed"
    numbers = [event.server_event_seq for event in events if event.server_event_seq]
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        yield "server_event_seq does not rise by one"


def _responses(events: Sequence[Event]) -> Iterator[str]:
    """One response at a time, each with one end, nothing of it outside."""
    seen: set[str] = set()
    open_id: str | None = None
    for index, event in enumerate(events):
        if isinstance(event, ResponseCreated):
            if open_id is not None:
                yield f"{event.response.id} was created while {open_id} was being made"
            if event.response.id in seen:
                yield f"{event.response.id} was created twice"
            open_id = event.response.id
            seen.add(open_id)
        elif isinstance(event, ResponseDone):
            if event.response.id != open_id:
                yield f"response.done of {event.response.id}, which is not being made"
            open_id = None
            if not isinstance(events[index + 1] if index + 1 < len(events) else None, RateLimitsUpdated):
                yield f"rate_limits.updated does not follow response.done of {event.response.id}"
        elif isinstance(event, OF_A_RESPONSE) and event.response_id not in (open_id, None):
            yield f"{_name(event)} of {event.response_id}, which is not being made"


def _fences(events: Sequence[Event]) -> Iterator[str]:
    """Epochs never fall, and what was made under an older one never comes after a newer one was told."""
    epoch = 0
    for event in events:
        told = getattr(event, "epoch", None)
        if isinstance(event, OutputAudioDelta):
            told = event.metadata.epoch
        if isinstance(event, MADE) and told is not None and told < epoch:
            yield f"{_name(event)} of epoch {told} came after epoch {epoch} was told"
        if told is not None and not isinstance(event, ResponseDone):
            epoch = max(epoch, told)


def _order(events: Sequence[Event]) -> Iterator[str]:
    """Each finished output item's events stand in the order of the wire contract."""
    output: dict[str, str] = {}
    for event in events:
        item_id = _item_id(event)
        if isinstance(event, OutputItemAdded):
            output[item_id] = ""
        if item_id in output:
            output[item_id] += _LETTERS.get(type(event), "")
    for item_id, letters in output.items():
        if "Z" in letters and not _ORDER.fullmatch(letters):
            yield f"the events of {item_id} are out of order: {letters} (letters as in {__name__})"


def _items(events: Sequence[Event]) -> Iterator[str]:
    """Items are added once, done once, after being added, each behind one that is known."""
    added: set[str] = set()
    done: set[str] = set()
    for event in events:
        if not isinstance(event, ItemAdded | ItemDone):
            continue
        item_id, previous = event.item.id or "", event.previous_item_id
        group = added if isinstance(event, ItemAdded) else done
        if not item_id or item_id in group:
            yield f"{_name(event)} of {item_id or 'an item without id'} came twice"
        if group is done and item_id not in added:
            yield f"{item_id} was done before it was added"
        if previous is not None and previous not in added:
            yield f"{item_id} was put behind {previous}, which was never added"
        group.add(item_id)


def _speech(events: Sequence[Event]) -> Iterator[str]:
    """The user's utterances: started, then stopped or cleared, in the order of time."""
    speaking: str | None = None
    last_ms = 0
    for event in events:
        if isinstance(event, SpeechStarted):
            if speaking is not None:
                yield f"{event.item_id} started while {speaking} was being spoken"
            if event.audio_start_ms < last_ms:
                yield f"{event.item_id} starts at {event.audio_start_ms} ms, before {last_ms} ms"
            speaking, last_ms = event.item_id, event.audio_start_ms
        elif isinstance(event, SpeechStopped):
            if speaking != event.item_id:
                yield f"{event.item_id} stopped, but {speaking or 'nobody'} was being spoken"
            if event.audio_end_ms < last_ms:
                yield f"{event.item_id} ends at {event.audio_end_ms} ms, before it starts at {last_ms} ms"
            speaking, last_ms = None, event.audio_end_ms
        elif isinstance(event, InputCleared):
            speaking = None
        elif isinstance(event, InputCommitted) and speaking == event.item_id:
            yield f"{event.item_id} was committed before it stopped"


def _texts(events: Sequence[Event]) -> Iterator[str]:
    """The `.done` of each text repeats what its deltas said; finished arguments are JSON."""
    said: dict[str, str] = defaultdict(str)
    for event in events:
        if isinstance(event, OutputTranscriptDelta | OutputTextDelta | FunctionArgumentsDelta):
            said[event.item_id] += event.delta
            continue
        whole = _whole_text(event)
        if whole is None:
            continue
        item_id, text = whole
        if text != said[item_id]:
            yield f"{_name(event)} of {item_id} says {text!r}, its deltas said {said[item_id]!r}"
        if isinstance(event, OutputItemDone) and isinstance(event.item, FunctionCallItem):
            yield from _arguments(event.item)


def _whole_text(event: Event) -> tuple[str, str] | None:
    """Item and text of an event that repeats a whole text."""
    match event:
        case OutputTranscriptDone(item_id=item_id, transcript=text) | OutputTextDone(item_id=item_id, text=text):
            return item_id, text
        case FunctionArgumentsDone(item_id=item_id, arguments=text):
            return item_id, text
        case ContentPartDone(item_id=item_id, part=part):
            return item_id, (part.transcript if part.type == "audio" else part.text) or ""
        case OutputItemDone(item=item):
            return item.id or "", item_text(item)
        case _:
            return None


def _arguments(call: FunctionCallItem) -> Iterator[str]:
    if call.status is not ItemStatus.COMPLETED:
        return
    try:
        json.loads(call.arguments)
    except ValueError:
        yield f"the finished call {call.call_id} has arguments that are not JSON: {call.arguments!r}"


def _ledger(events: Sequence[Event]) -> Iterator[str]:
    """No figure of a ledger falls; what was made is what was given out; marks rise and stay within the text."""
    ledgers: dict[str, PlaybackLedger] = defaultdict(PlaybackLedger)
    made: dict[str, float] = defaultdict(float)
    marked: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for event in events:
        if isinstance(event, OutputAudioDelta):
            made[event.item_id] += event.metadata.audio_duration_ms
            now = event.metadata.playback
            if abs(now.generated_ms - made[event.item_id]) > 0.01:
                yield f"{event.item_id}: the ledger says {now.generated_ms} ms were made, the deltas {made[event.item_id]}"
            for mark in event.metadata.audio_text_marks:
                if (mark.chars, mark.ms) < marked[event.item_id]:
                    yield f"{event.item_id}: mark {mark} falls back behind {marked[event.item_id]}"
                marked[event.item_id] = (mark.chars, mark.ms)
        elif isinstance(event, PlaybackAcknowledged):
            now = event.playback
        else:
            continue
        before, ledgers[event.item_id] = ledgers[event.item_id], now
        fallen = [name for name in now.__struct_fields__ if getattr(now, name) < getattr(before, name) - 0.01]
        if fallen:
            yield f"{event.item_id}: {', '.join(fallen)} fell from {before} to {now}"


def _unfinished(events: Sequence[Event]) -> Iterator[str]:
    """What was begun and has not ended."""
    created = {event.response.id for event in events if isinstance(event, ResponseCreated)}
    ended = {event.response.id for event in events if isinstance(event, ResponseDone)}
    for response_id in sorted(created - ended):
        yield f"{response_id} was created and never done"
    begun = {_item_id(event) for event in events if isinstance(event, OutputItemAdded)}
    over = {_item_id(event) for event in events if isinstance(event, OutputItemDone)}
    for item_id in sorted(begun - over):
        yield f"{item_id} was begun and never done"


def _item_id(event: Event) -> str:
    if isinstance(event, OutputItemAdded | OutputItemDone | ItemAdded | ItemDone):
        return event.item.id or ""
    return getattr(event, "item_id", "") or ""


def _name(event: Event) -> str:
    return str(type(event).__struct_config__.tag)
