"""Recordings of somebody's voice: files become samples, and the checkpoint's own default voice is found.

Owns: decoding (soundfile), resampling (soxr, as librosa does it in the published examples), what a reference voice may be, and
where a checkpoint keeps its own.
Called by: the stages that hear a reference voice and speak with it. Never: knows a session, or what a recording is used for.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import soundfile
import soxr

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SHORTEST_S = 0.5
"""The shortest recording that tells a voice, in seconds."""
LONGEST_S = 30.0
"""The longest recording that the front end and the speech tokenizer take at once, in seconds."""
LOWEST_HZ = 4_000
HIGHEST_HZ = 192_000
MOST_CHANNELS = 2
_ENDINGS = (".wav", ".flac")


class RecordingError(ValueError):
    """A recording cannot serve as a reference voice; the message tells why, for whoever sent it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording:
    """A decoded file.

    Attributes:
        samples: float32 [n], mono: the mean of the file's channels.
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

    Raises:
        RecordingError: The bytes are no such file, or hold values that are no numbers.
    """
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            _check(file)
            rate = int(file.samplerate)
            channels: NDArray[np.float32] = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise RecordingError(
            f"the reference voice of {len(content)} bytes cannot be read as a wav or flac file: {error.error_string}"
        ) from error
    if not np.isfinite(channels).all():
        raise RecordingError("the reference voice holds values that are no numbers")
    return Recording(samples=channels.mean(axis=1), rate=rate)


def _check(file: soundfile.SoundFile) -> None:
    """Refuse what is no voice before all of it is decoded."""
    if not LOWEST_HZ <= file.samplerate <= HIGHEST_HZ or file.channels > MOST_CHANNELS:
        raise RecordingError(
            f"the reference voice has {file.channels} channels at {file.samplerate} Hz; it has to be mono or stereo at "
            f"{LOWEST_HZ} to {HIGHEST_HZ} Hz"
        )
    seconds = file.frames / file.samplerate
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise RecordingError(
            f"the reference voice lasts {seconds:.2f} s; it has to last between {SHORTEST_S:g} and {LONGEST_S:g} s"
        )


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
