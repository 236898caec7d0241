"""The user's audio that is not an item yet, on the session's time line.

Owned by the input side of the session machine. Counts samples, so that positions never drift; speaks milliseconds. Keeps the
pieces as they came, so that taking one more copies nothing.
"""

from __future__ import annotations

from collections import deque

from duplex_core.audio import PCM16_BYTES_PER_SAMPLE


class InputBuffer:
    """A run of 16-bit mono PCM with a position. ``rate_hz`` is the model's input rate."""

    def __init__(self, rate_hz: int) -> None:
        """Begin empty at 0 ms."""
        self._rate_hz = rate_hz
        self._start = 0
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def _samples(self, ms: float) -> int:
        return round(ms * self._rate_hz / 1000.0)

    @property
    def start_ms(self) -> float:
        """Where the kept audio begins."""
        return self._start * 1000.0 / self._rate_hz

    @property
    def end_ms(self) -> float:
        """Where it ends: all the audio that the session ever got."""
        return (self._start + self._size // PCM16_BYTES_PER_SAMPLE) * 1000.0 / self._rate_hz

    @property
    def duration_ms(self) -> float:
        """How much is kept."""
        return self.end_ms - self.start_ms

    def append(self, pcm: bytes) -> None:
        """Add audio at the end."""
        if pcm:
            self._pieces.append(pcm)
            self._size += len(pcm)

    def cut(self, start_ms: float, end_ms: float) -> bytes:
        """The audio in [start_ms, end_ms), as far as it is kept."""
        first = max(0, self._samples(start_ms) - self._start) * PCM16_BYTES_PER_SAMPLE
        last = max(0, self._samples(end_ms) - self._start) * PCM16_BYTES_PER_SAMPLE
        parts = []
        at = 0
        for piece in self._pieces:
            if at >= last:
                break
            if at + len(piece) > first:
                parts.append(piece[max(0, first - at) : last - at])
            at += len(piece)
        return b"".join(parts)

    def drop_before(self, ms: float) -> None:
        """Forget what lies before ``ms``."""
        count = min(self._samples(ms) - self._start, self._size // PCM16_BYTES_PER_SAMPLE)
        if count <= 0:
            return
        self._start += count
        surplus = count * PCM16_BYTES_PER_SAMPLE
        self._size -= surplus
        while surplus:
            piece = self._pieces.popleft()
            if len(piece) > surplus:
                self._pieces.appendleft(piece[surplus:])
            surplus -= min(surplus, len(piece))

    def clear(self) -> None:
        """Forget everything kept; the time line goes on."""
        self.drop_before(self.end_ms)
