"""JSON text to commands and events, and back.

Owns the four functions that both ends of the wire call, once for each message. The good path is one pass in C, base64
included; a message that fails it gets a second, slower look, which finds the spellings of stock clients that we read
another way, or says precisely what is wrong. Never: lets anything but :class:`~duplex_core.wire.faults.WireError` out of
a decoder, whatever the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from duplex_core.commands import Command, InputAudioBufferAppend, ResponseCreate, SessionUpdate
from duplex_core.errors import ErrorCode
from duplex_core.events import Event, OutputAudioDelta
from duplex_core.wire import dialect, faults, sound

MAX_EVENT_BYTES = 15 * 1024 * 1024
"""Largest text of one client event, in bytes of UTF-8 (15 MiB)."""
MAX_EVENT_VALUES = 100_000
"""Most commas in one client event. Sound and pictures have none; what has more is so many values that reading them would keep
all other sessions waiting."""
MAX_EVENT_ID_CHARS = 512
"""Longest ``event_id`` of a client, in characters, as in the GA protocol."""

_COMMANDS: sound.Decoder[Command] = sound.Decoder(Command, InputAudioBufferAppend)
_EVENTS: sound.Decoder[Event] = sound.Decoder(Event, OutputAudioDelta)

_WITH_OPEN_VALUES = (SessionUpdate, ResponseCreate)
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What the decoders raise for bad text; ``msgspec.ValidationError`` is the first one's subclass."""


def decode_command(text: str | bytes) -> Command:
    """Read one client event.

    Args:
        text: one JSON object; ``bytes`` are UTF-8.

    Raises:
        WireError: it is not one, with the reason, the offending field and, where it can be read, the ``event_id``.
    """
    if len(text) > MAX_EVENT_BYTES or (
        isinstance(text, str) and not text.isascii() and _utf8_size(text) > MAX_EVENT_BYTES
    ):
        limit = MAX_EVENT_BYTES // (1024 * 1024)
        message = f"the event is larger than {limit} MiB; send long audio in several appends"
        raise faults.wire_error(ErrorCode.EVENT_TOO_LARGE, message)
    if len(text) > MAX_EVENT_VALUES and _commas(text) > MAX_EVENT_VALUES:
        message = f"the event has more than {MAX_EVENT_VALUES} commas, so too many values; send them in several events"
        raise faults.wire_error(ErrorCode.EVENT_TOO_LARGE, message)
    try:
        command = _COMMANDS.decode(text)
    except _UNREADABLE as exc:
        reread, fault = _second_look(text, exc, dialect.read_stock_command)
        if reread is None:
            raise faults.explain(fault, text, Command) from None
        command = reread
    if command.event_id is not None and len(command.event_id) > MAX_EVENT_ID_CHARS:
        message = f"event_id is longer than {MAX_EVENT_ID_CHARS} characters"
        raise faults.wire_error(ErrorCode.INVALID_VALUE, message, param="event_id")
    if isinstance(command, _WITH_OPEN_VALUES):
        faults.check_open_values(command)
    return command


def encode_command(command: Command) -> str:
    """Render one command as the JSON text that :func:`decode_command` reads. Fields that are unset are left out."""
    return sound.encode(command).decode()


def encode_event(event: Event, *, event_id: str, seq: int) -> str:
    """Render one event as JSON text, stamped with its id and its place in the session's order."""
    return encode_event_utf8(event, event_id=event_id, seq=seq).decode()


def encode_event_utf8(event: Event, *, event_id: str, seq: int) -> bytes:
    """As :func:`encode_event`; the text in UTF-8, as it stands in a frame."""
    if event.event_id != event_id or event.server_event_seq != seq:
        event = msgspec.structs.replace(event, event_id=event_id, server_event_seq=seq)
    return sound.encode(event)


def decode_event(text: str | bytes) -> Event:
    """Read one server event. Fields that are not known here are passed over: the server may be newer.

    Raises:
        WireError: it is not one. A type that is not known here has the code ``unknown_event_type``; a client that wants
            to go on may skip that event.
    """
    try:
        return _EVENTS.decode(text)
    except _UNREADABLE as exc:
        event, fault = _second_look(text, exc, dialect.read_newer_event)
        if event is None:
            raise faults.explain(fault, text, Event) from None
        return event  # type: ignore[no-any-return]


def _second_look(text: str | bytes, fault: Exception, read: Callable[[dict[str, Any]], Any]) -> tuple[Any, Exception]:
    """What a slower reader makes of a message: the value, or ``None``, and the complaint that then stands."""
    readable = isinstance(fault, msgspec.ValidationError) and not faults.is_about_type(fault)
    document = faults.document_of(text) if readable else None
    if document is None:
        return None, fault
    try:
        return read(document), fault
    except (msgspec.ValidationError, RecursionError) as exc:
        return None, exc


def _commas(text: str | bytes) -> int:
    return text.count(",") if isinstance(text, str) else text.count(b",")


def _utf8_size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
