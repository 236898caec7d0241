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


class OverlapMode(enum.Enum):
    """What speech over the assistant's speech does at first."""

    JUDGE = "judge"
    """The answer is held, and goes on or is interrupted when it is clear what the speech is."""
    IMMEDIATE = "immediate"
    """Any speech interrupts at once."""


BACKCHANNELS = (
    "absolutely",
    "agreed",
    "ah",
    "aha",
    "all right",
    "alright",
    "amazing",
    "awesome",
    "cool",
    "definitely",
    "eh",
    "er",
    "exactly",
    "fair enough",
    "fine",
    "go ahead",
    "go on",
    "good",
    "got it",
    "gotcha",
    "great",
    "ha",
    "hm",
    "hmm",
    "huh",
    "hum",
    "i know",
    "i see",
    "i understand",
    "indeed",
    "interesting",
    "lovely",
    "makes sense",
    "mhm",
    "mm",
    "mmm",
    "nice",
    "of course",
    "oh",
    "ok",
    "okay",
    "ooh",
    "perfect",
    "really",
    "right",
    "so",
    "sure",
    "that makes sense",
    "that's right",
    "that's true",
    "true",
    "uh",
    "um",
    "understood",
    "very good",
    "well",
    "wonderful",
    "wow",
    "ya",
    "yeah",
    "yep",
    "yes",
    "yup",
)
"""English words and phrases with which a listener says no more than "go on", and sounds with which a speaker only begins."""

INTERRUPTIONS = (
    "actually",
    "again",
    "back",
    "be quiet",
    "but",
    "cancel",
    "don't",
    "enough",
    "excuse me",
    "hang on",
    "hello",
    "help",
    "hey",
    "hi",
    "hold",
    "how",
    "listen",
    "look",
    "never mind",
    "next",
    "no",
    "nope",
    "not",
    "pardon",
    "pause",
    "please",
    "quiet",
    "shut",
    "skip",
    "sorry",
    "stop",
    "thanks",
    "wait",
    "what",
    "what's",
    "when",
    "where",
    "which",
    "who",
    "who's",
    "why",
)
"""English words and phrases that interrupt however short the speech is."""


class OverlapSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How speech over the assistant's speech is judged (duplex extension ``session.overlap``).

    Speech shorter than ``noise_ms`` is noise. Without words, up to ``short_ms`` is an acknowledgement once it has been silent
    for ``settle_ms``, and more than ``long_ms`` an interruption at once. ``backchannels`` are the words that acknowledge; more
    than ``longest_backchannel_ms`` of them interrupt all the same. ``interruptions`` are the words that interrupt even in
    speech of up to ``short_ms``, in which a single other word passes for a misheard acknowledgement.
    """

    mode: OverlapMode = OverlapMode.JUDGE
    noise_ms: int = 160
    short_ms: int = 640
    long_ms: int = 900
    settle_ms: int = 250
    longest_backchannel_ms: int = 1800
    backchannels: tuple[str, ...] = BACKCHANNELS
    interruptions: tuple[str, ...] = INTERRUPTIONS


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
    overlap: OverlapSettings = OverlapSettings()
    options: dict[str, Any] = {}
