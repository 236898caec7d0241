"""The base64 of the two messages that carry sound, a hundred thousand times as often as all others.

Owns the short way between such a message and its JSON: msgspec reads and writes all of it but the sound, and pybase64 the
sound, in vector instructions, which takes a tenth of the time. Called by the codec alone. Never: takes or makes another text
than msgspec's own base64 would; whatever is short, or unusual about the sound's text, is left to msgspec, and so is all that
cannot be read. There is one exception, at `_MARK`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Generic, TypeVar, cast

import msgspec
import pybase64

from duplex_core.commands import InputAudioBufferAppend
from duplex_core.events import OutputAudioDelta

Message = TypeVar("Message")
Text = TypeVar("Text", str, bytes)

_FIELDS: dict[type[msgspec.Struct], str] = {InputAudioBufferAppend: "audio", OutputAudioDelta: "delta"}
"""The messages, each with the field that has the sound. No field before it has values with fields of their own."""
_GAPS = {kind: f'"{field}":""'.encode() for kind, field in _FIELDS.items()}
"""What stands in a message without sound. In a text before it, the quotation marks would be escaped."""

_LEAST_READ = 4096
"""Characters of a message from which on reading it in two parts takes less time than msgspec's own base64."""
_LEAST_WRITTEN = 2048
"""Bytes of sound from which on it is so with writing."""

_MARK = b"where the sound stood"
"""What no message has for its sound. One that has its sound twice, this being the second, is read as if it had the first."""
_MARK_TEXT_UTF8 = base64.b64encode(_MARK)
_MARK_TEXT = _MARK_TEXT_UTF8.decode()

_ENCODER = msgspec.json.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """A message as JSON."""
    field = _FIELDS.get(type(message))
    if field is None or len(given := getattr(message, field)) < _LEAST_WRITTEN:
        return _ENCODER.encode(message)
    gap, sound = _GAPS[type(message)], pybase64.b64encode(given)
    before, _, after = _ENCODER.encode(msgspec.structs.replace(message, **{field: b""})).partition(gap)
    return b"".join((before, gap[:-1], sound, b'"', after))


class Decoder(Generic[Message]):
    """Reads the messages of one union, of which one carries sound."""

    def __init__(self, union: Any, sounding: type[msgspec.Struct]) -> None:
        """Make it for ``union``, a member of which is ``sounding``."""
        self._sounding = sounding
        self._field = _FIELDS[sounding]
        self._key = f'"{self._field}":'
        self._key_utf8 = self._key.encode()
        self._json: msgspec.json.Decoder[Message] = msgspec.json.Decoder(union)

    def decode(self, text: str | bytes) -> Message:
        """The message that ``text`` is.

        Raises:
            msgspec.DecodeError, UnicodeError, RecursionError: as msgspec does.
        """
        if len(text) >= _LEAST_READ:
            if isinstance(text, str):
                found = self._in_two(text, self._key, '"', _MARK_TEXT)
            else:
                found = self._in_two(text, self._key_utf8, b'"', _MARK_TEXT_UTF8)
            if found is not None:
                return found
        return self._json.decode(text)

    def _in_two(self, text: Text, key: Text, quote: Text, mark: Text) -> Message | None:
        """The message, if its sound is after the first ``key``, and usual; the text is read with a mark in the sound's place."""
        value = text.find(key) + len(key)
        begin = text.find(quote, value, value + 2) + 1  # a space may be before it
        end = text.find(quote, begin)
        if value < len(key) or not 0 < begin <= end:
            return None
        try:
            message: Any = self._json.decode(text[:begin] + mark + text[end:])
            sound = pybase64.b64decode(text[begin:end], validate=True)
        except (msgspec.DecodeError, UnicodeError, RecursionError, binascii.Error, ValueError):
            return None  # escapes, which are rare; or a fault, of which the first in the text is to be told
        if type(message) is not self._sounding or getattr(message, self._field) != _MARK:
            return None
        return cast("Message", msgspec.structs.replace(message, **{self._field: sound}))
