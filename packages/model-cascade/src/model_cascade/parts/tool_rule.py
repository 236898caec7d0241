"""Whether a question is one for a function, decided without a model.

Owns: this one rule. Called by: :mod:`model_cascade.parts.local_language_model` where functions may be called, because a
model of 135 million parameters never calls one by itself. Never: looks beyond the user's last message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from model_cascade.parts.language_model import Message, Tool

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_WORD = re.compile(r"[a-z0-9]+")
_VERBS = frozenset(
    (
        *("get", "set", "find", "look", "lookup", "fetch", "call", "make", "create", "do", "run", "check", "show"),
        *("list", "read", "send", "add", "put", "start", "stop", "search", "query", "current", "up", "the", "a", "an"),
        *("for", "by", "of", "in", "to", "and", "is", "now", "my"),
    )
)


def function_asked_for(messages: Sequence[Message], tools: Sequence[Tool]) -> Tool | None:
    """Tell which function the user's last message asks for: one whose name it says, verbs like "get" left out.

    "What is the weather in Paris?" says the name of ``get_weather``. Where it says several names, the longest counts.

    Returns:
        The function; ``None`` when no name is said, or when the last message is not the user's.
    """
    if not messages or messages[-1].role != "user":
        return None
    said = {_stem(word) for word in _WORD.findall(messages[-1].content.lower())}
    best: tuple[int, Tool] | None = None
    for tool in tools:
        name = {_stem(part.lower()) for part in _PART.findall(tool.name)} - _VERBS
        if name and name <= said and (best is None or len(name) > best[0]):
            best = (len(name), tool)
    return best[1] if best else None


def _stem(word: str) -> str:
    for ending in ("ies", "es", "s", "ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word.rstrip("ey") if len(word) > 3 else word
