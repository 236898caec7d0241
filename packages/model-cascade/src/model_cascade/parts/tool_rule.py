"""How a model that is too small for functions gets by with them: two rules, decided without it.

Owns: whether a question is one for a function, and how a function's result is said. Called by:
:mod:`model_cascade.parts.local_language_model`. Never: makes a call, or looks beyond the messages that it is given.

A model of 135 million parameters calls no function by itself, and garbles what one returned. So a function is called
when the user says its name, and its result is said as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from model_cascade.parts.language_model import Message, Tool

_LONGEST_RESULT = 300
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_WORD = re.compile(r"[a-z0-9]+")
_VERBS = frozenset(
    (
        *("get", "set", "find", "look", "lookup", "fetch", "call", "make", "create", "do", "run", "check", "show"),
        *("list", "read", "send", "add", "put", "start", "stop", "search", "query", "current", "up", "the", "a", "an"),
        *("for", "by", "of", "in", "to", "and", "is", "now", "my"),
    )
)
_CALLING = frozenset(("use", "call"))


def function_asked_for(messages: Sequence[Message], tools: Sequence[Tool]) -> Tool | None:
    """Tell which function the user's last message asks for: one whose name it says.

    Verbs like "get" may be left out; a name of nothing but verbs is meant only in words like "use lookup" or "call stop".

    "What is the weather in Paris?" says the name of ``get_weather``. Where it says several names, the longest counts.

    Returns:
        The function; ``None`` when no name is said, or when the last message is not the user's.
    """
    if not messages or messages[-1].role != "user":
        return None
    said = {_stem(word) for word in _WORD.findall(messages[-1].content.lower())}
    best: tuple[int, Tool] | None = None
    for tool in tools:
        parts = {_stem(part.lower()) for part in _PART.findall(tool.name)}
        name = parts - _VERBS or (parts if _CALLING & said else set())
        if name and name <= said and (best is None or len(name) > best[0]):
            best = (len(name), tool)
    return best[1] if best else None


def said_plainly(result: str) -> str:
    """Put what a function returned into words: the names and values of JSON, other text as it is.

    ``{"temperature_c": 21, "sky": "sunny"}`` becomes ``Temperature c: 21, sky: sunny.``

    Returns:
        At most about 300 characters, ending like a sentence.
    """
    try:
        value = json.loads(result)
    except json.JSONDecodeError:
        value = result
    text = _in_words(value).strip()
    if len(text) > _LONGEST_RESULT:
        text = text[:_LONGEST_RESULT].rsplit(" ", 1)[0]
    text = text[:1].upper() + text[1:] if text else "Done"
    return text if text[-1] in ".!?" else f"{text.rstrip(',;:')}."


def plain_turns(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Write a conversation as roles and texts without functions: calls are left out, results said once."""
    turns = []
    for message, following in zip(messages, (*messages[1:], None), strict=False):
        if message.role == "tool":
            said_already = following is not None and following.role in {"assistant", "tool"}
            if not said_already:
                turns.append(("assistant", said_plainly(message.content)))
        elif message.content or not message.tool_calls:
            turns.append((message.role, message.content))
    return turns


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{str(key).replace('_', ' ')}: {_in_words(one)}" for key, one in value.items() if one is not None
        )
    if isinstance(value, list):
        return ", ".join(_in_words(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _stem(word: str) -> str:
    for ending in ("ies", "es", "s", "ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word.rstrip("ey") if len(word) > 3 else word
