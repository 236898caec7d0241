"""Sample encodings of the wire: bytes to mono int16 PCM at the sender's rate, and back.

Owns what a byte of client audio means and which bytes are refused. Called for every audio append and every
audio delta. Must never resample, mix channels, parse files or guess: what is not plainly one of the encodings
is an error that says what to do instead.
"""

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from duplex_core.audio import AudioEncoding
from duplex_server.audio import g711

Buffer = bytes | bytearray | memoryview

_INT16_SCALE: Final = 32768.0
_LITTLE_ENDIAN: Final = np.dtype("<i2")


class AudioFormatError(ValueError):
    """Audio that cannot be taken as what it is labelled.

    Attributes:
        reason: What is wrong, with the figures that were seen.
        hint: What the sender should do.
    """

    def __init__(self, reason: str, hint: str) -> None:
        """Keep both halves and join them for the message."""
        super().__init__(f"{reason} {hint}")
        self.reason = reason
        self.hint = hint


def check_channels(channels: int) -> None:
    """Refuse audio that was declared with anything but one channel.

    Raises:
        AudioFormatError: More or fewer than one channel.
    """
    if channels != 1:
        raise AudioFormatError(
            f"Audio was declared with {channels} channels; only mono is accepted.",
            "Mix it down to one channel (stereo: the mean of each left/right pair) before sending it.",
        )


def samples_of(pcm: Buffer) -> npt.NDArray[np.int16]:
    """int16[n] of 2n bytes of 16-bit PCM, little-endian; a view of them on machines that are so too."""
    values = np.frombuffer(pcm, _LITTLE_ENDIAN)
    return values if _LITTLE_ENDIAN.isnative else values.astype(np.int16)


def decode(encoding: AudioEncoding, data: Buffer) -> npt.NDArray[np.int16]:
    """Turn the bytes of one append into samples.

    Args:
        encoding: How the samples are written.
        data: Raw samples, mono, without any header. May be empty.

    Returns:
        int16[n] at the sender's rate. For PCM16 it is a view of ``data``, read-only where ``data`` is
        ``bytes``.

    Raises:
        AudioFormatError: A cut sample, a NaN or infinity, or the beginning of an audio file.
    """
    _refuse_container(data)
    match encoding:
        case AudioEncoding.PCM16:
            return _decode_pcm16(data)
        case AudioEncoding.FLOAT32:
            return _decode_float32(data)
        case AudioEncoding.PCMU:
            return g711.MULAW_TO_PCM[np.frombuffer(data, np.uint8)]
        case AudioEncoding.PCMA:
            return g711.ALAW_TO_PCM[np.frombuffer(data, np.uint8)]


def encode(encoding: AudioEncoding, samples: npt.NDArray[np.int16]) -> bytes:
    """Turn samples into the bytes of one audio delta.

    Args:
        encoding: How the samples shall be written.
        samples: int16[n], mono.

    Returns:
        The raw samples: 2n bytes for PCM16, 4n for FLOAT32, n for G.711. FLOAT32 lies in [-1, 1) and decodes
        to the same samples exactly.

    Raises:
        TypeError: ``samples`` is not a one-dimensional int16 array.
    """
    if samples.dtype != np.int16 or samples.ndim != 1:
        raise TypeError(f"encode needs int16[n] samples, got {samples.dtype}{list(samples.shape)}")
    match encoding:
        case AudioEncoding.PCM16:
            return samples.astype("<i2", copy=False).tobytes()
        case AudioEncoding.FLOAT32:
            return (samples.astype("<f4") / np.float32(_INT16_SCALE)).astype("<f4", copy=False).tobytes()
        case AudioEncoding.PCMU:
            return g711.PCM_TO_MULAW[np.ascontiguousarray(samples).view(np.uint16)].tobytes()
        case AudioEncoding.PCMA:
            return g711.PCM_TO_ALAW[np.ascontiguousarray(samples).view(np.uint16)].tobytes()


def _decode_pcm16(data: Buffer) -> npt.NDArray[np.int16]:
    size = len(data)
    if size % 2:
        raise AudioFormatError(
            f"audio/pcm needs an even number of bytes (int16 samples), got {size}.",
            "Send whole samples: keep the odd byte and put it in front of the next chunk.",
        )
    return samples_of(data)


def _decode_float32(data: Buffer) -> npt.NDArray[np.int16]:
    size = len(data)
    if size % 4:
        raise AudioFormatError(
            f"float32 audio needs a multiple of 4 bytes, got {size}.",
            "Send whole samples: keep the remaining bytes and put them in front of the next chunk.",
        )
    values = np.frombuffer(data, "<f4")
    finite = np.isfinite(values)
    if not finite.all():
        at = int(np.argmin(finite))
        raise AudioFormatError(
            f"float32 audio holds {values[at]} at sample {at}; samples must be finite.",
            "Check that the bytes are little-endian float32 and not int16; replace NaN and infinity by 0.",
        )
    scaled = np.rint(values.astype(np.float64) * _INT16_SCALE)
    return np.clip(scaled, -32768, 32767).astype(np.int16)


_MAGIC: Final = {
    b"RIFF": "a WAV file",
    b"OggS": "an Ogg file",
    b"fLaC": "a FLAC file",
    b"FORM": "an AIFF file",
    b"caff": "a CAF file",
    b"\x1a\x45\xdf\xa3": "a WebM or Matroska file",
}
_SUBTYPE: Final = {b"RIFF": (b"WAVE",), b"FORM": (b"AIFF", b"AIFC")}


def _refuse_container(data: Buffer) -> None:
    """Raise if the bytes begin like an audio file; more than a magic number is checked, so sound passes."""
    start = bytes(data[:8])
    head = start[:4]
    kind = _MAGIC.get(head)
    if kind is not None:
        if not _confirmed(head, bytes(data[4:12])):
            return
        detail = _wav_details(bytes(data[:512])) if head == b"RIFF" else ""
    elif start.startswith(b"ID3") and _is_id3(bytes(data[:10])):
        kind, detail = "an MP3 file", ""
    elif start[4:] == b"ftyp":
        kind, detail = "an MP4 file", ""
    else:
        return
    raise AudioFormatError(
        f"The audio begins like {kind}{detail}, but raw samples without a header are expected.",
        "Decode the file first and send its samples as mono PCM at the declared rate.",
    )


def _confirmed(head: bytes, following: bytes) -> bool:
    """Whether the bytes after a four-letter magic are what that file format has there."""
    if head in _SUBTYPE:
        return following[4:8] in _SUBTYPE[head]
    if head == b"OggS":
        return following[:1] == b"\x00" and following[1:2] in (b"\x00", b"\x02")
    if head == b"fLaC":
        return following[:1] in (b"\x00", b"\x80")
    if head == b"caff":
        return following[:2] == b"\x00\x01"
    return True


def _is_id3(head: bytes) -> bool:
    return len(head) == 10 and head[3] in (2, 3, 4) and head[4] == 0 and all(byte < 0x80 for byte in head[6:])


def _wav_details(head: bytes) -> str:
    """Describe the WAV file whose first bytes are given, as far as its ``fmt`` chunk can be found."""
    at = head.find(b"fmt ")
    if at < 0 or len(head) < at + 24:
        return ""
    channels, rate = struct.unpack_from("<HI", head, at + 10)
    (bits,) = struct.unpack_from("<H", head, at + 22)
    return f" ({channels} channel{'s' if channels != 1 else ''}, {rate} Hz, {bits} bit)"
