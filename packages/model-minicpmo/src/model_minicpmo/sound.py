"""Sound as the stages take it: samples as floats, and files out of options.

Used by the session and the chat, on the event loop: what stands here costs microseconds for a unit. Never: resamples or decodes
a file, or goes through samples one by one.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from duplex_core.tensors import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FULL_SCALE = 32768.0


def float32(pcm: bytes) -> bytes:
    """Turn 16-bit mono PCM into float32 in [-1, 1), as bytes."""
    import numpy as np  # noqa: PLC0415 - so that describing the model stays light

    samples: NDArray[np.float32] = np.divide(np.frombuffer(pcm, "<i2"), FULL_SCALE, dtype=np.float32)
    return samples.astype("<f4", copy=False).tobytes()


def pcm16(pcm: bytes) -> Tensor:
    """Give 16-bit mono PCM as it is, int16 [n]: the senses make floats of it, so that the event loop does not have to."""
    return Tensor(dtype="int16", shape=(len(pcm) // 2,), data=pcm)


def file_bytes(encoded: str | None) -> bytes:
    """Give the file in an option that holds one in base64, or as a data: URL; nothing for None."""
    if encoded is None:
        return b""
    return base64.b64decode(encoded.partition(",")[2] if encoded.startswith("data:") else encoded)
