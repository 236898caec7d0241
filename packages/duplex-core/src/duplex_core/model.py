"""The contract between the engine and a model: :class:`ModelSession` and everything that passes through it.

A model session is sans-I/O. The runner hands it one :data:`ModelInput` at a time, with the time, and carries out the
:data:`ModelOutput` values that it returns: work for stages, timers, and decisions for the session machine. It never
awaits, reads no clock, and keeps nothing outside itself, so that two sessions share nothing and a test can replay one.

A session keeps one fence: the last that it was told (``Configured``, ``Respond``, ``Interrupted``) or began with
:class:`BeginTurn`. Every change of it is told. ``Speak``, ``ToolCall``, ``EndTurn`` and ``Failed`` carry the fence of the turn
that they belong to; what is old by then is dropped in one place, and a turn that was never opened is a fault. A stage output
made under another epoch may be used for bookkeeping (the length of a KV cache), never for a decision.

The same protocol carries models that are given turns (they get :class:`Respond`) and models that take them (they get the
audio stream and answer with :class:`BeginTurn`); ``docs/architecture/conversations.md`` walks four of them through it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import msgspec

from duplex_core.config import SessionConfig
from duplex_core.errors import ErrorInfo
from duplex_core.fence import Fence
from duplex_core.items import FunctionCallOutputItem, Item
from duplex_core.ledger import TextMark
from duplex_core.stages import Lane, StageFailed, StageOutput, StageRequest

# -- what a model session is told ------------------------------------------------------------------------------------


class Configured(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration is now this. First thing a session hears (at the first update or first input), then at each change."""

    config: SessionConfig
    fence: Fence


class AudioArrived(msgspec.Struct, frozen=True, kw_only=True):
    """The user's audio: 16-bit mono PCM at the model's input rate, all of it, in order, speech or not.

    ``start_ms`` counts from the session's first audio. ``is_speech`` is the client's own verdict, when it gave one.
    """

    pcm: bytes
    start_ms: float
    fence: Fence
    is_speech: bool | None = None


class ImageArrived(msgspec.Struct, frozen=True, kw_only=True):
    """A JPEG or PNG picture that the user's camera saw at ``at_ms`` on the audio's time line."""

    data: bytes
    at_ms: float
    fence: Fence


class TextArrived(msgspec.Struct, frozen=True, kw_only=True):
    """Text streamed in beside the audio."""

    text: str
    fence: Fence


class SpeechBegan(msgspec.Struct, frozen=True, kw_only=True):
    """A detector heard the user begin. ``pcm`` is the audio from the padded start up to now; the rest arrives as usual.

    ``item_id`` is the id that the item will have when the input is committed.
    """

    item_id: str
    start_ms: float
    pcm: bytes
    fence: Fence


class SpeechPaused(msgspec.Struct, frozen=True, kw_only=True):
    """The user fell silent at ``at_ms``; the turn may be over, which the detector will know in ``remaining_ms``.

    Under ``semantic_vad`` that is as far as is known at the pause's beginning; it may turn out shorter or longer.
    """

    item_id: str
    at_ms: float
    remaining_ms: float
    fence: Fence


class SpeechResumed(msgspec.Struct, frozen=True, kw_only=True):
    """The user went on speaking after a pause: anything begun at :class:`SpeechPaused` is void."""

    item_id: str
    fence: Fence


class SpeechDropped(msgspec.Struct, frozen=True, kw_only=True):
    """What was begun at :class:`SpeechBegan` will not become an item (cleared, or judged to be noise)."""

    item_id: str
    fence: Fence


class InputDropped(msgspec.Struct, frozen=True, kw_only=True):
    """The client has withdrawn its uncommitted input: what the model has not taken in yet is not to be.

    Told to models that take their turns themselves, which have no other way to know; what they have heard stays heard.
    """

    fence: Fence


class InputCommitted(msgspec.Struct, frozen=True, kw_only=True):
    """The user's audio became an item of the history: 16-bit mono PCM at the model's input rate, [start_ms, end_ms)."""

    item_id: str
    pcm: bytes
    start_ms: float
    end_ms: float
    fence: Fence


class HistoryChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The history was edited (items created, deleted, truncated, answers cut at what was heard) outside a response."""

    history: tuple[Item, ...]
    fence: Fence


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's answer entered the history. A turn that uses it comes as :class:`Respond`, when one is asked for."""

    item: FunctionCallOutputItem
    fence: Fence


class ResponseCause(enum.Enum):
    """Why a response opens."""

    COMMIT = "commit"
    """User input was committed and turns follow commits."""
    CLIENT = "client"
    """The client asked."""
    IDLE = "idle"
    """Nobody spoke for the idle timeout."""


class Respond(msgspec.Struct, frozen=True, kw_only=True):
    """Answer now. ``fence`` is the turn's; ``history`` ends with what is to be answered, cut at what the user heard.

    ``config`` holds the response's overrides already. The answer is made of :class:`Speak` and :class:`ToolCall`
    decisions and ends with :class:`EndTurn`; a model that would rather listen answers :class:`Listen`.
    """

    response_id: str
    fence: Fence
    config: SessionConfig
    history: tuple[Item, ...]
    cause: ResponseCause


