"""Noises of the recorded set, all made by arithmetic: nobody recorded them; a real cough or laugh is not among them.

Called by ``make_set.py``. Each function returns float64 samples at 16 kHz with a peak of 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

RATE_HZ: Final = 16_000

Wave = npt.NDArray[np.float64]
Random = np.random.Generator


def seconds(duration_s: float) -> Wave:
    """A time axis."""
    return np.arange(round(duration_s * RATE_HZ)) / RATE_HZ


def coloured(rng: Random, size: int, slope: float) -> Wave:
    """Noise whose amplitude falls with frequency to the power of ``slope``: 0 is white, 0.5 pink, 1 brown."""
    spectrum = np.fft.rfft(rng.standard_normal(size))
    hertz = np.fft.rfftfreq(size, 1 / RATE_HZ)
    shaped = np.fft.irfft(spectrum / np.maximum(hertz, 40.0) ** slope, size)
    return np.asarray(shaped / np.abs(shaped).max())


def band(rng: Random, size: int, low_hz: float, high_hz: float) -> Wave:
    """White noise between two frequencies."""
    spectrum = np.fft.rfft(rng.standard_normal(size))
    hertz = np.fft.rfftfreq(size, 1 / RATE_HZ)
    spectrum[(hertz < low_hz) | (hertz > high_hz)] = 0.0
    shaped = np.fft.irfft(spectrum, size)
    return np.asarray(shaped / np.abs(shaped).max())


def decaying(wave: Wave, ms: float) -> Wave:
    """The wave, dying away with this time constant."""
    return np.asarray(wave * np.exp(-np.arange(wave.size) / RATE_HZ * 1000 / ms))


def placed(parts: list[tuple[float, Wave]], duration_s: float) -> Wave:
    """Parts at their places in seconds, added up."""
    whole = np.zeros(round(duration_s * RATE_HZ))
    for at_s, part in parts:
        first = round(at_s * RATE_HZ)
        fits = part[: max(0, whole.size - first)]
        whole[first : first + fits.size] += fits
    return whole


def click(rng: Random) -> Wave:
    """One click, of a mouse or a switch."""
    return decaying(coloured(rng, round(0.06 * RATE_HZ), 0.0), rng.uniform(1.0, 4.0))


def knock(rng: Random) -> Wave:
    """Two to four knocks on wood."""

    def once() -> Wave:
        t = seconds(0.12)
        hollow = np.sin(2 * np.pi * rng.uniform(140, 260) * t) + 0.6 * np.sin(2 * np.pi * rng.uniform(400, 700) * t)
        return decaying(hollow + 0.5 * coloured(rng, t.size, 0.5), rng.uniform(12, 25))

    times = np.cumsum(rng.uniform(0.14, 0.24, int(rng.integers(2, 5))))
    return placed([(float(at), once()) for at in times], float(times[-1]) + 0.2)


def keyboard(rng: Random) -> Wave:
    """A burst of typing."""
    times = np.cumsum(rng.uniform(0.06, 0.19, int(rng.integers(5, 11))))
    keys = []
    for at in times:
        key = decaying(band(rng, round(0.05 * RATE_HZ), 900, 6500), rng.uniform(3, 9)) * rng.uniform(0.5, 1.0)
        keys += [(float(at), key), (float(at) + rng.uniform(0.04, 0.07), key * 0.4)]
    return placed(keys, float(times[-1]) + 0.2)


def breath(rng: Random) -> Wave:
    """A breath into the microphone: swelling, toneless."""
    size = round(rng.uniform(0.4, 1.0) * RATE_HZ)
    swell = np.sin(np.linspace(0, np.pi, size)) ** rng.uniform(0.7, 1.6)
    return (band(rng, size, 300, 3000) + 0.4 * band(rng, size, 2500, 7000)) * swell


def burst(rng: Random) -> Wave:
    """A short burst of noise: something falls, paper is torn."""
    size = round(rng.uniform(0.08, 0.45) * RATE_HZ)
    return decaying(coloured(rng, size, rng.uniform(0.0, 0.8)), rng.uniform(30, 150))


def melody(rng: Random) -> Wave:
    """A ringing phone or a bell: two to five tones with overtones."""
    notes = []
    for number in range(int(rng.integers(2, 6))):
        t = seconds(0.35)
        hertz = 440 * 2 ** (rng.integers(-5, 15) / 12)
        tone = sum(np.sin(2 * np.pi * hertz * k * t) / k**1.5 for k in (1, 2, 3))
        notes.append((number * 0.19, decaying(np.asarray(tone), rng.uniform(60, 180))))
    return placed(notes, len(notes) * 0.19 + 0.3)


def hum(rng: Random) -> Wave:
    """A motor that runs for a while: mains hum with overtones."""
    t = seconds(rng.uniform(0.6, 1.5))
    base = rng.choice([50.0, 60.0, 100.0, 120.0])
    tones = sum(np.sin(2 * np.pi * base * k * t + rng.uniform(0, 6)) / k for k in range(1, 8))
    edge = np.minimum(1.0, np.minimum(t, t[::-1]) / 0.05)
    return np.asarray((tones + 0.15 * coloured(rng, t.size, 0.5)) * edge)


def squeak(rng: Random) -> Wave:
    """A chair or a door: a gliding tone, roughened."""
    t = seconds(rng.uniform(0.2, 0.6))
    glide = np.cumsum(rng.uniform(500, 900) + rng.uniform(-400, 900) * t / t[-1]) / RATE_HZ
    tone = np.sin(2 * np.pi * glide) + 0.5 * np.sin(4 * np.pi * glide) + 0.3 * np.sin(6 * np.pi * glide)
    rough = 1 + 0.5 * np.sin(2 * np.pi * rng.uniform(25, 60) * t)
    return np.asarray(tone * rough * np.sin(np.linspace(0, np.pi, t.size)))


def rustle(rng: Random) -> Wave:
    """Cloth or paper on the microphone: crackling noise."""
    size = round(rng.uniform(0.4, 1.2) * RATE_HZ)
    grains = np.convolve(rng.random(size) ** 400, np.hanning(round(0.02 * RATE_HZ)), mode="same")
    return np.asarray(band(rng, size, 150, 5000) * (0.15 + grains / grains.max()))


def cough(rng: Random) -> Wave:
    """What arithmetic makes of a cough: two or three bursts of breath with the resonances of a throat, some with voice."""
    bursts = []
    for at in np.cumsum(rng.uniform(0.22, 0.38, int(rng.integers(1, 4)))):
        t = seconds(rng.uniform(0.18, 0.32))
        pulses = np.sign(np.sin(2 * np.pi * np.cumsum(rng.uniform(160, 320) * (1 - 0.4 * t / t[-1])) / RATE_HZ))
        air = band(rng, t.size, 350, 1100) + 0.8 * band(rng, t.size, 1100, 2600) + 0.5 * band(rng, t.size, 2600, 5000)
        bursts.append((float(at), decaying(air + rng.uniform(0.0, 0.5) * pulses, rng.uniform(50, 110))))
    return placed(bursts, bursts[-1][0] + 0.35)


NOISES: Final[dict[str, Callable[[Random], Wave]]] = {
    "click": click,
    "knock": knock,
    "keyboard": keyboard,
    "breath": breath,
    "burst": burst,
    "melody": melody,
    "hum": hum,
    "squeak": squeak,
    "rustle": rustle,
    "cough": cough,
}
"""Every kind by its name in the manifest."""


def hummed(rng: Random) -> Wave:
    """A hummed "mm-hmm", made of a voice-like source behind closed lips; what the voices cannot say."""
    t = seconds(rng.uniform(0.42, 0.75))
    where = t / t[-1]
    pitch = rng.uniform(95, 230) * (1 + rng.uniform(0.08, 0.25) * (where - 0.4))
    phase = np.cumsum(pitch) / RATE_HZ
    lips = sum(np.sin(2 * np.pi * k * phase) / (k**1.3 * (1 + (k * 140 / 900) ** 2)) for k in range(1, 25))
    dip = 1 - 0.85 * np.exp(-(((where - 0.45) / 0.06) ** 2))
    puff = 0.05 * band(rng, t.size, 500, 4000) * np.exp(-(((where - 0.47) / 0.06) ** 2))
    return np.asarray(lips * dip * np.sin(np.pi * where) ** 0.6 + puff)
