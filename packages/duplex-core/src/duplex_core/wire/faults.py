"""Says what is wrong with a message, where, and what would be right.

Owns the translation of the decoder's complaints into errors of the protocol. Called by the codec, only for messages that
could not be read. Never: raises anything but :class:`WireError`, or repeats a client's text at length.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from duplex_core.commands import COMMAND_TYPES, ResponseCreate, SessionUpdate
from duplex_core.errors import DuplexError, ErrorCode, error
from duplex_core.events import EVENT_TYPES
from duplex_core.patch import SessionPatch
from duplex_core.wire import shape
from duplex_core.wire.dialect import REFUSED_EVENTS

MAX_OPEN_DEPTH = 64
"""Deepest nesting of the values that the protocol leaves open (``options``, a tool's ``parameters``)."""
MAX_OPEN_VALUES = 50_000
"""Most values in them, all together: they are told back with every ``session.updated``."""
_MAX_QUOTED_CHARS = 200
_INT64 = range(-(2**63), 2**64)

_COMPLAINT = re.compile(r"(?P<what>.*) - at `\$(?P<path>.*?)`", re.DOTALL)
_NAMED = re.compile(r"Object (?:contains unknown|missing required) field `(?P<field>.*)`", re.DOTALL)


class WireError(DuplexError):
    """A message that cannot be read; ``info`` is what its sender should be told."""


def wire_error(code: ErrorCode, message: str, *, param: str | None = None, event_id: str | None = None) -> WireError:
    """Build a :class:`WireError`."""
    return WireError(error(code, message, param=param, event_id=event_id))


def document_of(text: str | bytes) -> dict[str, Any] | None:
    """The message as plain JSON values, or ``None`` when it is not a readable object."""
    try:
        document: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def is_about_type(fault: Exception) -> bool:
    """Whether a decoder complained of the message's own ``type``, in which case nothing else of it was judged."""
    return str(fault).endswith(" - at `$.type`")


def explain(fault: Exception, text: str | bytes, union: Any) -> WireError:
    """Turn what a decoder raised for ``text``, read as one of ``union``, into the error to tell."""
    head = _head_of(text)
    event_id = head.get("event_id")
    told = str(event_id) if isinstance(event_id, str) and len(event_id) <= _MAX_QUOTED_CHARS * 2 else None
    if isinstance(fault, RecursionError):
        return wire_error(ErrorCode.INVALID_JSON, "the event is nested too deeply", event_id=told)
    if not isinstance(fault, msgspec.ValidationError):
        message = f"the event is not valid JSON: {_quoted(str(fault))}"
        return wire_error(ErrorCode.INVALID_JSON, message, event_id=told)
    found = _COMPLAINT.fullmatch(str(fault))
    what = found["what"] if found else str(fault)
    path = found["path"].lstrip(".") if found else ""
    code, message, param = _judge(what, path, head.get("type"), union)
    return wire_error(code, message, param=param, event_id=told)


def _head_of(text: str | bytes) -> dict[str, Any]:
    """The plain values at the top of a message, as far as it can be read."""
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {name: msgspec.json.decode(raw[name]) for name in ("type", "event_id") if name in raw}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def _judge(what: str, path: str, kind: Any, union: Any) -> tuple[ErrorCode, str, str | None]:
    """Code, message and param for one complaint at one path."""
    if not path and what.startswith("Expected"):
        return ErrorCode.INVALID_EVENT, "an event is a JSON object with a type", None
    if path == "type" or (what == "Object missing required field `type`" and not path):
        return _judge_type(kind)
    if path == "session.type" and what == "Invalid enum value 'transcription'":
        message = "session.type is 'transcription'; this server serves sessions of the type 'realtime' only"
        return ErrorCode.UNSUPPORTED_PARAMETER, message, path
    named = _NAMED.fullmatch(what)
    if named:
        field = _quoted(named["field"])
        param = f"{path}.{field}" if path else field
        if "missing" in what[:16]:
            return ErrorCode.INVALID_VALUE, f"{param} is missing", param
        known = shape.fields_at(union, kind, path)
        return ErrorCode.UNKNOWN_PARAMETER, f"there is no {param}{_advice(field, known)}", param
    if "base64" in what:
        audio = path.endswith("audio")
        code = ErrorCode.INVALID_AUDIO if audio else ErrorCode.INVALID_VALUE
        return code, f"{path} is not valid base64 (standard alphabet, padded)", path
    choices = shape.choices_at(union, kind, path) if what.startswith("Invalid") else ()
    one_of = f"; it must be one of: {', '.join(choices)}" if choices else ""
    return ErrorCode.INVALID_VALUE, f"{path}: {_plain(what)}{one_of}", path


def _judge_type(kind: Any) -> tuple[ErrorCode, str, str | None]:
    if not isinstance(kind, str):
        return ErrorCode.INVALID_EVENT, "the event has no type; it must be a string", "type"
    if kind in REFUSED_EVENTS:
        return ErrorCode.UNSUPPORTED_EVENT, f"{kind} is not served: {REFUSED_EVENTS[kind]}", "type"
    if kind in COMMAND_TYPES or kind in EVENT_TYPES:
        return ErrorCode.INVALID_EVENT, f"{kind} cannot be read here, or the event names two types", "type"
    close = shape.closest(kind, COMMAND_TYPES)
    hint = f"; did you mean {close}?" if close else ""
    return ErrorCode.UNKNOWN_EVENT_TYPE, f"there is no event of the type {_quoted(kind)!r}{hint}", "type"


def _advice(field: str, known: tuple[str, ...]) -> str:
    if field in known:
        return " in an object of this type"
    close = shape.closest(field, known)
    if close:
        return f"; did you mean {close}?"
    return f"; known here are: {', '.join(known)}" if known else ""


_PLAIN_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "bytes": "a base64 string",
    "object": "an object",
    "array": "an array",
    "null": "null",
    "NoneType": "null",
}


