"""G.711 companding as two pairs of lookup tables.

Owns the mu-law and A-law curves. Called by :mod:`duplex_server.audio.formats` only. Must never loop over
samples: one table look-up per sample is all the work there is at run time.

Both laws are sign + 3 bit segment + 4 bit mantissa. The curves follow ITU-T G.711 (11/88); the tables work on
16 bit samples, so mu-law drops the two and A-law the three lowest bits, as telephony stacks do.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

_MULAW_BIAS: Final = 33
_MULAW_CLIP: Final = 8158


def _expand_mulaw() -> npt.NDArray[np.int16]:
    """Table of 256 int16 samples, indexed by the mu-law byte."""
    code = ~np.arange(256, dtype=np.uint8)
    segment = (code >> 4 & 7).astype(np.int32)
    mantissa = (code & 15).astype(np.int32)
    magnitude = ((2 * mantissa + _MULAW_BIAS) << segment) - _MULAW_BIAS
    return np.where(code & 0x80, -magnitude * 4, magnitude * 4).astype(np.int16)


def _expand_alaw() -> npt.NDArray[np.int16]:
    """Table of 256 int16 samples, indexed by the A-law byte."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    segment = (code >> 4 & 7).astype(np.int32)
    mantissa = (code & 15).astype(np.int32)
    linear = 2 * mantissa + 1
    magnitude = np.where(segment == 0, linear, (linear + 32) << np.maximum(segment - 1, 0))
    return np.where(code & 0x80, magnitude * 8, -magnitude * 8).astype(np.int16)


def _all_samples() -> npt.NDArray[np.int32]:
    """Every int16 value, in the order of its unsigned bit pattern (0 .. 32767, -32768 .. -1)."""
    return np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)


def _compress_mulaw() -> npt.NDArray[np.uint8]:
    """Table of 65536 mu-law bytes, indexed by the sample's unsigned bit pattern."""
    sample = _all_samples() >> 2
    negative = sample < 0
    magnitude = np.minimum(np.abs(sample), _MULAW_CLIP) + _MULAW_BIAS
    segment = np.floor(np.log2(magnitude)).astype(np.int32) - 5
    mantissa = magnitude >> (segment + 1) & 15
    code = (segment << 4 | mantissa) ^ np.where(negative, 0x7F, 0xFF)
    return np.asarray(code, np.uint8)


def _compress_alaw() -> npt.NDArray[np.uint8]:
    """Table of 65536 A-law bytes, indexed by the sample's unsigned bit pattern."""
    sample = _all_samples() >> 3
    negative = sample < 0
    magnitude = np.where(negative, -sample - 1, sample)
    segment = np.maximum(np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int32) - 4, 0)
    mantissa = magnitude >> np.maximum(segment, 1) & 15
    code = (segment << 4 | mantissa) ^ np.where(negative, 0x55, 0xD5)
    return np.asarray(code, np.uint8)


MULAW_TO_PCM: Final = _expand_mulaw()
"""int16[256], indexed by the mu-law byte."""
ALAW_TO_PCM: Final = _expand_alaw()
"""int16[256], indexed by the A-law byte."""
PCM_TO_MULAW: Final = _compress_mulaw()
"""uint8[65536], indexed by the sample viewed as uint16."""
PCM_TO_ALAW: Final = _compress_alaw()
"""uint8[65536], indexed by the sample viewed as uint16."""
