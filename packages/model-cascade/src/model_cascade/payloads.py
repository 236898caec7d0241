"""What travels between the cascade's session and its three stages. Frozen values; nobody else looks inside."""

from __future__ import annotations

import msgspec

from duplex_core.config import FunctionTool, ToolChoice


class Recognize(msgspec.Struct, frozen=True, kw_only=True):
    """For the recogniser: 16-bit mono PCM at 16 kHz."""

    pcm: bytes


class Recognized(msgspec.Struct, frozen=True, kw_only=True):
    """From the recogniser: the words, empty when there were none."""

    text: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message for the language model, in the terms of chat completions.

    ``role`` is ``system``, ``user``, ``assistant`` or ``tool``; ``tool_calls`` are (call id, name, arguments as JSON text)
    of an assistant's message; ``tool_call_id`` belongs to a tool's.
    """

    role: str
    content: str
    tool_calls: tuple[tuple[str, str, str], ...] = ()
    tool_call_id: str | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """For the language model: answer these messages. ``temperature`` of ``None`` is the deploy setting's."""

    messages: tuple[Message, ...]
    tools: tuple[FunctionTool, ...]
    tool_choice: ToolChoice
    max_tokens: int | None
    temperature: float | None


class TextPiece(msgspec.Struct, frozen=True, kw_only=True):
    """From the language model: more text."""

    text: str


class CallPiece(msgspec.Struct, frozen=True, kw_only=True):
    """From the language model: more of a tool call; ``index`` tells calls of one answer apart."""

    index: int
    call_id: str
    name: str
    arguments: str


class AnswerEnd(msgspec.Struct, frozen=True, kw_only=True):
    """From the language model, last: why it stopped and what it took, in tokens."""

    cut: bool
    input_tokens: int
    output_tokens: int


class Utter(msgspec.Struct, frozen=True, kw_only=True):
    """For the voice: speak one clause."""

    text: str
    voice: str


class Uttered(msgspec.Struct, frozen=True, kw_only=True):
    """From the voice: the clause as 16-bit mono PCM at the cascade's output rate; empty when there is nothing to say."""

    pcm: bytes


StagePayload = Recognize | Recognized | Ask | TextPiece | CallPiece | AnswerEnd | Utter | Uttered
