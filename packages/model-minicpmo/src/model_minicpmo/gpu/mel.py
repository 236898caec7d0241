"""Log-mel spectrograms as MiniCPM-o's encoder was trained on: of a whole clip, and of a stream, unit by unit.

Owns: what a frame is (25 ms Hann window every 10 ms, 80 mel bins), the floors that are put under it, which frames of a stream a
unit emits, and when old sound is dropped.
Called by: the audio front end.
Never: keeps anything between calls: a stream's past is a value that goes in and comes out; runs on anything but the CPU.

A stream's frames are those of the whole sound kept so far, as if it were transformed anew every second, but only new frames are
computed: of the old ones nothing but their loudest bin is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from model_minicpmo.gpu.voice.spectra import mel_filters

SAMPLE_RATE = 16_000
WINDOW = 400
"""Samples of one frame."""
HOP = 160
"""Samples from one frame to the next."""
SECOND = SAMPLE_RATE // HOP
"""Frames of one second, and of one unit."""
MARGIN = 2
"""Frames that a unit repeats on each side, for the convolutions: those on the left belong to the unit before."""
QUIETEST = 1e-10
"""Power that counts as silence; its logarithm, -10, is the only floor while less than `FLOOR_FOLLOWS` is kept."""
DYNAMIC_RANGE = 8.0
"""How far below the loudest bin the floor lies, in powers of ten."""
FLOOR_FOLLOWS = 5 * SAMPLE_RATE
"""From so many samples kept the floor follows the loudest bin."""
DROP_AT = 30 * SAMPLE_RATE
"""When so many samples are kept, `DROP` of them go."""
DROP = 10 * SAMPLE_RATE
CLIP = 30 * SAMPLE_RATE
"""A clip is transformed as if silence filled it up to so many samples."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MelStream:
    """The past of one stream of sound. Nothing in it is ever changed; a step gives another one.

    Attributes:
        samples: The sound that is kept, float32 [n].
        peaks: The loudest bin, log10 of its power, of each frame of the kept sound that no later sound can change, [frames].
        emitted: How many frames have been emitted since the stream began, the margins not counted.
        dropped: How many samples have been dropped.
    """

    samples: Tensor = field(default_factory=lambda: torch.zeros(0))
    peaks: Tensor = field(default_factory=lambda: torch.zeros(0))
    emitted: int = 0
    dropped: int = 0


class LogMel:
    """Computes log-mel frames; holds the filters and nothing else.

    Args:
        bins: How many mel bins a frame has.
    """

    def __init__(self, bins: int = 80) -> None:
        filters = mel_filters(rate=SAMPLE_RATE, window=WINDOW, bins=bins, top_hz=SAMPLE_RATE / 2)
        self._filters = torch.from_numpy(filters.T.copy()).float()
        self._window = torch.hann_window(WINDOW)

    def clip(self, samples: Tensor) -> Tensor:
        """Transform a clip of at most 30 s, on its own.

        Args:
            samples: float32 [n], 16 kHz mono, within ±1.

        Returns:
            float32 [1, bins, frames], a frame for each 160 samples begun.

        Raises:
            ValueError: The clip is empty or longer than 30 s.
        """
        length = samples.shape[0]
        if not 0 < length <= CLIP:
            raise ValueError(f"a clip of {length} samples cannot be transformed in one go: it must have 1 to {CLIP}")
        silence = min(2 * WINDOW, CLIP - length)  # all further frames of silence would be alike
        padded = torch.nn.functional.pad(samples, (0, silence))
        frames = self._frames(_mirrored(padded, 0))[: padded.shape[0] // HOP]
        floored = frames.clamp(min=float(frames.max()) - DYNAMIC_RANGE)
        return _scaled(floored)[..., : -(-length // HOP)]

    def step(self, past: MelStream, samples: Tensor) -> tuple[MelStream, Tensor]:
        """Take the next sound of a stream and give the frames of one unit.

        The first unit has 16480 samples and gives 102 frames; every later one has 16000 and gives 104, of which the first two and
        the last two belong to its neighbours.

        Args:
            past: The stream so far.
            samples: float32 [n], 16 kHz mono, within ±1.

        Returns:
            The stream after this unit, and its frames, float32 [1, bins, frames].

        Raises:
            ValueError: So few samples came that the unit's last frames could still change.
        """
        kept, peaks, dropped = torch.cat([past.samples, samples]), past.peaks, past.dropped
        if kept.shape[0] >= DROP_AT:
            kept, peaks, dropped = kept[DROP:].clone(), peaks[DROP // HOP :].clone(), dropped + DROP
            peaks[:MARGIN] = self._frames(_mirrored(kept[: 2 * WINDOW], 0))[:MARGIN].amax(dim=-1)
        begin = max(0, past.emitted - dropped // HOP - MARGIN)
        end = past.emitted - dropped // HOP + SECOND + MARGIN
        settled = (kept.shape[0] - WINDOW // 2) // HOP + 1
        if settled < end:
            needed = (end - 1) * HOP + WINDOW // 2
            raise ValueError(f"a unit that ends at frame {end} needs {needed} samples, not {kept.shape[0]}")
        frames = self._frames(_mirrored(kept, begin))[: kept.shape[0] // HOP - begin]
        loudest = frames.amax(dim=-1)
        peaks = torch.cat([peaks[:begin], loudest])
        unit = frames[: end - begin]
        if kept.shape[0] >= FLOOR_FOLLOWS:
            unit = unit.clamp(min=float(peaks.max()) - DYNAMIC_RANGE)
        after = MelStream(samples=kept, peaks=peaks[:settled], emitted=past.emitted + SECOND, dropped=dropped)
        return after, _scaled(unit)

    def _frames(self, mirrored: Tensor) -> Tensor:
        """Transform sound that has its margins into log10 powers, float32 [frames, bins]."""
        powers = torch.fft.rfft(mirrored.unfold(0, WINDOW, HOP) * self._window).abs().square()
        return (powers @ self._filters).clamp(min=QUIETEST).log10()


def _mirrored(samples: Tensor, begin: int) -> Tensor:
    """Give the sound of all frames from `begin` on, a frame's centre at its first sample.

    At both ends of the whole sound its own mirror image continues it by half a window.
    """
    half = WINDOW // 2
    if samples.shape[0] <= half:
        samples = torch.nn.functional.pad(samples, (0, half + 1 - samples.shape[0]))
    inside = begin * HOP - half
    left = samples[inside:] if inside >= 0 else torch.cat([samples[1 : 1 - inside].flip(0), samples])
    return torch.cat([left, samples[-half - 1 : -1].flip(0)])


def _scaled(frames: Tensor) -> Tensor:
    return ((frames + 4.0) / 4.0).T[None].contiguous()
