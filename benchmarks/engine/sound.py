"""The sounds of the benchmark: what the clients send and what the model says, made by arithmetic, the same in every run.

Pure. Used by the model and by the load generator.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PIECE_MS = 100.0
"""How much audio an append, and a delta, carries."""

Samples = npt.NDArray[np.int16]


def hiss(rate_hz: int, seconds: float) -> Samples:
    """A quiet room: noise at -50 dB, in which the speech detector hears nobody. int16[n], mono, at ``rate_hz``."""
    noise = np.random.default_rng(0).standard_normal(round(rate_hz * seconds))
    return (noise * 0.003 * 32768).astype(np.int16)


def babble(rate_hz: int, seconds: float) -> Samples:
    """A voice that says nothing: a gliding pitch through moving formants, in syllables. int16[n], mono, at ``rate_hz``.

    The speech detector is sure of it (0.95 and more from its third frame on), which a test of the benchmark holds.
    """
    time = np.arange(round(rate_hz * seconds)) / rate_hz
    pitch = 125.0 * (1 + 0.08 * np.sin(2 * np.pi * 2.5 * time))
    phase = 2 * np.pi * np.cumsum(pitch) / rate_hz
    low = 500 + 250 * np.sin(2 * np.pi * 1.7 * time)
    high = 1400 + 500 * np.sin(2 * np.pi * 1.1 * time + 1)
    voice: npt.NDArray[np.float64] = np.zeros(len(time))
    for harmonic in range(1, 40):
        tone = harmonic * pitch
        gain = 1 / (1 + ((tone - low) / 80) ** 2) + 0.6 / (1 + ((tone - high) / 100) ** 2)
        voice += gain * np.sin(harmonic * phase) / harmonic**0.5 * (tone < rate_hz / 2)
    voice *= 0.1 + 0.45 * (1 - np.cos(2 * np.pi * 4 * time))
    loudest: float = np.abs(voice).max()
    return (voice / loudest * 0.4 * 32767).astype(np.int16)


def pieces(sound: Samples, rate_hz: int) -> list[bytes]:
    """``sound`` as 16-bit little-endian PCM in pieces of :data:`PIECE_MS`; what is left over is left out."""
    size = round(rate_hz * PIECE_MS / 1000)
    return [sound[start : start + size].astype("<i2").tobytes() for start in range(0, len(sound) - size + 1, size)]
