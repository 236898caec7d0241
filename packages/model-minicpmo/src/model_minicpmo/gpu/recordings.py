"""Recordings of somebody's voice: files become samples, and the checkpoint's own default voice is found.

Owns: decoding, resampling (soxr, as librosa does it in the published examples), and where a checkpoint keeps its own. What file
may be a voice is `voice_file`'s to say.
Called by: the stages that hear a reference voice and speak with it. Never: knows a session, or what a recording is used for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import soxr

from model_minicpmo.errors import RecordingError
from model_minicpmo.voice_file import check_length, open_recording

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_ENDINGS = (".wav", ".flac")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording:
    """A decoded file.

    Attributes:
        samples: float32 [n], mono, within ±1: the mean of the file's channels.
        rate: Samples a second, in Hz.
    """

    samples: NDArray[np.float32]
    rate: int

    def at(self, rate: int) -> NDArray[np.float32]:
        """Give the samples at another rate, in Hz."""
        if rate == self.rate:
            return self.samples
        resampled: NDArray[np.float32] = soxr.resample(self.samples, self.rate, rate)
        return resampled


def decode_recording(content: bytes) -> Recording:
    """Decode a reference voice: a wav or flac file of 0.5 to 30 s, mono or stereo, at 4 to 192 kHz.

    Files of floats may go beyond ±1; what does is clipped there, as players do. So no file is too loud for what computes with it.

    Raises:
        RecordingError: The bytes are no such file, hold less sound than they say, or values that are no numbers.
    """
    with open_recording(content) as file:
        rate = int(file.samplerate)
        channels: NDArray[np.float32] = file.read(dtype="float32", always_2d=True)
    check_length(len(channels), rate)
    if not np.isfinite(channels).all():
        raise RecordingError("the reference voice holds values that are no numbers")
    return Recording(samples=channels.clip(-1, 1).mean(axis=1), rate=rate)


def find_default_voice(folder: Path) -> Path | None:
    """Give the recording that a checkpoint brings for sessions without a voice of their own.

    The published checkpoint has its reference voices in `assets`, as `HT_ref_audio.wav` and `system_ref_audio.wav`: it is the
    first, by name, of the wav and flac files there that have `ref` in their names.

    Args:
        folder: The checkpoint's folder.

    Returns:
        Its path; None when there is none.
    """
    assets = folder / "assets"
    if not assets.is_dir():
        return None
    found = (path for path in assets.iterdir() if path.suffix.lower() in _ENDINGS and "ref" in path.stem.lower())
    return min(found, default=None, key=lambda path: path.name)
