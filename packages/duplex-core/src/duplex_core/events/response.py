"""Events about an answer, from ``response.created`` to ``response.done``."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from duplex_core.config import Modality
from duplex_core.events.base import ServerEvent
from duplex_core.items import Item
from duplex_core.ledger import PlaybackLedger, TextMark
from duplex_core.patch import WireFormat
from duplex_core.stages import StageMetrics


class ResponseStatus(enum.Enum):
    """How an answer stands."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    INCOMPLETE = "incomplete"
    FAILED = "failed"


class StatusReason(enum.Enum):
    """Why an answer did not run to its end."""

    TURN_DETECTED = "turn_detected"
    CLIENT_CANCELLED = "client_cancelled"
    MAX_OUTPUT_TOKENS = "max_output_tokens"
    CONTENT_FILTER = "content_filter"


class ResponseError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The error of a failed answer."""

    type: str
    code: str
    message: str


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Detail of a terminal status."""

    type: ResponseStatus
    reason: StatusReason | None = None
    error: ResponseError | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that an answer took."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


class ResponseMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How long an answer took (duplex extension), in milliseconds from its ``response.created``.

    ``first_output_ms`` is when the model's first output of any kind came, ``first_audio_ms`` its first sound, each ``None`` when
    none came; ``total_ms`` is the end. ``output_tokens`` is ``None`` for an answer that was stopped or failed;
    ``ms_per_output_token`` counts the tokens after the first, and is ``None`` with fewer than two.

    ``stages`` tells what each stage of the model did for the answer, the one that began first in front; its ``begun_ms`` counts
    from ``response.created`` as well. An answer that was stopped or failed has what was known by then.
    """

    first_output_ms: float | None
    first_audio_ms: float | None
    total_ms: float
    output_tokens: int | None
    ms_per_output_token: float | None
    stages: tuple[StageMetrics, ...] = ()


class ResponseAudioOutputView(msgspec.Struct, frozen=True, kw_only=True):
    """``response.audio.output``."""

    format: WireFormat
    voice: str | None


class ResponseAudioView(msgspec.Struct, frozen=True, kw_only=True):
    """``response.audio``."""

    output: ResponseAudioOutputView


class ResponseView(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as ``response.created`` and ``response.done`` show it."""

    id: str
    status: ResponseStatus
    output: list[Item]
    output_modalities: list[Modality]
    audio: ResponseAudioView
    conversation_id: str | None
    max_output_tokens: int | Literal["inf"]
    status_details: StatusDetails | None = None
    metadata: dict[str, str] | None = None
    usage: Usage | None = None
    object: Literal["realtime.response"] = "realtime.response"


class ResponseCreated(ServerEvent, frozen=True, kw_only=True, tag="response.created"):
    """An answer begins."""

    response: ResponseView
    epoch: int = 0
    turn_id: int = 0


class ResponseDone(ServerEvent, frozen=True, kw_only=True, tag="response.done"):
    """An answer has ended: exactly one for each ``response.created``.

    ``metrics`` (duplex extension) always comes from this server; another one may not have it.
    """

    response: ResponseView
    epoch: int = 0
    turn_id: int = 0
    metrics: ResponseMetrics | None = None


class OutputItemAdded(ServerEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item of the answer begins."""

    response_id: str
    output_index: int
    item: Item


class OutputItemDone(ServerEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item of the answer is whole."""

    response_id: str
    output_index: int
    item: Item


class PartView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A content part of the answer as the ``content_part`` events show it."""

    type: Literal["audio", "text"]
    text: str | None = None
    transcript: str | None = None


class ContentPartAdded(ServerEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A content part begins."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    part: PartView


class ContentPartDone(ServerEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A content part is whole."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    part: PartView


class ResponseSpeak(ServerEvent, frozen=True, kw_only=True, tag="response.speak"):
    """Once, before the first audio of an answer (duplex extension)."""

    response_id: str
    item_id: str
    epoch: int
    turn_id: int


class ResponseListen(ServerEvent, frozen=True, kw_only=True, tag="response.listen"):
    """The model kept listening (duplex extension)."""

    epoch: int
    turn_id: int
    response_id: str | None = None


class AudioMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Beside each audio delta (duplex extension). ``audio_text_marks`` count from the item's beginning."""

    epoch: int
    audio_duration_ms: float
    audio_text_marks: list[TextMark]
    playback: PlaybackLedger


class OutputAudioDelta(ServerEvent, frozen=True, kw_only=True, tag="response.output_audio.delta"):
    """More of the answer's audio."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    delta: bytes
    format: str
    sample_rate_hz: int
    metadata: AudioMetadata


class OutputAudioDone(ServerEvent, frozen=True, kw_only=True, tag="response.output_audio.done"):
    """The answer's audio is whole."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int


class OutputTranscriptDelta(ServerEvent, frozen=True, kw_only=True, tag="response.output_audio_transcript.delta"):
    """More of what the answer's audio says."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    delta: str
    epoch: int = 0


class OutputTranscriptDone(ServerEvent, frozen=True, kw_only=True, tag="response.output_audio_transcript.done"):
    """All of what the answer's audio says."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    transcript: str


class OutputTextDelta(ServerEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More of a text answer."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    delta: str
    epoch: int = 0


class OutputTextDone(ServerEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """All of a text answer."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    text: str


class FunctionArgumentsDelta(ServerEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a tool call's arguments (JSON text)."""

    response_id: str
    item_id: str
    output_index: int
    call_id: str
    delta: str
    epoch: int = 0


class FunctionArgumentsDone(ServerEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """All of a tool call's arguments (JSON text)."""

    response_id: str
    item_id: str
    output_index: int
    call_id: str
    name: str
    arguments: str
