"""Units: how the stream of the user's audio is cut into them, and what is heard in one. Used by the session and the thinker."""

from __future__ import annotations

import msgspec

from duplex_core.audio import pcm16_bytes, pcm16_ms
from duplex_core.testing.speech import is_loud

INPUT_HZ = 16000
"""The rate of what native hears."""
FRAME_MS = 20.0
"""What is judged at once."""


class Sound(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a unit of ``ms``: how much of it is loud, and how long it has been silent at its end; all in ms."""

    ms: float
    loud_ms: float
    silent_ms: float


def sound_of(pcm: bytes) -> Sound:
    """Judge 16-bit mono PCM at :data:`INPUT_HZ`, frame by frame."""
    size = pcm16_bytes(FRAME_MS, INPUT_HZ)
    loud_ms = silent_ms = 0.0
    for start in range(0, len(pcm), size):
        frame = pcm[start : start + size]
        frame_ms = pcm16_ms(len(frame), INPUT_HZ)
        if is_loud(frame):
            loud_ms, silent_ms = loud_ms + frame_ms, 0.0
        else:
            silent_ms += frame_ms
    return Sound(ms=pcm16_ms(len(pcm), INPUT_HZ), loud_ms=loud_ms, silent_ms=silent_ms)


class UnitBuffer:
    """Cuts a stream of 16-bit mono PCM into units. Loses nothing, repeats nothing."""

    def __init__(self, unit_ms: float) -> None:
        """Begin empty."""
        self._size = pcm16_bytes(unit_ms, INPUT_HZ)
        self._kept = b""

    def take(self, pcm: bytes) -> list[bytes]:
        """The units that ``pcm`` completes."""
        self._kept += pcm
        whole = len(self._kept) // self._size * self._size
        units = [self._kept[start : start + self._size] for start in range(0, whole, self._size)]
        self._kept = self._kept[whole:]
        return units

    def pad(self) -> bytes | None:
        """What is left, filled up with silence; ``None`` when nothing is."""
        kept, self._kept = self._kept, b""
        return kept.ljust(self._size, b"\0") if kept else None

    def silence(self) -> bytes:
        """A unit of nothing."""
        return bytes(self._size)
