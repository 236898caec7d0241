"""How long the other side took, on the client's own clock.

:class:`InputLine` maps the session's audio time line, in which the server speaks of the user's audio, to the moments at
which that audio was spoken. :class:`Latencies` follows a conversation's events and tells the two figures that matter: from
the end of the user's speech to the first audio of the answer, and from the onset of an interruption to silence. Pure; the
caller passes events and times in.
"""

from __future__ import annotations

import bisect

import msgspec

from duplex_client.pacing import SentChunk
from duplex_client.player import HeardAnswer
from duplex_core.audio import pcm16_ms
from duplex_core.events import (
    Event,
    InputCommitted,
    OutputAudioDelta,
    OverlapDecision,
    OverlapVerdict,
    SpeechStopped,
)

JITTER_MS = 20.0
"""A live source's chunks come this unevenly without having been spoken so."""


class InputLine:
    """When each moment of the audio that was sent was spoken; feed it every chunk, from the session's first."""

    def __init__(self) -> None:
        self._sent_ms = 0.0
        self._starts_ms: list[float] = []
        self._drifts_ms: list[float] = []

    def sent(self, chunk: SentChunk) -> None:
        """Take note of a chunk: for ``stream_pcm``'s ``on_chunk``."""
        drift_ms = chunk.starts_at_ms - self._sent_ms
        if not self._drifts_ms or abs(drift_ms - self._drifts_ms[-1]) > JITTER_MS:
            self._starts_ms.append(self._sent_ms)
            self._drifts_ms.append(drift_ms)
        self._sent_ms += pcm16_ms(len(chunk.pcm), chunk.rate_hz)

    def spoken_at_ms(self, audio_ms: float) -> float | None:
        """The moment at which ``audio_ms`` of the session's audio was spoken; ``None`` before any was."""
        index = bisect.bisect_right(self._starts_ms, audio_ms) - 1
        return audio_ms + self._drifts_ms[index] if index >= 0 else None


class TurnLatency(msgspec.Struct, frozen=True, kw_only=True):
    """From the end of the user's speech, as the server's detector has it, to the first audio of the answer, in ms."""

    response_id: str
    ms: float


class StopLatency(msgspec.Struct, frozen=True, kw_only=True):
    """From the onset of the speech that interrupted to the last of the old answer that sounded, in ms."""

    response_id: str
    ms: float


class Latencies:
    """Follows one conversation.

    Args:
        line: Where the user's audio is placed in time.
    """

    def __init__(self, line: InputLine) -> None:
        self._line = line
        self._speech_end_ms: float | None = None
        self._turn_open = False
        self._onsets_ms: dict[str, float] = {}

    def follow(self, event: Event, at_ms: float) -> TurnLatency | None:
        """Take in an event that arrived at ``at_ms``; returns a latency when it completes one."""
        match event:
            case SpeechStopped():
                self._speech_end_ms = self._line.spoken_at_ms(event.audio_end_ms)
            case InputCommitted():
                self._turn_open = True
            case OverlapDecision(decision=OverlapVerdict.INTERRUPTION):
                onset_ms = self._line.spoken_at_ms(event.audio_ms)
                if onset_ms is not None and event.response_id is not None:
                    self._onsets_ms[event.response_id] = onset_ms
            case OutputAudioDelta() if self._turn_open and self._speech_end_ms is not None:
                self._turn_open = False
                return TurnLatency(response_id=event.response_id, ms=at_ms - self._speech_end_ms)
            case _:
                pass
        return None

    def silenced(self, answer: HeardAnswer) -> StopLatency | None:
        """Take in an answer as it was heard; returns how long it went on sounding, when speech over it interrupted it."""
        onset_ms = self._onsets_ms.pop(answer.response_id, None)
        ended_ms = answer.ends_at_ms
        if onset_ms is None or ended_ms is None or answer.cut_at_ms is None:
            return None
        return StopLatency(response_id=answer.response_id, ms=max(0.0, ended_ms - onset_ms))
