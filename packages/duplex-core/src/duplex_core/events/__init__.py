"""Everything that a session may tell its client: a closed union of frozen values.

Field names are those of the wire (``WIRE.md`` section 4). Made by the session machine (and, for what concerns the socket,
by serving); rendered by the wire codec. ``event_id`` and ``server_event_seq`` are stamped when an event is given to a
socket, never earlier. Audio is ``bytes`` in the session's output format.
"""

from __future__ import annotations

from typing import Any

from duplex_core.events.base import (
    ServerEvent,
)
from duplex_core.events.conversation import (
    ItemAdded,
    ItemCreated,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    ItemTruncated,
)
from duplex_core.events.duplex import (
    OutputBufferCleared,
    OverlapDecision,
    OverlapVerdict,
    PlaybackAcknowledged,
    TurnEvent,
    TurnEventKind,
)
from duplex_core.events.input import (
    InputCleared,
    InputCommitted,
    InputTimeoutTriggered,
    SpeechStarted,
    SpeechStopped,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
    TranscriptUsage,
)
from duplex_core.events.response import (
    AudioMetadata,
    ContentPartAdded,
    ContentPartDone,
    FunctionArgumentsDelta,
    FunctionArgumentsDone,
    OutputAudioDelta,
    OutputAudioDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    OutputTranscriptDelta,
    OutputTranscriptDone,
    PartView,
    ResponseAudioOutputView,
    ResponseAudioView,
    ResponseCreated,
    ResponseDone,
    ResponseError,
    ResponseListen,
    ResponseMetrics,
    ResponseSpeak,
    ResponseStatus,
    ResponseView,
    StatusDetails,
    StatusReason,
    Usage,
)
from duplex_core.events.session import (
    AudioView,
    CloseReason,
    ErrorEvent,
    InputView,
    OutputView,
    PlaybackView,
    RateLimit,
    RateLimitsUpdated,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionHeartbeatAck,
    SessionReplaced,
    SessionResumed,
    SessionResyncRequired,
    SessionUpdated,
    SessionView,
    session_view,
    wire_format,
)

Event = (
    SessionCreated
    | SessionUpdated
    | SessionHeartbeatAck
    | SessionResumed
    | SessionReplaced
    | SessionExpired
    | SessionResyncRequired
    | SessionClosed
    | ErrorEvent
    | RateLimitsUpdated
    | SpeechStarted
    | SpeechStopped
    | InputCommitted
    | InputCleared
    | InputTimeoutTriggered
    | TranscriptionDelta
    | TranscriptionCompleted
    | TranscriptionFailed
    | ItemAdded
    | ItemCreated
    | ItemDone
    | ItemRetrieved
    | ItemTruncated
    | ItemDeleted
    | ResponseCreated
    | ResponseDone
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | ResponseSpeak
    | ResponseListen
    | OutputAudioDelta
    | OutputAudioDone
    | OutputTranscriptDelta
    | OutputTranscriptDone
    | OutputTextDelta
    | OutputTextDone
    | FunctionArgumentsDelta
    | FunctionArgumentsDone
    | OverlapDecision
    | TurnEvent
    | PlaybackAcknowledged
    | OutputBufferCleared
)
"""Every event of the wire."""

EVENT_TYPES: dict[str, type[Any]] = {str(cls.__struct_config__.tag): cls for cls in Event.__args__}
"""Wire name to event class."""

STREAM_DELTAS = (OutputAudioDelta, OutputTranscriptDelta, OutputTextDelta, FunctionArgumentsDelta)
"""Events that carry generated output piecemeal: the ones that a fence drops when they have not been sent."""

__all__ = [
    "EVENT_TYPES",
    "STREAM_DELTAS",
    "AudioMetadata",
    "AudioView",
    "CloseReason",
    "ContentPartAdded",
    "ContentPartDone",
    "ErrorEvent",
    "Event",
    "FunctionArgumentsDelta",
    "FunctionArgumentsDone",
    "InputCleared",
    "InputCommitted",
    "InputTimeoutTriggered",
    "InputView",
    "ItemAdded",
    "ItemCreated",
    "ItemDeleted",
    "ItemDone",
    "ItemRetrieved",
    "ItemTruncated",
    "OutputAudioDelta",
    "OutputAudioDone",
    "OutputBufferCleared",
    "OutputItemAdded",
    "OutputItemDone",
    "OutputTextDelta",
    "OutputTextDone",
    "OutputTranscriptDelta",
    "OutputTranscriptDone",
    "OutputView",
    "OverlapDecision",
    "OverlapVerdict",
    "PartView",
    "PlaybackAcknowledged",
    "PlaybackView",
    "RateLimit",
    "RateLimitsUpdated",
    "ResponseAudioOutputView",
    "ResponseAudioView",
    "ResponseCreated",
    "ResponseDone",
    "ResponseError",
    "ResponseListen",
    "ResponseMetrics",
    "ResponseSpeak",
    "ResponseStatus",
    "ResponseView",
    "ServerEvent",
    "SessionClosed",
    "SessionCreated",
    "SessionExpired",
    "SessionHeartbeatAck",
    "SessionReplaced",
    "SessionResumed",
    "SessionResyncRequired",
    "SessionUpdated",
    "SessionView",
    "SpeechStarted",
    "SpeechStopped",
    "StatusDetails",
    "StatusReason",
    "TranscriptUsage",
    "TranscriptionCompleted",
    "TranscriptionDelta",
    "TranscriptionFailed",
    "TurnEvent",
    "TurnEventKind",
    "Usage",
    "session_view",
    "wire_format",
]
