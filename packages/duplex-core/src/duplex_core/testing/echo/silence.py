"""The silence rule: whether there is anything in a piece of audio to answer. Pure; called by the reply rule."""

from __future__ import annotations

import array
import sys

AUDIBLE = 64
"""Peak of 16-bit samples from which audio counts as sound: 54 dB below full scale, above the hiss of a microphone."""


def is_silent(pcm: bytes) -> bool:
    """Whether 16-bit mono PCM holds no sound at all."""
    samples = array.array("h", pcm)
    if sys.byteorder == "big":
        samples.byteswap()
    return all(-AUDIBLE < extreme < AUDIBLE for extreme in (min(samples, default=0), max(samples, default=0)))
