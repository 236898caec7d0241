"""What a language model is asked, what it answers, and the protocol that both implementations keep.

Owns: these types. Called by: the cascade's language stage, which holds one :class:`LanguageModel` for all sessions.
Never: talks to a model.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from model_cascade.parts.errors import Cancel, never

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """A call that the assistant made earlier in the conversation; ``arguments`` is JSON text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the conversation.

    Attributes:
        role: Who speaks.
        content: What is said; for a ``tool`` what the function returned.
        tool_calls: The calls that an ``assistant`` made in this message.
        tool_call_id: For a ``tool``: the call that it answers.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolRequest, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call; ``parameters`` is a JSON schema of type ``object``."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


class ToolMode(enum.Enum):
    """Whether functions may, must or must not be called."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    """Some function must be called."""
    FUNCTION = "function"
    """The function that :attr:`ToolChoice.name` names must be called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """A :class:`ToolMode`, with the function's name for :attr:`ToolMode.FUNCTION`."""

    mode: ToolMode = ToolMode.AUTO
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What to answer, and how.

    Attributes:
        messages: The conversation, oldest first; a system message, if any, first of all.
        max_tokens: At most this many tokens are generated.
        temperature: From 0 (always the likeliest token) to 2.
        seed: Fixes the draws where the model allows that.
        stop: Texts before which the answer ends.
        tools: What may be called.
        tool_choice: Whether it may or must be.
    """

    messages: tuple[Message, ...]
    max_tokens: int = 128
    temperature: float = 0.2
    seed: int | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """More of a call. ``index`` counts the calls of this answer; ``arguments`` is the next piece of JSON text."""

    index: int
    call_id: str
    name: str
    arguments: str


class FinishReason(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens, as the model counts them; zero where an endpoint does not say.

    Attributes:
        prompt_tokens: Those that were read, cached or not.
        completion_tokens: Those that were generated.
        cached_tokens: Those of ``prompt_tokens`` that an earlier request had left in the cache.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The answer is over; always the last thing, and always there unless an exception is."""

    reason: FinishReason
    usage: Usage


Delta = TextDelta | ToolCallDelta | Finished


class LanguageModel(Protocol):
    """Continues a conversation."""

    @property
    def name(self) -> str:
        """What the model is called."""

    def stream(self, request: ChatRequest, cancelled: Cancel = never) -> Iterator[Delta]:
        """Answer, piece by piece; iterate on a worker thread. Several answers may be under way at once.

        Args:
            request: What to answer. A conversation of any length is taken; the oldest turns are forgotten first.
            cancelled: Asked at least every 50 ms, possibly from another thread; when it says so the answer ends with
                :attr:`FinishReason.CANCELLED`. Closing the iterator ends the work as well.

        Raises:
            LanguageModelError: The answer cannot be made, or not to its end.
        """

    def prepare(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = (), cancelled: Cancel = never) -> None:
        """Read a conversation ahead of its next message, so that the answer begins sooner; does nothing where it can't."""

    def close(self) -> None:
        """Release everything. Answers that are under way end with an error."""
