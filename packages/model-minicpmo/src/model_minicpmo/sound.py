"""Sound as the stages take it: samples as floats, and files out of options. Light: no tensor library but NumPy.

Used by the session and the chat. Never: resamples or decodes a file.
"""

from __future__ import annotations

import base64

import numpy as np

FULL_SCALE = 32768.0


def float32(pcm: bytes) -> bytes:
    """Turn 16-bit mono PCM into float32 in [-1, 1), as bytes."""
    return (np.frombuffer(pcm, dtype="<i2").astype("<f4") / np.float32(FULL_SCALE)).tobytes()


def file_bytes(encoded: str | None) -> bytes:
    """Give the file in an option that holds one in base64, or as a data: URL; nothing for None."""
    if encoded is None:
        return b""
    return base64.b64decode(encoded.partition(",")[2] if encoded.startswith("data:") else encoded)
