"""The unit rule: how the stream of sound is cut into seconds, and which pictures belong to one.

Owns that cutting. Used by the session. Never: resamples or judges what is heard. Rates in Hz, sizes in bytes of 16-bit mono PCM.

Source: `goldens/minicpmo`: the model takes units of 1 s at 16 kHz; what the first one needs more is the front end's affair.
"""

from __future__ import annotations

from collections import deque

INPUT_HZ = 16000
UNIT_MS = 1000.0
UNIT_BYTES = 2 * INPUT_HZ


class UnitBuffer:
    """Cuts sound into units and keeps the pictures of the next one. Loses no sound, repeats none."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._pictures: deque[bytes] = deque()

    def take(self, pcm: bytes) -> list[bytes]:
        """Give the units that `pcm` completes."""
        self._kept += pcm
        units = []
        while len(self._kept) >= UNIT_BYTES:
            units.append(bytes(self._kept[:UNIT_BYTES]))
            del self._kept[:UNIT_BYTES]
        return units

    def pad(self) -> bytes | None:
        """Give what is left, filled up with silence; None when nothing is."""
        if not self._kept:
            return None
        unit = bytes(self._kept).ljust(UNIT_BYTES, b"\0")
        self._kept.clear()
        return unit

    def forget(self) -> None:
        """Forget all that is no unit yet."""
        self._kept.clear()
        self._pictures.clear()

    def see(self, picture: bytes, *, most: int) -> None:
        """Keep a picture for the next unit; of more than `most` the latest stay."""
        self._pictures.append(picture)
        while len(self._pictures) > most:
            self._pictures.popleft()

    def pictures(self) -> tuple[bytes, ...]:
        """Give the pictures of the unit that begins now."""
        taken = tuple(self._pictures)
        self._pictures.clear()
        return taken


def silence() -> bytes:
    """Give a unit of nothing."""
    return bytes(UNIT_BYTES)
