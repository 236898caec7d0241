"""Audio as the contracts know it: an encoding, a rate, and plain ``bytes``.

Owns the names of the audio formats that may cross the wire and the arithmetic between bytes and milliseconds. Used by
the session configuration, the machine and both ends of the wire. It never decodes or resamples: that is the server's.
"""

from __future__ import annotations

import enum

import msgspec

PCM16_BYTES_PER_SAMPLE = 2


class AudioEncoding(enum.Enum):
    """How one mono sample is written. Values are the GA protocol's ``type`` names where it has one."""

    PCM16 = "audio/pcm"
    """Signed 16-bit little endian."""
    PCMU = "audio/pcmu"
    """G.711 mu-law, 8 kHz."""
    PCMA = "audio/pcma"
    """G.711 A-law, 8 kHz."""
    FLOAT32 = "audio/float32"
    """IEEE-754 32-bit little endian, full scale at 1.0 (duplex extension)."""

    @property
    def bytes_per_sample(self) -> int:
        """Bytes that one mono sample takes on the wire."""
        if self is AudioEncoding.PCM16:
            return PCM16_BYTES_PER_SAMPLE
        return 4 if self is AudioEncoding.FLOAT32 else 1


PCM_RATES_HZ = (8000, 16000, 24000, 48000)
"""Sample rates accepted for ``audio/pcm`` and ``audio/float32``."""
TELEPHONE_RATE_HZ = 8000
"""The one rate of G.711."""


class AudioFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A mono audio format: encoding and rate in Hz."""

    encoding: AudioEncoding
    rate_hz: int

    def __post_init__(self) -> None:
        """Refuse a rate that the encoding does not have.

        Raises:
            ValueError: the rate is not one of those that the encoding allows.
        """
        telephone = self.encoding in (AudioEncoding.PCMU, AudioEncoding.PCMA)
        allowed = (TELEPHONE_RATE_HZ,) if telephone else PCM_RATES_HZ
        if self.rate_hz not in allowed:
            rates = ", ".join(str(rate) for rate in allowed)
            raise ValueError(f"{self.encoding.value} has no rate of {self.rate_hz} Hz; use one of: {rates}")

    def duration_ms(self, size: int) -> float:
        """Milliseconds that ``size`` bytes of this format last."""
        return size * 1000.0 / (self.rate_hz * self.encoding.bytes_per_sample)


DEFAULT_FORMAT = AudioFormat(encoding=AudioEncoding.PCM16, rate_hz=24000)
"""What a client that names no format speaks and hears, as in the GA protocol."""


def pcm16_ms(size: int, rate_hz: int) -> float:
    """Milliseconds that ``size`` bytes of 16-bit mono PCM last at ``rate_hz``."""
    return size * 1000.0 / (rate_hz * PCM16_BYTES_PER_SAMPLE)


def pcm16_bytes(ms: float, rate_hz: int) -> int:
    """Bytes of 16-bit mono PCM in ``ms``, rounded to a whole sample."""
    return round(ms * rate_hz / 1000.0) * PCM16_BYTES_PER_SAMPLE
