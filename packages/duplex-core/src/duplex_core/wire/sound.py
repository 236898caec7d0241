"""The base64 of the two messages that carry sound, a hundred thousand times as often as all others.

Owns the short way between such a message and its JSON: msgspec reads and writes all of it but the sound, and pybase64 the
sound, in vector instructions, which takes a tenth of the time. Called by the codec alone. Never: takes or makes another text
than msgspec's own base64 would; whatever is short, or unusual about the sound's text, is left to msgspec, and so is all that
cannot be read. There is one exception: of sound that is given twice, the earlier is not looked at.
"""

from __future__ import annotations

import binascii
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar, get_args

import msgspec
import pybase64

from duplex_core.commands import InputAudioBufferAppend
from duplex_core.events import OutputAudioDelta

Message = TypeVar("Message")

_FIELDS: dict[type[msgspec.Struct], str] = {InputAudioBufferAppend: "audio", OutputAudioDelta: "delta"}
"""The messages, each with the field that has the sound. No field before it has values with fields of their own."""
_GAPS = {kind: f'"{field}":""'.encode() for kind, field in _FIELDS.items()}
"""What stands in a message without sound. In a text before it, the quotation marks would be escaped."""

_LEAST_READ = 4096
"""Characters of a message from which on reading it in two parts takes less time than msgspec's own base64."""
_LEAST_WRITTEN = 2048
"""Bytes of sound from which on it is so with writing."""

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
        self._unread = _with_raw(sounding, self._field)
        others = [kind for kind in get_args(union) if kind is not sounding]
        self._short: msgspec.json.Decoder[Any] = msgspec.json.Decoder(reduce(or_, [*others, self._unread]))
        self._whole: msgspec.json.Decoder[Message] = msgspec.json.Decoder(union)

    def decode(self, text: str | bytes) -> Message:
        """The message that ``text`` is.

        Raises:
            msgspec.DecodeError, UnicodeError, RecursionError: as msgspec does.
        """
        if len(text) < _LEAST_READ:
            return self._whole.decode(text)
        try:
            message = self._short.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return self._whole.decode(text)  # the first fault of a message is told, which may be its sound's
        if type(message) is not self._unread:
            return message  # type: ignore[no-any-return]
        values = msgspec.structs.asdict(message)
        written = memoryview(values[self._field])
        try:
            if written[0] != ord('"'):
                return self._whole.decode(text)
            values[self._field] = pybase64.b64decode(written[1:-1], validate=True)
        except (binascii.Error, ValueError):
            return self._whole.decode(text)  # escapes, which are rare, or none at all
        return self._sounding(**values)  # type: ignore[return-value]


def _with_raw(kind: type[msgspec.Struct], field: str) -> type[msgspec.Struct]:
    """A message like ``kind`` whose ``field`` is left as it is written."""
    fields: list[Any] = []
    for each in msgspec.structs.fields(kind):
        if each.name == field:
            fields.append((each.encode_name, msgspec.Raw))
        elif each.required:
            fields.append((each.encode_name, each.type))
        elif each.default is not msgspec.NODEFAULT:
            fields.append((each.encode_name, each.type, each.default))
        else:
            fields.append((each.encode_name, each.type, msgspec.field(default_factory=each.default_factory)))
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__,
        fields,
        kw_only=True,
        frozen=True,
        tag=config.tag,
        tag_field=config.tag_field,
        forbid_unknown_fields=config.forbid_unknown_fields,
    )
