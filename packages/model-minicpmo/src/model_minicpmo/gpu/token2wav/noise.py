"""Where the noise of the waveform comes from: the flow's one buffer, and the draws of the vocoder's source.

Owns: the seeded sources, which are the default, and the silent one. Called by: `synthesis.py`, and by tests, which
give recorded draws. Never: uses a global generator: the same seed gives the same sound.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

FLOW_SEED = 20_240_517
"""Seed of the flow's buffer. The published code draws it anew at every start, unseeded, and keeps it for all streams."""


class SourceNoise(Protocol):
    """Gives the normal draws of one stream's source, call by call."""

    def __call__(self, samples: int, harmonics: int) -> Tensor:
        """Give [samples, harmonics], float32."""


class SeededNoise:
    """Draws that a seed fixes; made on the CPU, so that they are the same on any device."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, samples: int, harmonics: int) -> Tensor:
        """Draw the next [samples, harmonics]."""
        return torch.randn(samples, harmonics, generator=self._generator)


def no_noise(samples: int, harmonics: int) -> Tensor:
    """Give zeros: a source without noise."""
    return torch.zeros(samples, harmonics)


def flow_noise(bins: int, frames: int, *, seed: int = FLOW_SEED) -> Tensor:
    """Give the flow's buffer [bins, frames], which a seed fixes. One buffer serves all streams, as in the published code."""
    return torch.randn(bins, frames, generator=torch.Generator().manual_seed(seed))
