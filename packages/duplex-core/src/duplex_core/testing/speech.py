"""Sound for tests: a detector that goes by loudness, bursts that it takes for speech, and a resampler good enough to count by.

Used by the test driver. The server has real ones; nothing here is fit for ears.
"""

from __future__ import annotations

import array
import math
import sys

from duplex_core.audio import PCM16_BYTES_PER_SAMPLE, pcm16_bytes
from duplex_core.detection import SpeechFrame

FRAME_MS = 32.0
"""What the detectors in use judge at once."""
LOUD = 400.0
"""Root mean square from which a frame counts as speech: 38 dB below full scale."""


def samples_of(pcm: bytes) -> array.array[int]:
    """The samples of 16-bit mono PCM."""
    samples = array.array("h", pcm)
    if sys.byteorder == "big":
        samples.byteswap()
    return samples


def pcm_of(samples: array.array[int]) -> bytes:
    """16-bit mono PCM of the samples."""
    if sys.byteorder == "big":
        samples = array.array("h", samples)
        samples.byteswap()
    return samples.tobytes()


def burst(ms: float, rate_hz: int, *, hz: float = 180.0) -> bytes:
    """``ms`` of a loud, buzzing tone with a syllable-like swell: speech, to anything that goes by loudness."""
    step = 2 * math.pi * hz / rate_hz
    swell = 2 * math.pi * 4 / rate_hz
    count = pcm16_bytes(ms, rate_hz) // PCM16_BYTES_PER_SAMPLE
    wave = (
        (0.65 + 0.35 * math.cos(swell * n)) * (math.sin(step * n) + 0.5 * math.sin(2 * step * n)) for n in range(count)
    )
    return pcm_of(array.array("h", (round(6000 * value) for value in wave)))


def silence(ms: float, rate_hz: int) -> bytes:
    """``ms`` of nothing."""
    return bytes(pcm16_bytes(ms, rate_hz))


def is_loud(pcm: bytes) -> bool:
    """Whether 16-bit mono PCM, at least one sample of it, is as loud as speech."""
    samples = samples_of(pcm)
    return math.sqrt(sum(value * value for value in samples) / len(samples)) >= LOUD


class LoudnessDetector:
    """Cuts the audio of one session into frames and judges each by its loudness alone."""

    def __init__(self, rate_hz: int) -> None:
        """Begin at 0 ms. ``rate_hz`` is that of the audio which will come."""
        self._rate_hz = rate_hz
        self._size = pcm16_bytes(FRAME_MS, rate_hz)
        self.reset(0.0)

    def reset(self, start_ms: float) -> None:
        """Forget the audio kept; what follows begins at ``start_ms``."""
        self._at_ms = start_ms
        self._kept = b""

    def judge(self, pcm: bytes) -> tuple[SpeechFrame, ...]:
        """Verdicts on the frames that ``pcm`` completes."""
        self._kept += pcm
        frames = []
        while len(self._kept) >= self._size:
            frame, self._kept = self._kept[: self._size], self._kept[self._size :]
            probability = 0.95 if is_loud(frame) else 0.02
            frames.append(SpeechFrame(start_ms=self._at_ms, duration_ms=FRAME_MS, probability=probability))
            self._at_ms += FRAME_MS
        return tuple(frames)


class LinearResampler:
    """Converts between rates by straight lines between samples, statefully; no sample is lost over a stream."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        """Convert from ``from_hz`` to ``to_hz``."""
        self._from = from_hz
        self._to = to_hz
        self._seen = 0
        self._given = 0
        self._last = 0

    def convert(self, pcm: bytes) -> bytes:
        """The next piece, as much of it as ends within what was seen."""
        if self._from == self._to:
            return pcm
        samples = array.array("h", [self._last])
        samples.extend(samples_of(pcm))
        first = self._seen - 1
        self._seen += len(samples) - 1
        until = self._seen * self._to // self._from
        out = array.array("h")
        for index in range(self._given, until):
            at = index * self._from / self._to - first
            left = min(int(at), len(samples) - 1)
            right = min(left + 1, len(samples) - 1)
            out.append(round(samples[left] + (samples[right] - samples[left]) * (at - left)))
        self._given = until
        self._last = samples[-1]
        return pcm_of(out)
