"""Events about the user's audio: speech, commits, transcripts."""

from __future__ import annotations

import msgspec

from duplex_core.errors import ErrorInfo
from duplex_core.events.base import ServerEvent


class SpeechStarted(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_started"):
    """The user begins to speak. ``audio_start_ms`` counts from the session's first audio and includes the padding."""

    audio_start_ms: int
    item_id: str


class SpeechStopped(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    """The user's utterance has ended."""

    audio_end_ms: int
    item_id: str


class InputCommitted(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.committed"):
    """The buffered audio became an item."""

    item_id: str
    previous_item_id: str | None = None


class InputCleared(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.cleared"):
    """The buffered audio is gone."""


class InputTimeoutTriggered(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.timeout_triggered"):
    """Nobody spoke for ``idle_timeout_ms``; the model is asked to."""

    audio_start_ms: int
    audio_end_ms: int
    item_id: str


class TranscriptUsage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="duration"):
    """What a transcription took: the seconds of audio that were read."""

    seconds: float


class TranscriptionDelta(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.delta"
):
    """More of what the user said."""

    item_id: str
    content_index: int
    delta: str


class TranscriptionCompleted(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    """All of what the user said."""

    item_id: str
    content_index: int
    transcript: str
    usage: TranscriptUsage


class TranscriptionFailed(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.failed"
):
    """The user's speech could not be recognised."""

    item_id: str
    content_index: int
    error: ErrorInfo