def _plain(what: str) -> str:
    """The decoder's complaint in the words of JSON."""
    expected = re.fullmatch(r"Expected `(?P<wanted>[a-z| ]+)`(?P<limit>[^,]*)(?:, got `(?P<got>[A-Za-z]+)`)?", what)
    if expected is None:
        return _quoted(what[:1].lower() + what[1:])
    wanted = " or ".join(_PLAIN_NAMES.get(each, each) for each in expected["wanted"].split(" | "))
    got = f", not {_PLAIN_NAMES.get(expected['got'], expected['got'])}" if expected["got"] else ""
    return f"it must be {wanted}{expected['limit']}{got}"


def _quoted(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED_CHARS else f"{text[:_MAX_QUOTED_CHARS]}…"


def check_open_values(command: SessionUpdate | ResponseCreate) -> None:
    """Refuse values, where the protocol leaves them open, that could not be told back to the client.

    Raises:
        WireError: nested deeper than :data:`MAX_OPEN_DEPTH`, more than :data:`MAX_OPEN_VALUES`, or an integer that 64 bits do
            not hold.
    """
    root = "session" if isinstance(command, SessionUpdate) else "response"
    body = command.session if isinstance(command, SessionUpdate) else command.response
    if body is None:
        return
    tools = body.tools if isinstance(body.tools, list) else []
    places: dict[str, Any] = {f"{root}.tools[{index}].parameters": tool.parameters for index, tool in enumerate(tools)}
    if isinstance(body, SessionPatch) and isinstance(body.options, dict):
        places[f"{root}.options"] = body.options
    room = MAX_OPEN_VALUES
    for param, value in places.items():
        wrong, room = _wrong_within(value, room)
        if wrong:
            raise wire_error(ErrorCode.INVALID_VALUE, f"{param} {wrong}", param=param, event_id=command.event_id)


def _wrong_within(value: Any, room: int) -> tuple[str | None, int]:
    """What is wrong with a value, if anything, and for how many more there is room after it."""
    level, depth = [value], 0
    while level:
        room -= len(level)
        if room < 0:
            return f"holds more values than there is room for: {MAX_OPEN_VALUES} in all such places together", 0
        if depth > MAX_OPEN_DEPTH:
            return f"is nested more than {MAX_OPEN_DEPTH} levels deep", room
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
            elif isinstance(each, int) and each not in _INT64:
                return "holds an integer of more than 64 bits", room
        level, depth = below, depth + 1
    return None, room
