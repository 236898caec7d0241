"""Bring sound from one sample rate to another by a windowed sinc; at odd rates by soxr.

Owns: that step. Called by: `reader.py`. Never: keeps a state: a recording is resampled as a whole.

The filter is the one that the published code gets its prompt's mel frames through: six zero crossings a side, a
cut-off at 0.99 of the lower rate's half, a Hann window (https://ccrma.stanford.edu/~jos/resample/). It needs a row of a table for
each place that an output sample can have between two input samples: few at the rates of recordings, since they share factors with
16 and 24 kHz, and as many as the output rate at others. Where the table would be large, soxr's filter stands in for it, whose
cost does not depend on the rates.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import soxr

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CROSSINGS = 6
_CUTOFF = 0.99
_TABLE = 500_000
"""Most entries of a table, 4 MB: 11025 Hz to 16 kHz, the largest of the usual rates, has 0.3 million."""
_AT_ONCE = 1_000_000
"""About so many values are put into windows at a time."""


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
    wanted = -(-len(samples) * phases // step)
    reach = _reach(step, phases)
    width = 2 * reach + step
    if phases * width > _TABLE:
        resampled: NDArray[np.float32] = soxr.resample(samples.astype(np.float32), rate, to)
        return np.pad(resampled, (0, max(0, wanted - len(resampled))))[:wanted]
    kernel = _kernel(step, phases)
    padded = np.pad(samples.astype(np.float64), (reach, reach + step))
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)[::step]
    rows = max(1, _AT_ONCE // width)
    parts = [windows[begin : begin + rows] @ kernel.T for begin in range(0, len(windows), rows)]
    return np.concatenate(parts).reshape(-1)[:wanted].astype(np.float32)


def _reach(step: int, phases: int) -> int:
    """How many input samples a filter reaches to either side."""
    return math.ceil(_CROSSINGS * step / (min(step, phases) * _CUTOFF))


@lru_cache(maxsize=8)
def _kernel(step: int, phases: int) -> NDArray[np.float64]:
    """One filter per phase: `phases` samples come out of `step` samples that go in. [phases, width]."""
    cutoff = min(step, phases) * _CUTOFF
    reach = _reach(step, phases)
    places = np.arange(-reach, reach + step) / step
    times = (places[None, :] - np.arange(phases)[:, None] / phases) * cutoff
    times = times.clip(-_CROSSINGS, _CROSSINGS)
    window = np.cos(times * np.pi / _CROSSINGS / 2) ** 2
    kernel: NDArray[np.float64] = np.sinc(times) * window * cutoff / step
    return kernel
