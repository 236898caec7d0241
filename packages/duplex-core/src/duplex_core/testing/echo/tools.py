"""The tool rule: which function an utterance asks for. Pure; called by the reply rule."""

from __future__ import annotations

import json
import re

import msgspec

from duplex_core.config import FunctionTool, SessionConfig, ToolFunction, ToolMode

_REQUEST = re.compile(r"\bcall\s+(?P<name>[A-Za-z_][\w-]*)\s*(?P<arguments>\{.*\})?", re.DOTALL)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A function to call; ``arguments`` is JSON text."""

    name: str
    arguments: str


def wanted_call(text: str, config: SessionConfig) -> Call | None:
    """The call that ``call NAME {json}`` asks for, when the session has that function and may call it.

    A ``tool_choice`` that demands a function gets one, with the text as its argument, also when the text names none.
    """
    if config.tool_choice is ToolMode.NONE or not config.tools:
        return None
    found = _REQUEST.search(text)
    if found and any(tool.name == found["name"] for tool in _allowed(config)):
        return Call(name=found["name"], arguments=_object(found["arguments"]))
    if config.tool_choice is ToolMode.AUTO:
        return None
    return Call(name=_allowed(config)[0].name, arguments=json.dumps({"text": text}))


def _allowed(config: SessionConfig) -> tuple[FunctionTool, ...]:
    choice = config.tool_choice
    if isinstance(choice, ToolFunction):
        return tuple(tool for tool in config.tools if tool.name == choice.name)
    return config.tools


def _object(text: str | None) -> str:
    """``text`` if it is a JSON object, else one that holds it."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return json.dumps({"text": text})
    return json.dumps(value)
