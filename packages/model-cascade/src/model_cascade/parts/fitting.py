"""Which part of a conversation a small context can hold.

Owns: what is forgotten, and the estimate of how long a text is. Called by:
:mod:`model_cascade.parts.local_language_model`. Never: forgets the system message or the newest message, however long
they are: it shortens them.
"""

from __future__ import annotations

from dataclasses import replace

from model_cascade.parts.language_model import Message

_ASCII_PER_TOKEN = 3.5  # English has 4 to 5 letters in a token
_BYTES_PER_TOKEN = 1.8  # other scripts
_TOKENS_PER_MESSAGE = 6
_CUT = " ... "


def tokens(message: Message) -> int:
    """Estimate how many tokens a message takes, rather too many than too few."""
    calls = sum(_length(call.name) + _length(call.arguments) + 20 for call in message.tool_calls)
    return _TOKENS_PER_MESSAGE + _length(message.content) + calls


def fitted(messages: tuple[Message, ...], budget: int) -> tuple[Message, ...]:
    """Forget the oldest turns until what is left takes about ``budget`` tokens.

    Returns:
        The system message if there was one (cut at half of the budget), the newest message (its middle cut out if
        need be), and as many of those before it as fit, beginning with one of the user's.
    """
    head = messages[:1] if messages and messages[0].role == "system" else ()
    rest = messages[len(head) :]
    head = tuple(_shortened(message, budget // 2) for message in head)
    left = budget - sum(tokens(message) for message in head)
    if not rest:
        return head
    kept = [_shortened(rest[-1], max(left, _TOKENS_PER_MESSAGE + 8))]
    left -= tokens(kept[0])
    for message in reversed(rest[:-1]):
        left -= tokens(message)
        if left < 0:
            break
        kept.insert(0, message)
    if len(kept) < len(rest):
        while len(kept) > 1 and kept[0].role != "user":
            kept.pop(0)
    return (*head, *kept)


def _length(text: str) -> int:
    size = len(text.encode("utf-8", "surrogatepass"))
    ascii_size = sum(one.isascii() for one in text)
    return int(ascii_size / _ASCII_PER_TOKEN + (size - ascii_size) / _BYTES_PER_TOKEN) + 1


def _shortened(message: Message, budget: int) -> Message:
    """Cut the middle out of a message that is too long; both its ends say most about it."""
    excess = tokens(message) - budget
    if excess <= 0 or not message.content:
        return message
    keep = max(8, int(len(message.content) * (1 - excess / _length(message.content))) - len(_CUT) - 4)
    content = message.content[: keep // 2] + _CUT + message.content[len(message.content) - (keep - keep // 2) :]
    return replace(message, content=content)
