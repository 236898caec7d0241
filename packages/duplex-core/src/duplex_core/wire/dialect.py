"""Spellings that the typed vocabulary does not have and stock clients or newer servers send.

Owns: the client event types that are known and refused by name, the rewriting of the beta protocol's content parts, and
the passing over of unknown fields in server events. Called by the codec, and only for messages that its first pass could
not read. Works on plain JSON values and never on typed ones.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from duplex_core.commands import Command
from duplex_core.events import Event

_COMMAND: Any = Command
_EVENT: Any = Event

REFUSED_EVENTS = {
    "transcription_session.update": "this server has no transcription-only sessions; use session.update with "
    "audio.input.transcription",
    "session.input_audio_buffer.append": "this server has no translation sessions; use input_audio_buffer.append",
}
"""Client event types of OpenAI's endpoints that are known here and not served, with what to do instead."""

_BETA_PARTS = {
    "user": {"text": "input_text", "audio": "input_audio"},
    "system": {"text": "input_text"},
    "assistant": {"text": "output_text", "audio": "output_audio"},
}
"""For each role, the part types of the beta protocol and what the GA protocol calls them."""

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<field>.*?)`(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_NULL = re.compile(r"Expected `[^`]*`, got `null` - at `\$(?P<path>.*)\.(?P<field>[^.]*)`", re.DOTALL)
_MAX_TAKEN_OUT = 200


def read_stock_command(document: dict[str, Any]) -> Command:
    """The command that ``document`` is in a stock client's spelling.

    Content parts of the beta protocol are taken for those of the GA protocol, and a ``null`` where there is no such value
    for what those clients mean by it: that nothing was said.

    Raises:
        msgspec.ValidationError: something else is wrong with it.
    """
    command: Command = _convert_without(_NULL, _rewrite(document) or document, _COMMAND)
    return command


def _rewrite(document: dict[str, Any]) -> dict[str, Any] | None:
    """A command with the content parts of its items in GA spelling, or ``None`` when there was nothing to change."""
    kind = document.get("type")
    if kind == "conversation.item.create":
        item = _rewrite_item(document.get("item"))
        return None if item is None else {**document, "item": item}
    response = document.get("response")
    if kind == "response.create" and isinstance(response, dict) and isinstance(response.get("input"), list):
        items = [_rewrite_item(item) for item in response["input"]]
        if any(item is not None for item in items):
            merged = [old if new is None else new for old, new in zip(response["input"], items, strict=True)]
            return {**document, "response": {**response, "input": merged}}
    return None


def _rewrite_item(item: Any) -> dict[str, Any] | None:
    if not isinstance(item, dict) or not isinstance(item.get("content"), list):
        return None
    names = _BETA_PARTS.get(item["role"]) if isinstance(item.get("role"), str) else None
    if names is None:
        return None
    parts = [_rewrite_part(part, names) for part in item["content"]]
    return None if parts == item["content"] else {**item, "content": parts}


def _rewrite_part(part: Any, names: dict[str, str]) -> Any:
    """One part in GA spelling; fields that are ``null`` say nothing and are left out."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return part
    said = {name: value for name, value in part.items() if value is not None}
    return {**said, "type": names.get(part["type"], part["type"])}


def read_newer_event(document: dict[str, Any]) -> Event:
    """The event that ``document`` is with the fields taken out that its strict parts (items, formats) do not know.

    Raises:
        msgspec.ValidationError: something else is wrong with it.
    """
    event: Event = _convert_without(_UNKNOWN_FIELD, document, _EVENT)
    return event


def _convert_without(complaint: re.Pattern[str], document: dict[str, Any], kind: Any) -> Any:
    """Convert to ``kind``, taking out one by one the fields about which ``complaint`` is all that can be said."""
    for _ in range(_MAX_TAKEN_OUT):
        try:
            return msgspec.convert(document, type=kind)
        except msgspec.ValidationError as exc:
            found = complaint.fullmatch(str(exc))
            if found is None or not _take_out(document, found["path"] or "", found["field"]):
                raise
    return msgspec.convert(document, type=kind)


def _take_out(document: dict[str, Any], path: str, field: str) -> bool:
    """Remove the field at ``path``; false when there is no such field."""
    place: Any = document
    for name, index in _STEP.findall(path):
        step = int(index) if index else name
        try:
            place = place[step]
        except (KeyError, IndexError, TypeError):
            return False
    return isinstance(place, dict) and place.pop(field, msgspec.UNSET) is not msgspec.UNSET
