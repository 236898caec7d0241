"""Streams of sound: codes in, 24 kHz samples out, chunk by chunk, several streams in one batch.

Owns: what a stream remembers, how its chunks are joined, and which streams go through the models together. Called by:
the worker of the stage that gives answers their voice, and by tests. Never: knows of sessions or turns; decides when
a chunk is due (`chunks.py`).

A chunk's sound is held back by 160 ms, which the next chunk fades into. The first chunk's gap is filled with zeros in
front, so that each chunk of 28 codes (25 and 3 seen ahead) gives 1 s; the last gives all that is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from model_minicpmo.errors import CheckpointError
from model_minicpmo.gpu.checkpoint import Token2WavLayout
from model_minicpmo.gpu.token2wav.chunks import SILENT_CODE
from model_minicpmo.gpu.token2wav.flow import Flow, FlowState, Memory, Voice, load_flow
from model_minicpmo.gpu.token2wav.noise import SourceNoise, flow_noise
from model_minicpmo.gpu.token2wav.vocoder import HARMONICS, SAMPLES_PER_FRAME, Vocoder, load_vocoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model_minicpmo.gpu.checkpoint import Token2WavFiles

JOIN_FRAMES = 8
JOIN_SAMPLES = JOIN_FRAMES * SAMPLES_PER_FRAME
"""160 ms, over which one chunk fades into the next."""
STEPS = 5
"""Steps of the flow: the published demo's; the published class takes 10."""
_NOISE_FRAMES = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """What a stream remembers between chunks. Never changed: a chunk gives a new one.

    Attributes:
        flow: of the flow.
        mel: last mel frames, [bins, 8]; none before the first chunk.
        source: the vocoder's excitation of those frames [1, 3840].
        tail: the samples of those frames, which the next chunk fades out, [3840].
    """

    flow: FlowState
    mel: Tensor
    source: Tensor
    tail: Tensor

    @property
    def begun(self) -> bool:
        """Whether a chunk was made."""
        return self.tail.shape[0] > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What a stream is to say next.

    Attributes:
        state: the stream's.
        codes: audio codes; the last three are only looked at, unless `last`.
        last: whether the stream ends with this chunk.
        noise: the stream's draws for the vocoder's source.
    """

    state: StreamState
    codes: Sequence[int]
    last: bool
    noise: SourceNoise


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """What came of a chunk.

    Attributes:
        state: the stream's new state.
        samples: [n] float32, 24 kHz, on the CPU.
        mel: the chunk's mel frames [bins, frames], on the models' device.
    """

    state: StreamState
    samples: Tensor
    mel: Tensor


class Token2Wav:
    """Flow and vocoder together."""

    def __init__(
        self,
        flow: Flow,
        vocoder: Vocoder,
        *,
        steps: int = STEPS,
        memory: Memory = Memory.PUBLISHED,
        noise: Tensor | None = None,
    ) -> None:
        """Join the two.

        Args:
            flow: the flow.
            vocoder: the vocoder.
            steps: how many steps the flow takes.
            memory: what streams' caches let go.
            noise: the flow's buffer [bins, frames]; by default a seeded one for 10 minutes. It has to be as long as a
                voice's prompt, 100 frames and a chunk together, and for `whole` as long as the whole.
        """
        if steps < 1:
            message = f"steps is {steps}; the flow takes at least 1"
            raise ValueError(message)
        self.flow, self.vocoder, self.steps, self.memory = flow, vocoder, steps, memory
        bins = flow.sizes.mel_bins
        self.noise = (flow_noise(bins, _NOISE_FRAMES) if noise is None else noise).to(flow.device)
        fade = torch.from_numpy(np.hamming(2 * JOIN_SAMPLES)).float().to(vocoder.device)
        self._fade_in, self._fade_out = fade.chunk(2)

    def open(self, voice: Voice) -> StreamState:
        """Take in a reference voice, and give the state with which every stream in this voice begins; keep it with the voice."""
        ahead = torch.full((self.flow.lookahead,), SILENT_CODE)
        frames = voice.mel.shape[0]
        state = self.flow.open(voice, ahead, self._flow_noise(0, frames), steps=self.steps)
        like = self.vocoder.conv_pre.weight
        return StreamState(
            flow=state,
            mel=like.new_zeros(self.flow.sizes.mel_bins, 0),
            source=like.new_zeros(1, 0),
            tail=torch.zeros(0, device=like.device),
        )

    def advance(self, chunks: Sequence[Chunk]) -> list[Sound]:
        """Make the next chunk of some streams, in order; those alike go through the models together.

        Raises:
            ValueError: a chunk has too few codes to give a frame, or a code that the flow does not know.
        """
        for chunk in chunks:
            self._check(chunk)
        made: dict[int, Sound] = {}
        for alike in _grouped([(len(chunk.codes), chunk.last, chunk.state.flow.steps) for chunk in chunks]):
            made |= zip(alike, self._alike([chunks[index] for index in alike]), strict=True)
        return [made[index] for index in range(len(chunks))]

    @torch.inference_mode()
    def whole(self, voice: Voice, codes: Sequence[int], noise: SourceNoise) -> tuple[Tensor, Tensor]:
        """Make the sound of some codes in one go.

        Returns:
            Samples [960 · codes], float32, on the CPU; and the mel frames [bins, 2 · codes].
        """
        frames = voice.mel.shape[0] + self.flow.frames_of(len(codes), last=True)
        mel = self.flow.whole(voice, torch.tensor(codes), self._flow_noise(0, frames), steps=self.steps)
        draws = noise(mel.shape[1] * SAMPLES_PER_FRAME, HARMONICS)
        samples, _ = self.vocoder(mel[None].to(self.vocoder.conv_pre.weight), draws[None])
        return samples[0].float().cpu(), mel

    def _check(self, chunk: Chunk) -> None:
        if self.flow.frames_of(len(chunk.codes), last=chunk.last) < 1:
            message = (
                f"a chunk of {len(chunk.codes)} codes gives no sound: the last {self.flow.lookahead} are only looked at, "
                "unless the chunk is the stream's last"
            )
            raise ValueError(message)
        unknown = [code for code in chunk.codes if not 0 <= code < self.flow.sizes.codes]
        if unknown:
            message = f"unknown audio codes {unknown[:6]}: this flow knows 0 to {self.flow.sizes.codes - 1}"
            raise ValueError(message)

    def _flow_noise(self, start: int, frames: int) -> Tensor:
        if start + frames > self.noise.shape[1]:
            message = f"the flow's noise has {self.noise.shape[1]} frames; {start + frames} are needed: say it in parts"
            raise ValueError(message)
        return self.noise[:, start : start + frames]

    @torch.inference_mode()
    def _alike(self, chunks: Sequence[Chunk]) -> list[Sound]:
        last = chunks[0].last
        frames = self.flow.frames_of(len(chunks[0].codes), last=last)
        mel, states = self.flow.advance(
            [chunk.state.flow for chunk in chunks],
            torch.tensor([list(chunk.codes) for chunk in chunks]),
            [self._flow_noise(chunk.state.flow.frames, frames) for chunk in chunks],
            last=last,
            memory=self.memory,
        )
        made: dict[int, Sound] = {}
        for alike in _grouped([chunk.state.mel.shape[1] for chunk in chunks]):
            sounds = self._voiced([chunks[index] for index in alike], mel[alike], [states[index] for index in alike])
            made |= zip(alike, sounds, strict=True)
        return [made[index] for index in range(len(chunks))]

    def _voiced(self, chunks: Sequence[Chunk], mel: Tensor, flows: Sequence[FlowState]) -> list[Sound]:
        """Give mel frames [streams, bins, frames] their sound; the streams are alike in whether they have begun."""
        old = [chunk.state for chunk in chunks]
        frames = torch.cat([torch.stack([state.mel for state in old]), mel.to(self.vocoder.conv_pre.weight)], dim=2)
        draws = torch.stack([chunk.noise(frames.shape[2] * SAMPLES_PER_FRAME, HARMONICS) for chunk in chunks])
        begun = old[0].begun
        source = torch.stack([state.source for state in old]) if begun else None
        samples, excitation = self.vocoder(frames, draws, source)
        if begun:
            joined = (
                samples[:, :JOIN_SAMPLES] * self._fade_in + torch.stack([state.tail for state in old]) * self._fade_out
            )
            samples = torch.cat([joined, samples[:, JOIN_SAMPLES:]], dim=1)
        given = samples if chunks[0].last else samples[:, :-JOIN_SAMPLES]
        if not begun and not chunks[0].last:
            given = torch.nn.functional.pad(given, (JOIN_SAMPLES, 0))
        given = given.float().cpu()
        return [
            Sound(
                state=StreamState(
                    flow=flows[index],
                    mel=frames[index, :, -JOIN_FRAMES:],
                    source=excitation[index, :, -JOIN_SAMPLES:],
                    tail=samples[index, -JOIN_SAMPLES:],
                ),
                samples=given[index],
                mel=mel[index],
            )
            for index in range(len(chunks))
        ]


def load_token2wav(
    files: Token2WavFiles,
    *,
    device: torch.device | str,
    steps: int = STEPS,
    memory: Memory = Memory.PUBLISHED,
    noise: Tensor | None = None,
) -> Token2Wav:
    """Read flow and vocoder of a checkpoint, in float32, as they are published.

    Raises:
        CheckpointError: a file is missing or broken, or the layout is one that is not supported.
    """
    if files.layout is not Token2WavLayout.HIFT:
        raise CheckpointError(
            files.description,
            "describes the layout with a causal vocoder, which is not supported: its structure is not published in any form "
            "that could be checked. Use the checkpoint's other set of files: flow.yaml, flow.pt and hift.pt",
        )
    flow = load_flow(files, device=device)
    vocoder = load_vocoder(files, device=device)
    return Token2Wav(flow, vocoder, steps=steps, memory=memory, noise=noise)


def pcm16(samples: Tensor) -> bytes:
    """Give samples in ±1 as 16-bit little-endian PCM: clipped, times 32767, the fraction cut off, as the published code does."""
    return (samples.clamp(-1.0, 1.0) * 32767.0).numpy().astype("<i2").tobytes()


def _grouped(keys: Sequence[object]) -> list[list[int]]:
    """Give the places of equal keys together."""
    groups: dict[object, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return list(groups.values())
