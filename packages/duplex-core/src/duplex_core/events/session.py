"""Events about the session itself: created, updated, resumed, closed, errors."""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

from duplex_core.audio import AudioFormat
from duplex_core.capabilities import Capabilities
from duplex_core.config import (
    FunctionTool,
    Modality,
    OverlapSettings,
    SemanticVad,
    ServerVad,
    SessionConfig,
    ToolChoice,
    Transcription,
)
from duplex_core.errors import ErrorInfo
from duplex_core.events.base import ServerEvent
from duplex_core.ledger import CommitPolicy
from duplex_core.patch import WireFormat

TOLD_CHARS = 4096
"""Longest string in ``options`` that is told back as it is."""


class InputView(msgspec.Struct, frozen=True, kw_only=True):
    """``session.audio.input`` as the client sees it."""

    format: WireFormat
    transcription: Transcription | None
    noise_reduction: None
    turn_detection: ServerVad | SemanticVad | None


class OutputView(msgspec.Struct, frozen=True, kw_only=True):
    """``session.audio.output`` as the client sees it."""

    format: WireFormat
    voice: str | None
    speed: float


class AudioView(msgspec.Struct, frozen=True, kw_only=True):
    """``session.audio`` as the client sees it."""

    input: InputView
    output: OutputView


class PlaybackView(msgspec.Struct, frozen=True, kw_only=True):
    """``session.playback`` as the client sees it (duplex extension)."""

    commit_policy: CommitPolicy


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """The session as ``session.created`` and ``session.updated`` show it: the GA shape, then the duplex extensions."""

    id: str
    model: str
    output_modalities: list[Modality]
    instructions: str
    audio: AudioView
    tools: list[FunctionTool]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    max_output_tokens: int | Literal["inf"]
    temperature: float | None
    playback: PlaybackView
    overlap: OverlapSettings
    options: dict[str, Any]
    epoch: int
    attachment_generation: int
    capabilities: Capabilities
    resume_token: str | None = None
    object: Literal["realtime.session"] = "realtime.session"
    type: Literal["realtime"] = "realtime"


def wire_format(audio: AudioFormat) -> WireFormat:
    """The format as the GA protocol writes it; G.711 has one rate and names none."""
    pcm = audio.encoding.bytes_per_sample > 1
    return WireFormat(type=audio.encoding, rate=audio.rate_hz if pcm else None)


def told_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options as they are told back: a string of more than :data:`TOLD_CHARS` characters is replaced by how long it is.

    A file in an option, such as a voice, would come back with every event that shows the session. The model has it whole.
    """
    return {name: _told(value) for name, value in options.items()}


def _told(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TOLD_CHARS else f"({len(value)} characters)"
    if isinstance(value, dict):
        return told_options(value)
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    return value


def session_view(
    session_id: str,
    config: SessionConfig,
    capabilities: Capabilities,
    *,
    epoch: int,
    attachment_generation: int,
) -> SessionView:
    """Show ``config`` as the wire does."""
    return SessionView(
        id=session_id,
        model=config.model,
        output_modalities=[config.modality],
        instructions=config.instructions,
        audio=AudioView(
            input=InputView(
                format=wire_format(config.input_format),
                transcription=config.transcription,
                noise_reduction=None,
                turn_detection=config.turn_detection,
            ),
            output=OutputView(format=wire_format(config.output_format), voice=config.voice, speed=config.speed),
        ),
        tools=list(config.tools),
        tool_choice=config.tool_choice,
        parallel_tool_calls=config.parallel_tool_calls,
        max_output_tokens=config.max_output_tokens or "inf",
        temperature=config.temperature,
        playback=PlaybackView(commit_policy=config.commit_policy),
        overlap=config.overlap,
        options=told_options(config.options),
        epoch=epoch,
        attachment_generation=attachment_generation,
        capabilities=capabilities,
    )


class SessionCreated(ServerEvent, frozen=True, kw_only=True, tag="session.created"):
    """First event on a socket."""

    session: SessionView


class SessionUpdated(ServerEvent, frozen=True, kw_only=True, tag="session.updated"):
    """A ``session.update`` was applied."""

    session: SessionView


class SessionHeartbeatAck(ServerEvent, frozen=True, kw_only=True, tag="session.heartbeat_ack"):
    """Answer to a heartbeat."""


class SessionResumed(ServerEvent, frozen=True, kw_only=True, tag="session.resumed"):
    """The socket now owns the session; what it missed follows."""

    session: SessionView
    replayed_events: int


class SessionReplaced(ServerEvent, frozen=True, kw_only=True, tag="session.replaced"):
    """Another socket took the session over."""

    session_id: str
    attachment_generation: int


class SessionExpired(ServerEvent, frozen=True, kw_only=True, tag="session.expired"):
    """The session's lease ran out."""

    session_id: str
    reason: str


class SessionResyncRequired(ServerEvent, frozen=True, kw_only=True, tag="session.resync_required"):
    """Events between ``last_server_event_seq`` and the journal's first are gone; fetch the state anew."""

    session_id: str
    last_server_event_seq: int
    first_available_seq: int


class CloseReason(enum.Enum):
    """Why a session ended."""

    CLIENT = "client_closed"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"
    SHUTDOWN = "shutdown"
    ERROR = "error"


class SessionClosed(ServerEvent, frozen=True, kw_only=True, tag="session.closed"):
    """Always the last event on the socket; the slot is free."""

    session_id: str
    reason: CloseReason
    error: ErrorInfo | None = None


class ErrorEvent(ServerEvent, frozen=True, kw_only=True, tag="error"):
    """Something that the client did, or the server failed to do; the session goes on unless a close follows."""

    error: ErrorInfo


class RateLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One limit of ``rate_limits.updated``."""

    name: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset_seconds: float


class RateLimitsUpdated(ServerEvent, frozen=True, kw_only=True, tag="rate_limits.updated"):
    """Follows each response; a self-hosted server has no limits to tell, so the list is empty."""

    rate_limits: list[RateLimit]
