"""Sample rate conversion of one running stream, without clicks where chunks meet.

Owns the choice of filter and the state between chunks. One :class:`StreamResampler` belongs to one direction
of one session, and only that session calls it. Must never block, be shared between streams, or reorder or
drop samples.

Between rates in a small ratio, as 8, 16, 24 and 48 kHz are, the filter is :mod:`duplex_server.audio.fir`;
between others (22.05 kHz, 44.1 kHz) it is soxr's LQ in small blocks. The filter's own shift is compensated in
both: output sample n is the sound at n / target_hz. What was measured, 24 kHz to 16 kHz unless said otherwise:

- Delay, that is how much of the pushed audio has not come out yet, in chunks of whole milliseconds: 2 ms, 3 ms
  to or from 8 kHz, 1 ms between 24 and 48 kHz (soxr's LQ: 1-9 ms, mean 5 ms, to or from 8 kHz 3-29 ms).
- Pass band flat to 0.7 of the lower Nyquist frequency, -0.2 dB at 0.75, -1.6 dB at 0.8, -6 dB at 0.85; what
  could alias is below -90 dB (soxr's LQ: -0.3, -2 and -8 dB; -87 dB).
- Cost, with 50 streams taking turns: 0.1 ms of one core per second of audio in chunks of 100 ms, 0.3 ms in
  chunks of 20 ms, and a third more where it is in float64. soxr costs 0.3 and 0.7 ms, and more where other work
  empties the processor's cache: a stream of its own keeps 30 kB.
"""

import os
from typing import Final

import numpy as np
import numpy.typing as npt
import soxr

from duplex_server.audio.fir import MOST_AT_ONCE, FirStream, suits

_EMPTY: Final = np.zeros(0, np.int16)
_EMPTY_COLUMN: Final = np.zeros((0, 1), np.float32)
_LEAST: Final = -32768.0
_MOST: Final = 32767.0
_QUALITY: Final = "LQ"

# libsoxr filters through FFT blocks of at least 2**n samples and holds sound back until a block is full.
# 2**10 is its default; 2**9 halves the delay at the same cost. It reads the number from the environment
# alone, whenever a stream is created: hence here, once, before the first one. A value that the operator set
# stays.
os.environ.setdefault("SOXR_MIN_DFT_SIZE", "9")


class _SoxrStream:
    """A stream of soxr's; the arithmetic is float32: its int16 mode adds dither, with which digital silence is not silent."""

    __slots__ = ("_stream",)

    def __init__(self, source_hz: int, target_hz: int) -> None:
        """Prepare an empty stream."""
        self._stream: Final = soxr.ResampleStream(source_hz, target_hz, 1, dtype="float32", quality=_QUALITY)

    def clear(self) -> None:
        """Begin a new stream."""
        self._stream.clear()

    def push(self, samples: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
        """Convert int16[n]: what is ready by now, float32[m] in int16 units, not yet rounded or clipped."""
        values: npt.NDArray[np.float32] = self._stream.resample_chunk(samples.astype(np.float32)[:, None])
        return values[:, 0]

    def flush(self) -> npt.NDArray[np.float32]:
        """The stream's tail; a new one begins."""
        tail: npt.NDArray[np.float32] = self._stream.resample_chunk(_EMPTY_COLUMN, last=True)
        self._stream.clear()
        return tail[:, 0]


class StreamResampler:
    """Converts the rate of one mono stream of int16 samples.

    The same samples give the same output however they are cut into chunks: they are rounded once, at the end.
    """

    __slots__ = ("_stream", "source_hz", "target_hz")

    def __init__(self, source_hz: int, target_hz: int) -> None:
        """Prepare an empty stream; about 0.03 ms.

        Args:
            source_hz: Rate of what is pushed, in Hz.
            target_hz: Rate of what is returned, in Hz. If both are equal the samples pass through untouched.

        Raises:
            ValueError: A rate is not positive.
        """
        if source_hz <= 0 or target_hz <= 0:
            raise ValueError(f"sample rates must be positive, got {source_hz} Hz to {target_hz} Hz")
        self.source_hz: Final = source_hz
        self.target_hz: Final = target_hz
        self._stream: Final = None if source_hz == target_hz else _stream(source_hz, target_hz)

    def push(self, samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """Convert the next samples of the stream.

        Args:
            samples: int16[n], mono, n may be 0; it is not changed.

        Returns:
            int16[m]: what is ready by now; the rest comes with later calls. ``samples`` itself at equal
            rates.
        """
        if self._stream is None:
            return samples
        if not samples.size:
            return _EMPTY
        if samples.size <= MOST_AT_ONCE:
            return _to_int16(self._stream.push(samples))
        starts = range(0, samples.size, MOST_AT_ONCE)
        return np.concatenate([self.push(samples[at : at + MOST_AT_ONCE]) for at in starts])

    def flush(self) -> npt.NDArray[np.int16]:
        """End the stream and return its tail; the next push begins a new one.

        Returns:
            int16[m]. Since the start of the stream, pushes and this call together have returned
            ``round(pushed * target_hz / source_hz)`` samples, give or take one.
        """
        return _EMPTY if self._stream is None else _to_int16(self._stream.flush())

    def reset(self) -> None:
        """Forget what is held back; the next push begins a new stream."""
        if self._stream is not None:
            self._stream.clear()


def _stream(source_hz: int, target_hz: int) -> FirStream | _SoxrStream:
    """An empty stream of the kind that these rates need."""
    return FirStream(source_hz, target_hz) if suits(source_hz, target_hz) else _SoxrStream(source_hz, target_hz)


def _to_int16(values: npt.NDArray[np.float32] | npt.NDArray[np.float64]) -> npt.NDArray[np.int16]:
    """Sound in int16 units, rounded and clipped in place."""
    np.rint(values, out=values)
    return values.clip(_LEAST, _MOST, out=values).astype(np.int16)
