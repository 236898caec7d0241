"""Function calls in a model's text: how a model is told to make them, and how what it writes is read.

Owns: the prompt format below and its reader. Called by: :mod:`model_cascade.parts.local_language_model`, which writes
the format, and :mod:`model_cascade.parts.chat_endpoint`, since many endpoints pass such text on unread. Never: runs a
function, or checks arguments against a schema.

The format is that of the Hermes, Qwen and SmolLM2 function-calling data. A system message says::

    You can call functions. They are, one a line:
    {"name": "set_timer", "description": "...", "parameters": {...}}
    To call one, answer with nothing but <tool_call>{"name": "...", "arguments": {...}}</tool_call>

Models also write a list of calls between the tags, bare JSON, or JSON inside a Markdown fence, and forget closing
brackets and tags; all of these are read as calls when they name a function that exists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model_cascade.parts.language_model import Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FENCE = re.compile(r"^```(?:json)?\s*|\s*```$")
_BARE_STARTS = ("{", "[{", "```")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that was read; ``arguments`` is the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenCall:
    """The model meant to call something, but what it wrote cannot be read, or names no function that there is."""

    raw: str


Read = str | Call | BrokenCall


def instructions(tools: Sequence[Tool]) -> str:
    """Tell a model in its system message what it may call; empty without tools."""
    if not tools:
        return ""
    lines = [
        json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.parameters}, default=dict)
        for tool in tools
    ]
    return (
        "You can call functions. They are, one a line:\n"
        + "\n".join(lines)
        + f'\nTo call one, answer with nothing but {OPEN}{{"name": "...", "arguments": {{...}}}}{CLOSE}'
    )


class CallReader:
    """Separates the calls in a streamed answer from its text. Feed it pieces, then :meth:`finish`.

    Text is passed on at once, but for what may be the beginning of a call. Every character of the answer is either
    passed on or part of a call, where line ends behind a call belong to it.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._text = ""
        self._begun = False
        self._after_call = False

    def feed(self, piece: str) -> list[Read]:
        """Take more of the answer and give what is certain about it."""
        self._text += piece
        if self._after_call:
            self._text = self._text.lstrip("\n")
            self._after_call = not self._text
        found: list[Read] = []
        while self._text:
            stripped = self._text.lstrip()
            if not self._begun and any(stripped.startswith(one[: len(stripped)]) for one in _BARE_STARTS):
                break  # perhaps bare JSON: wait for the end
            start = self._text.find(OPEN)
            if start < 0:
                safe = len(self._text) - _overlap(self._text)
                found += self._pass(safe)
                break
            found += self._pass(start)
            end = self._text.find(CLOSE)
            if end < 0:
                break
            raw = self._text[len(OPEN) : end]
            found += self._calls(raw) or [BrokenCall(raw=raw)]
            self._text = self._text[end + len(CLOSE) :].lstrip("\n")
            self._after_call = not self._text
        return found

    def finish(self) -> list[Read]:
        """Give what is left when the answer has ended: small models forget the closing tag, and cut JSON short."""
        rest, self._text = self._text, ""
        if not rest.strip():
            return [rest] if rest else []
        if rest.startswith(OPEN):
            raw = rest[len(OPEN) :]
            return self._calls(raw) or [BrokenCall(raw=raw)]
        if not self._begun and rest.lstrip().startswith(_BARE_STARTS):
            return self._calls(rest) or [rest]
        return [rest]

    def _pass(self, size: int) -> list[Read]:
        text, self._text = self._text[:size], self._text[size:]
        self._begun = self._begun or bool(text.strip())
        return [text] if text else []

    def _calls(self, raw: str) -> list[Read]:
        """Read one call or a list of them; empty when they are not what they should be."""
        value = _json(_FENCE.sub("", raw.strip()))
        entries = value if isinstance(value, list) else [value]
        calls: list[Read] = []
        for entry in entries:
            call = self._call(entry)
            if call is None:
                return []
            calls.append(call)
        return calls

    def _call(self, entry: Any) -> Call | None:
        if not isinstance(entry, dict):
            return None
        entry = entry.get("function", entry) if isinstance(entry.get("function"), dict) else entry
        name, arguments = entry.get("name"), entry.get("arguments", entry.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _json(arguments)
        if name not in self._names or not isinstance(arguments, dict):
            return None
        return Call(name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str) -> int:
    """Tell how many characters at the end of the text may be the beginning of the opening tag."""
    for size in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if text.endswith(OPEN[:size]):
            return size
    return 0


def _json(text: str) -> Any:
    """Read the first JSON value in the text, supplying closing brackets that were forgotten; ``None`` when there is none."""
    text = text.strip()
    for repair in ("", "}", "}}", "]", "}]", '"}}'):
        try:
            return json.JSONDecoder().raw_decode(text + repair)[0]
        except json.JSONDecodeError:
            continue
    return None
