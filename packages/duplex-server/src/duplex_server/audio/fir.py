"""Rate conversion between the rates that speech has, by one small matrix product a chunk.

Owns the filter and the state of one stream whose two rates stand in a small ratio (:func:`suits`); for the others
:mod:`duplex_server.audio.resample` has soxr. Must never give other samples when the same sound is cut differently.

The filter is a windowed sinc (Kaiser, 85 dB) whose outputs of one millisecond are a product of the samples around them with one
matrix, the same for every stream of this ratio. So a session keeps some hundred samples and no transform's tables, and what many
sessions take turns with stays in the processor's cache.

Cutting leaves no trace because a row of a product comes out alike, bit by bit, however many rows are multiplied with it. In
float32 that is so where the library adds in the same order for any number of rows but one, which each filter tries once. Where it
is not, float64 is used, in which nothing is ever rounded before the end: samples are 16-bit numbers, weights are multiples of
2**-34, and sums of their products fit into its 53 bits.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import Final

import numpy as np
import numpy.typing as npt

_MOST_STEPS: Final = 6
"""Largest number in a ratio that is converted here: 48 kHz to 8 kHz. A matrix grows with the square of it."""
_ATTENUATION_DB: Final = 85.0
_PASS: Final = 0.7
"""Share of the lower Nyquist frequency that passes unchanged; at all of it nothing does."""
_WEIGHT_BITS: Final = 34
MOST_AT_ONCE: Final = 16384
"""Most samples that are converted in one piece: what is in between is wider than they are, and should stay in the cache."""
_PRODUCT_SIZE: Final = 200_000
"""Most multiplications in one matrix product: OpenBLAS spreads larger ones over threads, which spin while they wait."""

_LEAST_ROWS: Final = 2
"""Fewest rows in one product. Of a single one libraries make a product with a vector, and add in another order."""

Samples = npt.NDArray[np.int16]
Values = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def suits(source_hz: int, target_hz: int) -> bool:
    """Whether a conversion between these rates is small enough to be done here."""
    return max(_ratio(source_hz, target_hz)) <= _MOST_STEPS


def _ratio(source_hz: int, target_hz: int) -> tuple[int, int]:
    """By how much to go up, and then down."""
    common = math.gcd(source_hz, target_hz)
    return target_hz // common, source_hz // common


class _Filter:
    """What all streams of one ratio share: ``step_out`` samples are the product of ``window`` samples with ``weights``.

    ``back`` of these samples lie before the first of the ``step_in`` ones that the outputs stand for.
    """

    def __init__(self, up: int, down: int, steps: int) -> None:
        """Design it: ``steps`` times ``down`` samples become ``steps`` times ``up``."""
        self.step_in: Final = steps * down
        self.step_out: Final = steps * up
        edge = math.pi / max(up, down)  # the lower Nyquist frequency, in radians for each sample of the rate between
        half = math.ceil((_ATTENUATION_DB - 7.95) / (2.285 * (1 - _PASS) * edge) / 2)
        at = np.arange(-half, half + 1)
        cutoff = (1 + _PASS) / 2 * edge
        taps = np.sinc(at * cutoff / math.pi) * np.kaiser(len(at), 0.1102 * (_ATTENUATION_DB - 8.7))
        for phase in range(up):
            taps[phase::up] /= taps[phase::up].sum()  # a constant stays what it is
        self.back: Final = half // up
        self.window: Final = self.back + ((self.step_out - 1) * down + half) // up + 1
        tap = half + np.arange(self.step_out) * down - (np.arange(self.window)[:, None] - self.back) * up
        inside = (tap >= 0) & (tap < len(taps))
        found = np.where(inside, taps[np.clip(tap, 0, len(taps) - 1)], 0.0)
        self.most_rows: Final = max(_LEAST_ROWS, _PRODUCT_SIZE // found.size)
        single = found.astype(np.float32)
        exact = np.rint(found * 2.0**_WEIGHT_BITS) / 2.0**_WEIGHT_BITS
        self.weights: Final[Values] = single if rows_come_out_alike(single, self.most_rows) else exact
        self._benches = threading.local()

    @property
    def bench(self) -> _Bench:
        """Where this thread works: nothing of it lasts longer than a call."""
        try:
            bench: _Bench = self._benches.bench
        except AttributeError:
            bench = self._benches.bench = _Bench(self)
        return bench


def rows_come_out_alike(weights: npt.NDArray[np.float32], most: int) -> bool:
    """Whether a row's product with ``weights`` is the same, bit by bit, whichever of 2 to ``most`` rows it is; takes some ms."""
    most = max(most, _LEAST_ROWS + 1)  # of two rows alone neither could be compared with itself in the other's place
    samples = np.arange(most * len(weights)) * 40503 % 65536 - 32768  # all of the range, in no order
    rows = samples.reshape(most, -1).astype(np.float32)
    together = rows @ weights
    for count in range(_LEAST_ROWS, most):
        for some in (slice(count), slice(most - count, most)):
            if not np.array_equal(rows[some] @ weights, together[some]):
                return False
    return True


