"""Bring sound from one sample rate to another by a windowed sinc.

Owns: that step. Called by: `reader.py`. Never: keeps a state: a recording is resampled as a whole.

The filter is the one that the published code gets its prompt's mel frames through: six zero crossings a side, a
cut-off at 0.99 of the lower rate's half, a Hann window (https://ccrma.stanford.edu/~jos/resample/).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CROSSINGS = 6
_CUTOFF = 0.99


def resample(samples: NDArray[np.float32], *, rate: int, to: int) -> NDArray[np.float32]:
    """Bring [n] samples from `rate` to `to`, both in Hz.

    Returns:
        [ceil(n · to / rate)].

    Raises:
        ValueError: a rate is not above 0.
    """
    if min(rate, to) < 1:
        message = f"sample rates have to be above 0 Hz: {rate} to {to}"
        raise ValueError(message)
    if rate == to:
        return samples.astype(np.float32)
    step, phases = rate // math.gcd(rate, to), to // math.gcd(rate, to)
    kernel = _kernel(step, phases)
    reach = (kernel.shape[1] - step) // 2
    padded = np.pad(samples.astype(np.float64), (reach, reach + step))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[1])[::step]
    wanted = -(-len(samples) * phases // step)
    return (windows @ kernel.T).reshape(-1)[:wanted].astype(np.float32)


@lru_cache(maxsize=8)
def _kernel(step: int, phases: int) -> NDArray[np.float64]:
    """One filter per phase: `phases` samples come out of `step` samples that go in. [phases, width]."""
    cutoff = min(step, phases) * _CUTOFF
    reach = math.ceil(_CROSSINGS * step / cutoff)
    places = np.arange(-reach, reach + step) / step
    times = (places[None, :] - np.arange(phases)[:, None] / phases) * cutoff
    times = times.clip(-_CROSSINGS, _CROSSINGS)
    window = np.cos(times * np.pi / _CROSSINGS / 2) ** 2
    kernel: NDArray[np.float64] = np.sinc(times) * window * cutoff / step
    return kernel