class Interrupted(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch advanced to ``fence``: the answer, if there was one, is over, and ``heard_ms`` of it were heard.

    Output-lane work is aborted already and gives no more outputs; the session forgets those requests.
    """

    fence: Fence
    response_id: str | None
    heard_ms: float


class Deadline(msgspec.Struct, frozen=True, kw_only=True):
    """A timer set with :class:`WakeAt` is due."""

    key: str


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The session is over. Stage requests are aborted by the engine; nothing more is told."""


ModelInput = (
    Configured
    | AudioArrived
    | ImageArrived
    | TextArrived
    | SpeechBegan
    | SpeechPaused
    | SpeechResumed
    | SpeechDropped
    | InputDropped
    | InputCommitted
    | HistoryChanged
    | ToolResult
    | Respond
    | Interrupted
    | StageOutput
    | StageFailed
    | Deadline
    | Closed
)

# -- what a model session answers ------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """Give work to a stage."""

    request: StageRequest


class Abort(msgspec.Struct, frozen=True, kw_only=True):
    """Stop one stage request."""

    stage: str
    request_id: str


class WakeAt(msgspec.Struct, frozen=True, kw_only=True):
    """Send :class:`Deadline` at ``at_ms`` (the time line of ``now_ms``); ``None`` cancels. One timer a key."""

    key: str
    at_ms: float | None


class Listen(msgspec.Struct, frozen=True, kw_only=True):
    """The model chose to keep listening.

    ``fence`` is the fence of the request that was decided on: it ends the open response, if that is its turn's and has no
    output yet. A unit that was submitted before the response was opened has an older turn and ends nothing.
    """

    fence: Fence


class BeginTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The model takes a turn by itself. ``fence`` is ``next_turn()`` of the fence that the session last was told or began.

    When a response is open for the model (:class:`Respond`) and has no output yet, the model simply speaks under its fence:
    a ``BeginTurn`` with that fence is allowed and changes nothing. Beginning a turn inside a turn is a fault.
    """

    fence: Fence


class Speak(msgspec.Struct, frozen=True, kw_only=True):
    """More of the answer: 16-bit mono PCM at the model's output rate, text, or both.

    ``marks`` count from the answer's beginning: ``chars`` of its transcript so far have been spoken ``ms`` into its audio.
    They rise, and may come with any piece, also one without text. A model that knows none leaves them out: then text that
    comes together with audio is taken to end with that audio, and an interruption inside it cuts by proportion.
    """

    fence: Fence
    pcm: bytes = b""
    text: str = ""
    marks: tuple[TextMark, ...] = ()


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """More of a tool call; pieces with one ``call_id`` belong together. ``final`` ends it."""

    fence: Fence
    call_id: str
    name: str
    arguments: str
    final: bool = False


class StopReason(enum.Enum):
    """Why an answer ended."""

    DONE = "done"
    MAX_TOKENS = "max_tokens"


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that an answer took, as the model counts them."""

    input_tokens: int = 0
    output_tokens: int = 0


class EndTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is whole."""

    fence: Fence
    reason: StopReason = StopReason.DONE
    usage: TokenUsage = TokenUsage()


class UserTranscript(msgspec.Struct, frozen=True, kw_only=True):
    """What the user said in ``item_id``, known so far: ``text`` is the whole text, and replaces what was told before.

    Carries no fence: cancelling an answer does not touch what the user says. May come before the commit (a partial
    transcript) and after it; ``final`` comes once.
    """

    item_id: str
    text: str
    final: bool = False


class TranscriptFailed(msgspec.Struct, frozen=True, kw_only=True):
    """What the user said in ``item_id`` could not be recognised."""

    item_id: str
    error: ErrorInfo


class InputRefused(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the user gave could not be used, and was left out; ``error`` tells the client, as an ``error`` event.

    Carries no fence: it is about what was given, and no answer ends by it. In a chat request it fails the request.
    """

    error: ErrorInfo


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """This answer cannot be made. The session goes on."""

    fence: Fence
    error: ErrorInfo


class Fatal(msgspec.Struct, frozen=True, kw_only=True):
    """This session cannot go on (its context is full, say); it ends with ``error``."""

    error: ErrorInfo


Decision = (
    Listen | BeginTurn | Speak | ToolCall | EndTurn | UserTranscript | TranscriptFailed | InputRefused | Failed | Fatal
)
ModelOutput = Submit | Abort | WakeAt | Decision


class ModelSession(Protocol):
    """One conversation's side of a model. See the module's docstring for what it may not do."""

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        """Take one input and return what follows from it, in order.

        An exception ends this session with ``internal_error`` and touches no other.
        """


__all__ = [
    "Abort",
    "AudioArrived",
    "BeginTurn",
    "Closed",
    "Configured",
    "Deadline",
    "Decision",
    "EndTurn",
    "Failed",
    "Fatal",
    "HistoryChanged",
    "ImageArrived",
    "InputCommitted",
    "InputDropped",
    "InputRefused",
    "Interrupted",
    "Lane",
    "Listen",
    "ModelInput",
    "ModelOutput",
    "ModelSession",
    "Respond",
    "ResponseCause",
    "Speak",
    "SpeechBegan",
    "SpeechDropped",
    "SpeechPaused",
    "SpeechResumed",
    "StageFailed",
    "StageOutput",
    "StageRequest",
    "StopReason",
    "Submit",
    "TextArrived",
    "TokenUsage",
    "ToolCall",
    "ToolResult",
    "TranscriptFailed",
    "UserTranscript",
    "WakeAt",
]
