"""Whisper's log-mel spectrogram in numpy: what a network of that family hears.

Owns the window, the filters and the scaling. Called by :mod:`duplex_server.detectors.smart_turn` on a worker thread. Must never
keep anything of a session.

The recipe is that of OpenAI's Whisper as Hugging Face's ``WhisperFeatureExtractor`` writes it with ``do_normalize``: the sound
brought to mean 0 and variance 1; power spectra of 400 samples under a Hann window every 160; 80 triangular filters on Slaney's
mel scale, each of area 1; decimal logarithm, at most 8 below the loudest; scaled to about [-1, 1].
"""

from typing import Final

import numpy as np
import numpy.typing as npt

RATE_HZ: Final = 16000
HOP: Final = 160
"""Samples from one spectrum to the next, 10 ms."""
BANDS: Final = 80

_WINDOW: Final = 400
_TOP_HZ: Final = RATE_HZ / 2
_LINEAR_HZ: Final = 1000.0  # Slaney's scale is linear below it, at 3 mel in 200 Hz, and logarithmic above
_LINEAR_MEL: Final = 15.0
_LOG_STEP: Final = np.log(6.4) / 27.0
_FLOOR: Final = 1e-10
_RANGE: Final = 8.0
_EPSILON: Final = 1e-7

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def log_mel(samples: Floats) -> Floats:
    """The spectrogram of a sound.

    Args:
        samples: float32[n] at 16 kHz, at least 201; the level does not matter.

    Returns:
        float32[80, n // 160], bands from low to high, 10 ms a column.
    """
    sound = (samples - samples.mean()) / np.sqrt(samples.var() + _EPSILON)
    around = np.pad(sound.astype(np.float64), _WINDOW // 2, mode="reflect")
    pieces = np.lib.stride_tricks.sliding_window_view(around, _WINDOW)[::HOP][: samples.size // HOP]
    spectra = np.fft.rfft(pieces * _HANN)
    power = spectra.real**2 + spectra.imag**2
    levels = np.log10(np.maximum(power @ _FILTERS, _FLOOR))
    scaled = (np.maximum(levels, levels.max() - _RANGE) + 4.0) / 4.0
    return np.ascontiguousarray(scaled.T, dtype=np.float32)


def _to_hz(mel: Doubles) -> Doubles:
    above = _LINEAR_HZ * np.exp(_LOG_STEP * (mel - _LINEAR_MEL))
    return np.where(mel < _LINEAR_MEL, mel * (_LINEAR_HZ / _LINEAR_MEL), above)


def _filters() -> Doubles:
    """float64[201, 80]: how much of each frequency belongs to each band."""
    top_mel = _LINEAR_MEL + np.log(_TOP_HZ / _LINEAR_HZ) / _LOG_STEP
    corners = _to_hz(np.linspace(0.0, top_mel, BANDS + 2))
    lines = np.linspace(0.0, _TOP_HZ, _WINDOW // 2 + 1)
    triangles = [
        np.interp(lines, corners[band : band + 3], (0.0, 2.0 / (corners[band + 2] - corners[band]), 0.0))
        for band in range(BANDS)
    ]
    return np.stack(triangles, axis=1)


_HANN: Final = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
_FILTERS: Final = _filters()
