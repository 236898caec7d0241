"""Sound as the stages take it: samples as floats, and files out of options. Light: the standard library alone.

Used by the session and the chat. Never: resamples or decodes a file.
"""

from __future__ import annotations

import base64
import sys
from array import array

FULL_SCALE = 32768.0


def float32(pcm: bytes) -> bytes:
    """Turn 16-bit mono PCM into float32 in [-1, 1), as bytes."""
    samples = array("h", pcm)
    if sys.byteorder == "big":
        samples.byteswap()
    floats = array("f", (sample / FULL_SCALE for sample in samples))
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tobytes()


def file_bytes(encoded: str | None) -> bytes:
    """Give the file in an option that holds one in base64, or as a data: URL; nothing for None."""
    if encoded is None:
        return b""
    return base64.b64decode(encoded.partition(",")[2] if encoded.startswith("data:") else encoded)
