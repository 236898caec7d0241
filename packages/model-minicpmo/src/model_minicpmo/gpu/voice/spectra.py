"""The three spectra that are taken of a reference voice, each as its own model was trained with.

Owns: their arithmetic and constants. Called by: `reader.py`. Never: loads a model, or knows a sample rate but the one
a spectrum is made for.

- `speech_frames`: log-mel frames of Whisper with 128 bins, for the speech tokenizer.
- `speaker_frames`: filter banks as Kaldi computes them, for the speaker model.
- `prompt_frames`: the mel frames that the flow makes, of the reference itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPEECH_RATE = 16_000
"""Sample rate of the sound for `speech_frames` and `speaker_frames`, in Hz."""
PROMPT_RATE = 24_000
"""Sample rate of the sound for `prompt_frames`, in Hz."""
SPEECH_BINS = 128
SPEAKER_BINS = 80
PROMPT_BINS = 80

_SPEECH_WINDOW, _SPEECH_HOP = 400, 160
_PROMPT_WINDOW, _PROMPT_HOP, _PROMPT_TOP_HZ = 1920, 480, 8000.0
_SPEAKER_WINDOW, _SPEAKER_HOP, _SPEAKER_TRANSFORM = 400, 160, 512
_SPEAKER_LOW_HZ, _PREEMPHASIS, _POVEY = 20.0, 0.97, 0.85
_LEAST = float(np.finfo(np.float32).eps)


def speech_frames(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give the log-mel frames of [n] samples at 16 kHz within ±1.

    Returns:
        [128, n // 160]: 100 frames a second, base-10 logarithms no lower than 8 below the highest, shifted and
        scaled.

    Raises:
        ValueError: the sound is shorter than a window's half.
    """
    half = _SPEECH_WINDOW // 2
    if len(samples) <= half:
        message = f"{len(samples)} samples are too few for a spectrum; more than {half} are needed"
        raise ValueError(message)
    padded = np.pad(samples.astype(np.float64), half, mode="reflect")
    power = np.abs(_spectrum(padded, window=_hann(_SPEECH_WINDOW), hop=_SPEECH_HOP))[:-1] ** 2
    filters = mel_filters(rate=SPEECH_RATE, window=_SPEECH_WINDOW, bins=SPEECH_BINS, top_hz=SPEECH_RATE / 2)
    logs = np.log10(np.maximum(filters @ power.T, 1e-10))
    return ((np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0).astype(np.float32)


def speaker_frames(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give the Kaldi filter banks of [n] samples at 16 kHz within ±1, without their mean over time.

    Frames of 25 ms every 10 ms, only whole ones; no dither; the mean of a frame taken off, pre-emphasis, Povey's
    window.

    Returns:
        [frames, 80], natural logarithms.

    Raises:
        ValueError: the sound is shorter than a frame.
    """
    if len(samples) < _SPEAKER_WINDOW:
        message = f"{len(samples)} samples are too few for a filter bank; {_SPEAKER_WINDOW} are needed"
        raise ValueError(message)
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), _SPEAKER_WINDOW)[::_SPEAKER_HOP]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_SPEAKER_WINDOW) / (_SPEAKER_WINDOW - 1))) ** _POVEY
    spectrum = np.fft.rfft((frames - _PREEMPHASIS * before) * window, _SPEAKER_TRANSFORM)
    banks = np.log(np.maximum(np.abs(spectrum) ** 2 @ _kaldi_filters().T, _LEAST))
    return (banks - banks.mean(axis=0)).astype(np.float32)


def prompt_frames(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give the mel frames of [n] samples at 24 kHz within ±1, as the flow makes them.

    Returns:
        [n // 480, 80]: 50 frames a second, natural logarithms of magnitudes.

    Raises:
        ValueError: the sound is shorter than a frame.
    """
    edge = (_PROMPT_WINDOW - _PROMPT_HOP) // 2
    if len(samples) <= edge:
        message = f"{len(samples)} samples are too few for a mel frame; more than {edge} are needed"
        raise ValueError(message)
    padded = np.pad(samples.astype(np.float64), edge, mode="reflect")
    spectrum = _spectrum(padded, window=_hann(_PROMPT_WINDOW), hop=_PROMPT_HOP)
    magnitude = np.sqrt(np.abs(spectrum) ** 2 + 1e-9)
    filters = mel_filters(rate=PROMPT_RATE, window=_PROMPT_WINDOW, bins=PROMPT_BINS, top_hz=_PROMPT_TOP_HZ)
    return np.log(np.maximum(magnitude @ filters.T, 1e-5)).astype(np.float32)


@lru_cache(maxsize=4)
def mel_filters(*, rate: int, window: int, bins: int, top_hz: float) -> NDArray[np.float64]:
    """Give triangular filters on Slaney's mel scale from 0 Hz, each of area 1: [bins, window // 2 + 1].

    That scale is linear up to 1 kHz (15 mel) and logarithmic above (M. Slaney, Auditory Toolbox, 1998).
    """
    edges = _slaney_hz(np.linspace(0.0, _slaney_mel(top_hz), bins + 2))
    hertz = np.arange(window // 2 + 1) * rate / window
    rising = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    filters: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    return filters * (2.0 / (edges[2:] - edges[:-2]))[:, None]


_LINEAR_HZ, _KNEE_HZ, _KNEE_MEL = 200.0 / 3, 1000.0, 15.0
_OCTAVE = np.log(6.4) / 27.0


def _slaney_mel(hertz: float) -> float:
    if hertz < _KNEE_HZ:
        return hertz / _LINEAR_HZ
    return _KNEE_MEL + float(np.log(hertz / _KNEE_HZ)) / _OCTAVE


def _slaney_hz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _KNEE_HZ * np.exp(_OCTAVE * (mels - _KNEE_MEL))
    hertz: NDArray[np.float64] = np.where(mels < _KNEE_MEL, mels * _LINEAR_HZ, above)
    return hertz


@lru_cache(maxsize=1)
def _kaldi_filters() -> NDArray[np.float64]:
    """Triangles that are equal on Kaldi's mel scale, 1127 · ln(1 + f / 700), from 20 Hz to half the rate: [80, 257]."""
    low, high = (1127.0 * np.log1p(hertz / 700.0) for hertz in (_SPEAKER_LOW_HZ, SPEECH_RATE / 2))
    edges = low + (high - low) / (SPEAKER_BINS + 1) * np.arange(SPEAKER_BINS + 2)
    mels = 1127.0 * np.log1p(np.arange(_SPEAKER_TRANSFORM // 2 + 1) * SPEECH_RATE / _SPEAKER_TRANSFORM / 700.0)
    rising = (mels - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - mels) / (edges[2:] - edges[1:-1])[:, None]
    filters: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    return filters


def _hann(size: int) -> NDArray[np.float64]:
    """A periodic Hann window."""
    window: NDArray[np.float64] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    return window


def _spectrum(samples: NDArray[np.float64], *, window: NDArray[np.float64], hop: int) -> NDArray[np.complex128]:
    """A short-time Fourier transform without padding: [frames, window // 2 + 1]."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, len(window))[::hop]
    return np.fft.rfft(frames * window)
