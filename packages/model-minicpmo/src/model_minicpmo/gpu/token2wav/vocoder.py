"""The vocoder: mel frames to 24 kHz samples, by a pitch, a source of harmonics, and an inverse Fourier transform.

Owns: its arithmetic and the constants that the published file leaves unsaid. Called by: `synthesis.py`. Never: draws
noise (it is an argument), or keeps anything between calls.

HiFTNet (arXiv:2309.09493). The sizes are read off the shapes in `hift.pt`; rates, dilations and the transform are
fixed in the published code and cannot be read off anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_minicpmo.errors import CheckpointError
from model_minicpmo.gpu.checkpoint import read_torch_file
from model_minicpmo.gpu.weights import fill, fold_weight_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from model_minicpmo.gpu.checkpoint import Token2WavFiles

SAMPLE_RATE = 24_000
HARMONICS = 9
"""The fundamental and eight overtones."""
_RATES = (8, 5, 3)
_RATE_KERNELS = (16, 11, 7)
_KERNELS = (3, 7, 11)
_SOURCE_KERNELS = (7, 7, 11)
_DILATIONS = (1, 3, 5)
_TRANSFORM = 16
_HOP = 4
_BINS = _TRANSFORM // 2 + 1
SAMPLES_PER_FRAME = math.prod(_RATES) * _HOP
"""480: a mel frame is 20 ms."""
_VOICED_HZ = 10.0
_SINE_LEVEL = 0.1
_VOICED_NOISE = 0.003
_SLOPE = 0.1
_LIMIT = 0.99
_LOUDEST = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VocoderSizes:
    """What the shapes in `hift.pt` tell: bins of a frame, channels before the first rise, channels of the pitch predictor."""

    mel_bins: int
    channels: int
    pitch_channels: int


class _Snake(nn.Module):
    """`x + sin²(a·x) / a` with an `a` per channel (arXiv:2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))

    def forward(self, rows: Tensor) -> Tensor:
        alpha = self.alpha[:, None]
        return rows + torch.sin(rows * alpha).square() / (alpha + 1e-9)


