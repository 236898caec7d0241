"""The recorded set of overlaps: what a clip is, and how the set is read.

Owns the form of ``recorded/manifest.json`` beside this file. Used by the generator, the measurement and its tests. Never
changes a recording: level and speaker are in the file; only a room's noise is laid under it, in
:mod:`benchmarks.overlap.scene`.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import soundfile

FOLDER: Final = Path(__file__).parent / "recorded"
MANIFEST: Final = FOLDER / "manifest.json"
RATE_HZ: Final = 16_000

Samples = npt.NDArray[np.int16]


class Kind(enum.Enum):
    """What a clip is, and so what should become of the answer under it."""

    INTERRUPTION = "interruption"
    """The user wants the floor: the answer yields."""
    PAUSE = "pause"
    """An interruption with a pause after its first words: the answer yields."""
    BACKCHANNEL = "backchannel"
    """The user listens aloud: the answer goes on."""
    NOISE = "noise"
    """Nobody speaks: the answer goes on."""

    @property
    def yields(self) -> bool:
        """Whether the answer should stop."""
        return self in {Kind.INTERRUPTION, Kind.PAUSE}


class Part(enum.Enum):
    """Which part of the set a clip is in."""

    TUNING = "tuning"
    """One half: may be looked at when the rule is changed."""
    HELD_OUT = "held-out"
    """The other half: is only ever reported."""
    SHORT = "short"
    """Beside both: interruptions of a word or two, the hardest, and acknowledgements. For tuning, like the first."""


class Bed(msgspec.Struct, frozen=True, kw_only=True):
    """The room's noise under a whole session: ``white``, ``pink`` or ``brown``, at a root mean square in dB of full scale."""

    colour: str
    dbfs: float


class Clip(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One recording: 16-bit mono FLAC at 16 kHz.

    ``text`` is what is said, or which noise it is; ``source`` the voice and how it was changed, or the human recording;
    ``onset_ms`` and ``end_ms`` say where in the file the sound begins and ends; ``peak_dbfs`` is how loud it is; ``snr_db``
    how far the sound, at its root mean square, lies above the room.
    """

    file: str
    kind: Kind
    part: Part
    text: str
    source: str
    licence: str
    onset_ms: float
    end_ms: float
    peak_dbfs: float
    bed: Bed
    snr_db: float | None = None

    @property
    def human(self) -> bool:
        """Whether a person said it."""
        return self.source.startswith("human")

    def samples(self) -> Samples:
        """Read the recording.

        Raises:
            ValueError: it is not what the manifest promises.
        """
        samples, rate_hz = soundfile.read(FOLDER / self.file, dtype="int16")
        if rate_hz != RATE_HZ or samples.ndim != 1:
            raise ValueError(f"{self.file} is {rate_hz} Hz with shape {samples.shape}; expected {RATE_HZ} Hz, mono")
        return np.asarray(samples)


def load(part: Part | None = None) -> list[Clip]:
    """Read the manifest: all clips, or those of one part."""
    clips = msgspec.json.decode(MANIFEST.read_bytes(), type=list[Clip])
    return [clip for clip in clips if part is None or clip.part is part]