class _Bench:
    """Memory to work in, the same for all streams of a filter, so that it is in the processor's cache when it is needed."""

    __slots__ = ("out", "rows", "sound", "windows")

    def __init__(self, found: _Filter) -> None:
        """Make it for the largest piece: :data:`MOST_AT_ONCE` samples after what a stream holds back."""
        kind = found.weights.dtype
        rows = (MOST_AT_ONCE + found.step_in) // found.step_in + _LEAST_ROWS
        self.sound: Final[Values] = np.zeros(rows * found.step_in + found.window, kind)
        stride = self.sound.itemsize
        self.windows: Final[Values] = np.ndarray(
            (rows, found.window), kind, self.sound, 0, (stride * found.step_in, stride)
        )
        """Views of ``sound``: what each row of outputs is made of."""
        self.rows: Final[Values] = np.empty((found.most_rows, found.window), kind)
        self.out: Final[Values] = np.empty((rows, found.step_out), kind)


_filter = functools.lru_cache(maxsize=64)(_Filter)


class FirStream:
    """One stream; see :class:`~duplex_server.audio.resample.StreamResampler`, which alone uses it."""

    __slots__ = ("_filter", "_given", "_held", "_pushed")

    def __init__(self, source_hz: int, target_hz: int) -> None:
        """Prepare an empty stream between two rates that :func:`suits` agrees to, in Hz."""
        up, down = _ratio(source_hz, target_hz)
        self._filter: Final = _filter(up, down, max(1, round(source_hz / 1000 / down)))
        self.clear()

    def clear(self) -> None:
        """Begin a new stream: before it there was silence."""
        self._held: Values = np.zeros(self._filter.back, self._filter.weights.dtype)
        self._pushed = 0
        self._given = 0

    def push(self, samples: Samples) -> Values:
        """Convert int16[n], n at most :data:`MOST_AT_ONCE`: what is ready by now.

        Returns:
            float32[m] or float64[m] in int16 units, not yet rounded or clipped; the caller's until the next call in this thread.
        """
        found = self._filter
        bench = found.bench
        sound, held = bench.sound, self._held.size
        size = held + samples.size
        sound[:held] = self._held
        sound[held:size] = samples
        rows = max(0, (size - found.window) // found.step_in + 1)
        for at in range(0, rows, found.most_rows):
            # One row too many, at the end, is left out of what is returned.
            end = max(min(at + found.most_rows, rows), at + _LEAST_ROWS)
            windows = bench.rows[: end - at]
            windows[:] = bench.windows[at:end]
            np.dot(windows, found.weights, out=bench.out[at:end])
        self._held = sound[rows * found.step_in : size].copy()
        self._pushed += samples.size
        self._given += rows * found.step_out
        return bench.out[:rows].reshape(-1)

    def flush(self) -> Values:
        """The stream's tail, as if silence followed; a new one begins."""
        found = self._filter
        left = (self._pushed * found.step_out + found.step_in // 2) // found.step_in - self._given
        rows = -(-left // found.step_out)
        missing = (rows - 1) * found.step_in + found.window - self._held.size
        tail = self.push(np.zeros(max(0, missing), np.int16))[:left]
        self.clear()
        return tail
