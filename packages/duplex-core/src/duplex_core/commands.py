"""Everything that a client may say to a session: a closed union of frozen values.

Field names are those of the wire (``WIRE.md`` section 3), so that one decoder step makes a command out of JSON text; audio
is ``bytes`` here. Made by the wire codec or by an in-process client, consumed by the session machine. The runner replaces
the audio of :class:`InputAudioBufferAppend` by 16-bit PCM at the model's rate before the machine sees it.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec

from duplex_core.items import Item
from duplex_core.patch import ResponseParams, SessionPatch, WireFormat

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
"""A whole number that JSON carries exactly everywhere."""
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]
"""A time or duration in milliseconds."""


class ClientCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What every command has. ``event_id`` is the client's own name for it, for answers that are about it."""

    event_id: str | None = None


class SessionUpdate(ClientCommand, frozen=True, kw_only=True, tag="session.update"):
    """Patch the session's configuration, wholly or not at all."""

    session: SessionPatch


class VideoFrame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One JPEG or PNG picture that belongs to the audio it comes with. ``at_ms`` is relative to that audio's start."""

    data: bytes
    at_ms: Milliseconds | None = None


class InputAudioBufferAppend(ClientCommand, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """More of the user's audio, in the session's input format unless ``format`` or ``sample_rate_hz`` say otherwise.

    ``is_speech`` is the client's own verdict on this audio; ``duration_ms``, when given, must agree with the audio.
    """

    audio: bytes
    is_speech: bool | None = None
    video_frames: tuple[VideoFrame, ...] = ()
    duration_ms: Milliseconds | None = None
    format: WireFormat | str | None = None
    sample_rate_hz: Count | None = None


class InputAudioBufferCommit(ClientCommand, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """The buffered audio is a turn. ``is_speech: false`` declares it silence: no turn; ``response_create`` asks for an answer."""

    final: bool | None = None
    response_create: bool | None = None
    is_speech: bool | None = None


class InputAudioBufferClear(ClientCommand, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    """Forget the buffered audio."""

    final: bool | None = None


class ConversationItemCreate(ClientCommand, frozen=True, kw_only=True, tag="conversation.item.create"):
    """Put an item into the history: at the end, after ``previous_item_id``, or first when that is ``"root"``."""

    item: Item
    previous_item_id: str | None = None


class ConversationItemRetrieve(ClientCommand, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    """Ask for an item as the history holds it."""

    item_id: str


class ConversationItemTruncate(ClientCommand, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    """The user heard the answer only up to ``audio_end_ms``."""

    item_id: str
    content_index: Count
    audio_end_ms: Count


class ConversationItemDelete(ClientCommand, frozen=True, kw_only=True, tag="conversation.item.delete"):
    """Take an item out of the history."""

    item_id: str


class ResponseCreate(ClientCommand, frozen=True, kw_only=True, tag="response.create"):
    """Ask for an answer now."""

    response: ResponseParams | None = None


class ResponseCancel(ClientCommand, frozen=True, kw_only=True, tag="response.cancel"):
    """Stop the running answer, or only the one named."""

    response_id: str | None = None


class OutputAudioBufferClear(ClientCommand, frozen=True, kw_only=True, tag="output_audio_buffer.clear"):
    """Drop the output audio that has not been heard, also when generation has finished."""


class PlaybackAck(ClientCommand, frozen=True, kw_only=True, tag="playback.ack"):
    """How much of an answer the user has heard, in ms from its beginning. ``truncate`` says that no more will be played."""

    played_ms: Milliseconds
    committed_ms: Milliseconds | None = None
    response_id: str | None = None
    item_id: str | None = None
    truncate: bool = False


class BargeIn(ClientCommand, frozen=True, kw_only=True, tag="barge_in"):
    """The client's own detector says that the user talks over the answer."""

    played_ms: Milliseconds | None = None


class TurnSignalKind(enum.Enum):
    """What the client knows about the user's turn."""

    START = "start"
    END = "end"


class TurnSignal(ClientCommand, frozen=True, kw_only=True, tag="turn.signal"):
    """The user's turn begins or ends, as the client's own turn-taking sees it."""

    signal: TurnSignalKind


class InputCancel(ClientCommand, frozen=True, kw_only=True, tag="input.cancel"):
    """Withdraw the user's unfinished input: the buffer and any text streamed in."""


class InputTextAppend(ClientCommand, frozen=True, kw_only=True, tag="input.text.append"):
    """Stream text into a model that takes it while it listens."""

    text: str


class SessionHeartbeat(ClientCommand, frozen=True, kw_only=True, tag="session.heartbeat"):
    """The client is alive."""


class SessionEventAck(ClientCommand, frozen=True, kw_only=True, tag="session.event_ack"):
    """Everything up to ``server_event_seq`` has arrived and need not be replayed."""

    server_event_seq: Count


class SessionResume(ClientCommand, frozen=True, kw_only=True, tag="session.resume"):
    """Attach this socket to a session that lost its own."""

    session_id: str
    resume_token: str
    last_server_event_seq: Count = 0


class SessionClose(ClientCommand, frozen=True, kw_only=True, tag="session.close"):
    """Hang up. Idempotent."""

    reason: str | None = None


Command = (
    SessionUpdate
    | InputAudioBufferAppend
    | InputAudioBufferCommit
    | InputAudioBufferClear
    | ConversationItemCreate
    | ConversationItemRetrieve
    | ConversationItemTruncate
    | ConversationItemDelete
    | ResponseCreate
    | ResponseCancel
    | OutputAudioBufferClear
    | PlaybackAck
    | BargeIn
    | TurnSignal
    | InputCancel
    | InputTextAppend
    | SessionHeartbeat
    | SessionEventAck
    | SessionResume
    | SessionClose
)
"""Every command of the wire."""

COMMAND_TYPES: dict[str, type[Any]] = {str(cls.__struct_config__.tag): cls for cls in Command.__args__}
"""Wire name to command class."""
