"""The session's configuration, whole and canonical.

Owned by the session machine, which replaces it as one value at each accepted ``session.update``. Model sessions and the
server read it. The partial, two-dialect form that clients send is :mod:`duplex_core.patch`.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from duplex_core.audio import DEFAULT_FORMAT, AudioFormat
from duplex_core.ledger import CommitPolicy


class Modality(enum.Enum):
    """What an answer is made of. Audio always comes with its transcript."""

    AUDIO = "audio"
    TEXT = "text"


class Eagerness(enum.Enum):
    """How soon ``semantic_vad`` takes a turn."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    AUTO = "auto"


class ServerVad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="server_vad"):
    """Turns from voice activity. Fields and defaults are the GA protocol's.

    ``threshold`` is a probability; ``prefix_padding_ms`` of audio before the detected start belong to the turn;
    ``silence_duration_ms`` of silence end it; ``idle_timeout_ms`` after the last answer without speech asks the model to
    speak by itself.
    """

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = None


class SemanticVad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="semantic_vad"):
    """Turns from voice activity and from whether the words sound finished."""

    eagerness: Eagerness = Eagerness.AUTO
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


class Transcription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether, and how, the user's speech is transcribed for the client.

    ``model`` is recorded but does not choose: the served model package or the configured transcriber does the work.
    """

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class FunctionTool(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="function"
):
    """A function that the client offers. ``parameters`` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolMode(enum.Enum):
    """Whether the model may, must or must not call a tool."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class ToolFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="function"):
    """The model must call this function."""

    name: str


ToolChoice = ToolMode | ToolFunction


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a session can be told about itself.

    ``speed`` scales the speaking rate, 1.0 being the voice's own. ``max_output_tokens`` of ``None`` is no limit.
    ``options`` are the model package's own settings, already validated by its options model.
    """

    model: str
    instructions: str = ""
    modality: Modality = Modality.AUDIO
    voice: str | None = None
    speed: float = 1.0
    input_format: AudioFormat = DEFAULT_FORMAT
    output_format: AudioFormat = DEFAULT_FORMAT
    turn_detection: TurnDetection | None = ServerVad()
    transcription: Transcription | None = None
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: ToolChoice = ToolMode.AUTO
    parallel_tool_calls: bool = True
    temperature: float | None = None
    max_output_tokens: int | None = None
    commit_policy: CommitPolicy = CommitPolicy.COMMIT_ALL_ON_DONE
    options: dict[str, Any] = {}
