"""The duplex extensions: overlap, turns, playback."""

from __future__ import annotations

import enum

from duplex_core.events.base import ServerEvent
from duplex_core.ledger import PlaybackLedger


class OverlapVerdict(enum.Enum):
    """What speech over the assistant's speech was taken for."""

    BACKCHANNEL = "backchannel"
    INTERRUPTION = "interruption"
    NOISE = "noise"


class OverlapDecision(ServerEvent, frozen=True, kw_only=True, tag="overlap.decision"):
    """Incoming speech was judged while the assistant spoke."""

    decision: OverlapVerdict
    audio_ms: int
    epoch: int
    response_id: str | None = None


class TurnEventKind(enum.Enum):
    """What happens to the assistant's turn while the user speaks over it."""

    HELD = "held"
    """It is not clear yet whether the user interrupts: a player pauses, and keeps what it has."""
    RESUMED = "resumed"
    """The user did not: the player goes on where it paused."""


class TurnEvent(ServerEvent, frozen=True, kw_only=True, tag="turn.event"):
    """The assistant's turn is held, or goes on; an interruption is told by ``output_audio_buffer.cleared``."""

    kind: TurnEventKind
    epoch: int
    turn_id: int


class PlaybackAcknowledged(ServerEvent, frozen=True, kw_only=True, tag="playback.acknowledged"):
    """The ledger after a ``playback.ack``."""

    playback: PlaybackLedger
    response_id: str
    item_id: str


class OutputBufferCleared(ServerEvent, frozen=True, kw_only=True, tag="output_audio_buffer.cleared"):
    """Queued output audio of this answer must not be played; ``epoch`` is the new fence."""

    response_id: str
    epoch: int
    audio_end_ms: int