class _Residual(nn.Module):
    """Three pairs of convolutions, the first of each spread by its dilation, each pair added to what it came from."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList([_same(channels, kernel, dilation) for dilation in _DILATIONS])
        self.convs2 = nn.ModuleList([_same(channels, kernel, 1) for _ in _DILATIONS])
        self.activations1 = nn.ModuleList([_Snake(channels) for _ in _DILATIONS])
        self.activations2 = nn.ModuleList([_Snake(channels) for _ in _DILATIONS])

    def forward(self, rows: Tensor) -> Tensor:
        for before, first, between, second in zip(
            self.activations1, self.convs1, self.activations2, self.convs2, strict=True
        ):
            rows = rows + second(between(first(before(rows))))
        return rows


def _same(channels: int, kernel: int, dilation: int) -> nn.Conv1d:
    return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=(kernel - 1) * dilation // 2)


class _Pitch(nn.Module):
    """Mel frames to a pitch each, in Hz: five convolutions and a linear layer."""

    def __init__(self, sizes: VocoderSizes) -> None:
        super().__init__()
        widths = (sizes.mel_bins, *[sizes.pitch_channels] * 5)
        # The convolutions carry even numbers in the checkpoint: an ELU follows each.
        self.condnet = nn.ModuleDict(
            {str(2 * index): nn.Conv1d(one, other, 3, padding=1) for index, (one, other) in enumerate(pairwise(widths))}
        )
        self.classifier = nn.Linear(sizes.pitch_channels, 1)

    def forward(self, mel: Tensor) -> Tensor:
        for conv in self.condnet.values():
            mel = functional.elu(conv(mel))
        return self.classifier(mel.transpose(1, 2))[..., 0].abs()


class _Source(nn.Module):
    """A pitch per frame to the excitation per sample: harmonics where there is a voice, noise, summed by learnt weights."""

    def __init__(self) -> None:
        super().__init__()
        self.l_linear = nn.Linear(HARMONICS, 1)

    def forward(self, pitch: Tensor, noise: Tensor) -> Tensor:
        """Take Hz [batch, frames] and normal noise [batch, samples, 9]; give [batch, 1, samples].

        The published code draws random initial phases as well. They change nothing there: they are added to a sample
        that the resampling of the phase then passes over.
        """
        numbers = torch.arange(1, HARMONICS + 1, device=pitch.device, dtype=pitch.dtype)
        turns = (pitch[..., None] * numbers / SAMPLE_RATE) % 1
        angles = turns.cumsum(1).transpose(1, 2) * (2 * math.pi)
        angles = functional.interpolate(
            angles * SAMPLES_PER_FRAME, scale_factor=float(SAMPLES_PER_FRAME), mode="linear"
        )
        voiced = (pitch > _VOICED_HZ).to(pitch.dtype).repeat_interleave(SAMPLES_PER_FRAME, dim=1)[..., None]
        level = voiced * _VOICED_NOISE + (1 - voiced) * _SINE_LEVEL / 3
        waves = angles.sin().transpose(1, 2) * _SINE_LEVEL * voiced + level * noise
        return self.l_linear(waves).tanh().transpose(1, 2)


class Vocoder(nn.Module):
    """The vocoder, under the names of `hift.pt`."""

    def __init__(self, sizes: VocoderSizes) -> None:
        super().__init__()
        self.sizes = sizes
        widths = [sizes.channels // 2**stage for stage in range(len(_RATES) + 1)]
        self.f0_predictor = _Pitch(sizes)
        self.m_source = _Source()
        self.conv_pre = nn.Conv1d(sizes.mel_bins, widths[0], 7, padding=3)
        self.ups = nn.ModuleList(
            [
                nn.ConvTranspose1d(one, other, kernel, rate, padding=(kernel - rate) // 2)
                for (one, other), rate, kernel in zip(pairwise(widths), _RATES, _RATE_KERNELS, strict=True)
            ]
        )
        self.source_downs = nn.ModuleList(
            [_source_down(width, math.prod(_RATES[stage + 1 :])) for stage, width in enumerate(widths[1:])]
        )
        self.source_resblocks = nn.ModuleList(
            [_Residual(width, kernel) for width, kernel in zip(widths[1:], _SOURCE_KERNELS, strict=True)]
        )
        self.resblocks = nn.ModuleList([_Residual(width, kernel) for width in widths[1:] for kernel in _KERNELS])
        self.conv_post = nn.Conv1d(widths[-1], 2 * _BINS, 7, padding=3)

    @property
    def device(self) -> torch.device:
        """Where the vocoder runs."""
        return self.conv_pre.weight.device

    @torch.inference_mode()
    def forward(self, mel: Tensor, noise: Tensor, source: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Make the samples of some mel frames.

        Args:
            mel: [batch, bins, frames].
            noise: normal draws for the source, [batch, 480 · frames, 9].
            source: the excitation that an earlier call had at the beginning of these frames, [batch, 1, samples]:
                used again, so that the two calls' sounds join.

        Returns:
            Samples [batch, 480 · frames], within ±0.99, at 24 kHz; and the excitation [batch, 1, 480 · frames].
        """
        excitation = self.m_source(self.f0_predictor(mel), noise.to(mel))
        if source is not None:
            excitation = torch.cat([source, excitation[..., source.shape[2] :]], dim=2)
        return self._samples(mel, excitation), excitation

    def _samples(self, mel: Tensor, excitation: Tensor) -> Tensor:
        window = torch.hann_window(_TRANSFORM, device=mel.device, dtype=torch.float32)
        spectrum = torch.stft(
            excitation[:, 0].float(), _TRANSFORM, _HOP, _TRANSFORM, window=window, return_complex=True
        )
        parts = torch.cat([spectrum.real, spectrum.imag], dim=1).to(mel.dtype)
        rows = self.conv_pre(mel)
        for stage, (up, down, source_block) in enumerate(
            zip(self.ups, self.source_downs, self.source_resblocks, strict=True)
        ):
            rows = up(functional.leaky_relu(rows, _SLOPE))
            if stage == len(_RATES) - 1:
                rows = functional.pad(rows, (1, 0), mode="reflect")
            rows = rows + source_block(down(parts))
            blocks = self.resblocks[stage * len(_KERNELS) : (stage + 1) * len(_KERNELS)]
            mixed = blocks[0](rows)
            for block in blocks[1:]:
                mixed = mixed + block(rows)
            rows = mixed / len(_KERNELS)
        rows = self.conv_post(functional.leaky_relu(rows)).float()
        loudness = rows[:, :_BINS].exp().clamp(max=_LOUDEST)
        angle = rows[:, _BINS:].sin()
        spectrum = torch.complex(loudness * angle.cos(), loudness * angle.sin())
        return torch.istft(spectrum, _TRANSFORM, _HOP, _TRANSFORM, window=window).clamp(-_LIMIT, _LIMIT)


def load_vocoder(files: Token2WavFiles, *, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Vocoder:
    """Read the vocoder of a checkpoint: `hift.pt`.

    Raises:
        CheckpointError: the file is missing or broken, or holds another vocoder.
    """
    path = files.vocoder
    stored = {name.removeprefix("generator."): tensor for name, tensor in read_torch_file(path).items()}
    tensors = fold_weight_norm(stored, path=path)
    with torch.device("meta"):
        vocoder = Vocoder(_sizes(tensors, files))
    fill(vocoder, tensors, path=path, device=device, dtype=dtype)
    return vocoder


def _sizes(tensors: Mapping[str, Tensor], files: Token2WavFiles) -> VocoderSizes:
    first, pitch = tensors.get("conv_pre.weight"), tensors.get("f0_predictor.condnet.0.weight")
    if first is None or pitch is None:
        raise CheckpointError(files.vocoder, "has no conv_pre or no f0_predictor.condnet.0: it holds another vocoder")
    return VocoderSizes(mel_bins=first.shape[1], channels=first.shape[0], pitch_channels=pitch.shape[0])


def _source_down(width: int, rate: int) -> nn.Conv1d:
    """The convolution that brings the source's transform down to a stage's rate."""
    if rate == 1:
        return nn.Conv1d(2 * _BINS, width, 1)
    return nn.Conv1d(2 * _BINS, width, 2 * rate, rate, padding=rate // 2)
