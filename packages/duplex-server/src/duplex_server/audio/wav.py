"""WAV files in chat requests and answers: to mono int16 samples, and back.

Owns what a RIFF header means. Used by the chat route, off the event loop; conversations have raw samples and never come here.
Must never guess: what is not plainly a WAV file of numbers is an error that says what it is.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from duplex_server.audio.formats import AudioFormatError

RATES_HZ: Final = (4000, 192_000)
"""The lowest and the highest sample rate that is taken."""

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_HINT: Final = "Send a WAV file with 8, 16, 24 or 32 bit PCM or 32 or 64 bit float samples."


def read_wav(data: bytes) -> tuple[npt.NDArray[np.int16], int]:
    """The samples of a WAV file, its channels mixed to one, and their rate in Hz.

    A header that says nothing of the length, as in a file that was written while it was recorded, means all that follows.

    Raises:
        AudioFormatError: it is no WAV file, or one of another kind.
    """
    if data[:4] not in {b"RIFF", b"RF64"} or data[8:12] != b"WAVE":
        raise AudioFormatError("The data does not begin like a WAV file.", _HINT)
    chunks = _chunks(data)
    header, body = chunks.get(b"fmt "), chunks.get(b"data")
    if header is None or len(header) < 16 or body is None:
        missing = "header" if header is None or len(header) < 16 else "samples"
        raise AudioFormatError(f"The WAV file has no {missing}.", _HINT)
    kind, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", header)
    if kind == _EXTENSIBLE and len(header) >= 26:
        (kind,) = struct.unpack_from("<H", header, 24)
    low, high = RATES_HZ
    if not channels or not low <= rate_hz <= high:
        raise AudioFormatError(f"The WAV file says that it has {channels} channels at {rate_hz} Hz.", _HINT)
    values = _values(body, kind, bits, channels)
    mixed = values.reshape(-1, channels).mean(axis=1) if channels > 1 else values
    return np.clip(np.rint(mixed * 32768.0), -32768, 32767).astype(np.int16), rate_hz


def write_wav(pcm: bytes, rate_hz: int) -> bytes:
    """A WAV file of 16-bit mono samples."""
    header = struct.pack("<HHIIHH", _PCM, 1, rate_hz, rate_hz * 2, 2, 16)
    return b"".join(
        (
            b"RIFF",
            struct.pack("<I", 36 + len(pcm)),
            b"WAVEfmt ",
            struct.pack("<I", len(header)),
            header,
            b"data",
            struct.pack("<I", len(pcm)),
            pcm,
        )
    )


def _chunks(data: bytes) -> dict[bytes, bytes]:
    """The chunks of a RIFF file by name, to the one with the samples; the first of a name counts."""
    found: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(data) and b"data" not in found:
        name = data[at : at + 4]
        (size,) = struct.unpack_from("<I", data, at + 4)
        at += 8
        if name == b"data" and (size == 0 or at + size > len(data)):
            size = len(data) - at
        found.setdefault(name, data[at : at + size])
        at += size + size % 2
    return found


def _values(body: bytes, kind: int, bits: int, channels: int) -> npt.NDArray[np.float64]:
    """The samples at full scale 1.0, channels interleaved; what is cut off at the end is left out."""
    width = bits // 8
    if (kind, bits) not in {(_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64)}:
        raise AudioFormatError(f"The WAV file has samples of kind {kind} with {bits} bits.", _HINT)
    frame = width * channels
    body = body[: len(body) // frame * frame]
    if kind == _FLOAT:
        values = np.frombuffer(body, f"<f{width}").astype(np.float64)
        if not np.isfinite(values).all():
            raise AudioFormatError("The WAV file has samples that are not finite numbers.", _HINT)
        return values
    if bits == 8:
        return (np.frombuffer(body, np.uint8).astype(np.float64) - 128.0) / 128.0
    if bits == 24:
        padded = np.zeros((len(body) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        return padded.view("<i4")[:, 0] / float(1 << 31)
    return np.frombuffer(body, f"<i{width}") / float(1 << (bits - 1))
