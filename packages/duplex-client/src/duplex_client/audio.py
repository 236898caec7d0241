"""Sound files in, 16-bit mono PCM out, and the other way round.

Owns reading any file that libsndfile reads, at any rate and with any number of channels. Used by the command line, the
recorders and the demo; the clients themselves import none of it.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

Samples = npt.NDArray[np.int16]

SESSION_RATE_HZ = 24_000
"""What a session speaks unless told otherwise."""
SUFFIXES = (".wav", ".flac")
"""Of the sound files that the command line writes."""


class UnreadableAudio(ValueError):
    """The file is not there, or holds no sound that can be read."""


class UnwritableAudio(ValueError):
    """A sound file cannot be written there; the message says why."""


def load_pcm(path: Path, rate_hz: int = SESSION_RATE_HZ) -> bytes:
    """Read a sound file as 16-bit mono PCM at ``rate_hz``; channels are averaged.

    Raises:
        UnreadableAudio: with the file's name and what is wrong with it.
    """
    try:
        samples, file_rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError) as exc:
        raise UnreadableAudio(f"cannot read {path} as sound: {exc}") from exc
    if not len(samples):
        raise UnreadableAudio(f"{path} holds no sound")
    return to_pcm(resample(samples.mean(axis=1), file_rate_hz, rate_hz))


def resample(samples: npt.NDArray[np.float32], from_hz: int, to_hz: int) -> npt.NDArray[np.float32]:
    """A whole mono signal at another rate."""
    if from_hz == to_hz:
        return samples
    changed: npt.NDArray[np.float32] = soxr.resample(samples, from_hz, to_hz)
    return changed


def resample_pcm(pcm: bytes, from_hz: int, to_hz: int) -> bytes:
    """A whole signal of 16-bit mono PCM at another rate."""
    return pcm if from_hz == to_hz else to_pcm(resample(to_float(pcm), from_hz, to_hz))


def to_pcm(samples: npt.NDArray[np.float32]) -> bytes:
    """Full scale at 1.0 to 16-bit PCM, rounded and clipped; undoes :func:`to_float` exactly."""
    whole: Samples = np.clip(np.rint(samples * 32768.0), -32768.0, 32767.0).astype("<i2")
    return whole.tobytes()


def to_float(pcm: bytes) -> npt.NDArray[np.float32]:
    """16-bit PCM to full scale at 1.0."""
    return np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768.0


def write_wav(path: Path, samples: Samples, rate_hz: int) -> None:
    """Write 16-bit samples, ``(n,)`` or ``(n, channels)``, making the folder when it is missing.

    Raises:
        UnwritableAudio: with the file's name and what is wrong with it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, samples, rate_hz, subtype="PCM_16")
    except (soundfile.LibsndfileError, OSError, TypeError, ValueError) as exc:  # the last two: a name without a format
        raise UnwritableAudio(f"cannot write {path} as sound: {getattr(exc, 'strerror', None) or exc}") from exc


def check_writable(path: Path) -> None:
    """See whether a sound file can be written to ``path``, before there is anything to write. Touches nothing.

    Raises:
        UnwritableAudio: its name is no sound file's, or it cannot be made there; says what to do.
    """
    if path.is_dir():
        raise UnwritableAudio(f"{path} is a folder; name a file in it, for example {path / 'answer.wav'}")
    if path.suffix.lower() not in SUFFIXES:
        raise UnwritableAudio(
            f"{path} does not end in {' or '.join(SUFFIXES)}, the kinds of sound file that are written"
        )
    existing = next((each for each in (path, *path.parents) if each.exists()), path)
    if existing != path and not existing.is_dir():
        raise UnwritableAudio(f"{path} cannot be written: {existing} is no folder")
    if not os.access(existing, os.W_OK):
        raise UnwritableAudio(f"{path} cannot be written: {existing} may not be changed by this user")


def voiced_span(pcm: bytes, rate_hz: int, *, floor_db: float = -40.0, frame_ms: float = 5.0) -> tuple[float, float]:
    """Where speech begins and ends in 16-bit mono PCM, in ms from its start.

    A frame is voiced when its RMS lies within ``floor_db`` of the loudest frame's. Silence throughout gives ``(0, 0)``.
    """
    samples = to_float(pcm)
    size = max(1, round(rate_hz * frame_ms / 1000.0))
    count = -(-len(samples) // size)
    padded = np.zeros(count * size, dtype=np.float32)
    padded[: len(samples)] = samples
    rms = np.sqrt(np.mean(padded.reshape(count, size) ** 2, axis=1))
    loudest = float(rms.max(initial=0.0))
    if loudest <= 0.0:
        return 0.0, 0.0
    voiced = np.flatnonzero(rms >= loudest * 10.0 ** (floor_db / 20.0))
    end_ms = min(float(voiced[-1] + 1) * size, float(len(samples))) * 1000.0 / rate_hz
    return float(voiced[0]) * size * 1000.0 / rate_hz, end_ms
