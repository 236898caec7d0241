"""The flow: audio codes to mel frames in a given voice, chunk by chunk, by following an estimated direction from noise.

Owns: the integration, the guidance, and what is kept of a stream between chunks. Called by: `synthesis.py`. Never:
draws noise (it is an argument), makes samples, or knows of turns.

Flow matching (arXiv:2210.02747) with classifier-free guidance: `n` Euler steps over times that a cosine spaces, each
direction being `(1 + g) · conditioned - g · unconditioned`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_minicpmo.errors import CheckpointError
from model_minicpmo.gpu.checkpoint import read_torch_file
from model_minicpmo.gpu.tables import table
from model_minicpmo.gpu.token2wav.conformer import Encoder, EncoderCache
from model_minicpmo.gpu.token2wav.description import FlowSizes, read_flow_sizes
from model_minicpmo.gpu.token2wav.estimator import Estimator, StepCache
from model_minicpmo.gpu.weights import fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model_minicpmo.gpu.checkpoint import Token2WavFiles

KEPT_FRAMES = 100
"""How many frames of speech the caches keep beside as many as the prompt has (2 s)."""


class Memory(enum.Enum):
    """What a stream's caches let go when they have grown by more than `KEPT_FRAMES` beyond the prompt."""

    PUBLISHED = "published"
    """What the published code does, and what its voice was judged with. The estimator's cache stands newest first
    there and is cut as if it stood oldest first: it keeps as many of the newest frames as the prompt has, and the
    prompt's last 100. The
    encoder's first stack keeps the prompt and the 50 codes that followed it, and never sees a newer one."""
    PROMPT = "prompt"
    """What that code means to do: all of the prompt, and the newest 100 frames (50 codes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """What a reference voice is to the flow.

    Attributes:
        codes: the reference's own audio codes, [n], 25 a second.
        mel: its mel frames [stride · n, bins].
        speaker: its speaker vector [speaker].
    """

    codes: Tensor
    mel: Tensor
    speaker: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowState:
    """What the flow remembers of one stream. Never changed: a chunk gives a new one.

    Attributes:
        speaker: the voice's vector as the flow uses it, [1, bins].
        prompt_frames: how many frames the voice's prompt has.
        encoder: the encoder's cache.
        keys: of every step of the flow: [steps, blocks, 2, heads, frames, 2 · head]; 2 is with and without condition.
        convs: likewise [steps, blocks, 2, 2 · width, 2].
    """

    speaker: Tensor
    prompt_frames: int
    encoder: EncoderCache
    keys: Tensor
    convs: Tensor

    @property
    def frames(self) -> int:
        """How many frames the caches hold; the next chunk's noise begins there."""
        return self.keys.shape[4]

    @property
    def steps(self) -> int:
        """How many steps of the flow the caches are of."""
        return self.keys.shape[0]


class _Decoder(nn.Module):
    """Holds the estimator under its name in the checkpoint."""

    def __init__(self, sizes: FlowSizes) -> None:
        super().__init__()
        self.estimator = Estimator(sizes.estimator)


class Flow(nn.Module):
    """The flow, under the names of `flow.pt`."""

    def __init__(self, sizes: FlowSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.input_embedding = table(sizes.codes, sizes.encoder.width_in)
        self.spk_embed_affine_layer = nn.Linear(sizes.speaker, sizes.mel_bins)
        self.encoder = Encoder(sizes.encoder)
        self.encoder_proj = nn.Linear(sizes.encoder.width, sizes.mel_bins)
        self.decoder = _Decoder(sizes)

    @property
    def device(self) -> torch.device:
        """Where the flow runs."""
        return self.encoder_proj.weight.device

    @property
    def lookahead(self) -> int:
        """How many codes at the end of a chunk are only looked at, unless it is the last."""
        return self.sizes.encoder.lookahead

    def frames_of(self, codes: int, *, last: bool) -> int:
        """Say how many mel frames a chunk of so many codes gives."""
        return self.sizes.encoder.stride * (codes if last else codes - self.lookahead)

    @torch.inference_mode()
    def open(self, voice: Voice, ahead: Tensor, noise: Tensor, *, steps: int) -> FlowState:
        """Take in a voice's prompt; every stream in that voice begins with the state that this gives.

        Args:
            voice: the voice.
            ahead: [lookahead] the codes that are to be seen after the prompt's.
            noise: [bins, at least the prompt's frames].
            steps: how many steps the flow takes.

        Raises:
            ValueError: mel frames and codes of the voice do not belong together.
        """
        frames = self.sizes.encoder.stride * voice.codes.shape[0]
        if voice.mel.shape != (frames, self.sizes.mel_bins):
            message = (
                f"a voice of {voice.codes.shape[0]} codes needs mel frames {[frames, self.sizes.mel_bins]}, "
                f"not {list(voice.mel.shape)}"
            )
            raise ValueError(message)
        speaker = self._speaker(voice.speaker)
        codes = torch.cat([voice.codes, ahead]).to(self.device)[None]
        encoded, caches = self.encoder(self.input_embedding(codes), [self.encoder.empty_cache()], last=False)
        _, keys, convs = self._integrate(
            noise.to(self.device)[None, :, :frames],
            self._conditions(encoded, speaker, voice.mel.to(self.device, encoded.dtype)[None]),
            [self._no_steps(steps)],
        )
        return FlowState(speaker=speaker, prompt_frames=frames, encoder=caches[0], keys=keys[0], convs=convs[0])

    @torch.inference_mode()
    def advance(
        self, states: Sequence[FlowState], codes: Tensor, noise: Sequence[Tensor], *, last: bool, memory: Memory
    ) -> tuple[Tensor, list[FlowState]]:
        """Continue some streams by a chunk of equal length each.

        Args:
            states: one a stream; all with equally many steps.
            codes: [streams, codes], with the look-ahead at their ends.
            noise: one a stream, [bins, frames of the chunk]; the published code takes them from one fixed
                buffer, beginning at `state.frames`.
            last: whether the streams end with this chunk.
            memory: what the caches are to let go.

        Returns:
            Mel frames [streams, bins, frames], and the new states.
        """
        encoded, caches = self.encoder(
            self.input_embedding(codes.to(self.device)), [state.encoder for state in states], last=last
        )
        speaker = torch.cat([state.speaker for state in states])
        start = torch.stack([part.to(self.device, encoded.dtype) for part in noise])
        mel, keys, convs = self._integrate(
            start,
            self._conditions(encoded, speaker, encoded.new_zeros(*encoded.shape[:2], self.sizes.mel_bins)),
            [(state.keys, state.convs) for state in states],
        )
        grown = [
            FlowState(
                speaker=state.speaker,
                prompt_frames=state.prompt_frames,
                encoder=_kept_encoder(cache, state.prompt_frames, self.sizes.encoder.stride, memory),
                keys=_kept_keys(stream_keys, state.prompt_frames, memory),
                convs=stream_convs.contiguous(),
            )
            for state, cache, stream_keys, stream_convs in zip(states, caches, keys, convs, strict=True)
        ]
        return mel, grown

    @torch.inference_mode()
    def whole(self, voice: Voice, codes: Tensor, noise: Tensor, *, steps: int) -> Tensor:
        """Make all frames of some codes at once, each seeing all others.

        Args:
            voice: the voice.
            codes: [n].
            noise: [bins, at least the frames of voice and codes together].
            steps: how many steps the flow takes.

        Returns:
            [bins, stride · n].
        """
        speaker = self._speaker(voice.speaker)
        rows = self.input_embedding(torch.cat([voice.codes, codes]).to(self.device)[None])
        encoded, _ = self.encoder(rows, [self.encoder.empty_cache()], last=True)
        prompt = voice.mel.to(self.device, encoded.dtype)[None]
        known = functional.pad(prompt, (0, 0, 0, encoded.shape[1] - prompt.shape[1]))
        start = noise.to(self.device, encoded.dtype)[None, :, : encoded.shape[1]]
        mel, _, _ = self._integrate(start, self._conditions(encoded, speaker, known), [self._no_steps(steps)])
        return mel[0, :, prompt.shape[1] :]

    def _speaker(self, vector: Tensor) -> Tensor:
        weight = self.spk_embed_affine_layer.weight
        return self.spk_embed_affine_layer(functional.normalize(vector.to(weight)[None], dim=1))

    def _no_steps(self, steps: int) -> tuple[Tensor, Tensor]:
        empty = self.decoder.estimator.empty_cache(2)
        return empty.keys.expand(steps, *empty.keys.shape), empty.convs.expand(steps, *empty.convs.shape)

    def _conditions(self, encoded: Tensor, speaker: Tensor, known: Tensor) -> Tensor:
        """What directs the flow: [2 · batch, frames, 3 · bins], the second half (unconditioned) zero."""
        mean = self.encoder_proj(encoded)
        conditions = torch.cat([mean, speaker[:, None].expand_as(mean), known], dim=-1)
        return torch.cat([conditions, torch.zeros_like(conditions)])

    def _integrate(
        self, noise: Tensor, conditions: Tensor, caches: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Follow the flow from noise [batch, bins, frames] to mel frames; give them and each stream's grown caches."""
        steps, batch = caches[0][0].shape[0], len(caches)
        keys, visible = _side_by_side([stream_keys for stream_keys, _ in caches], new=noise.shape[2])
        convs = torch.stack([stream_convs for _, stream_convs in caches], dim=3).flatten(2, 3)
        times = 1 - torch.cos(torch.linspace(0, 1, steps + 1, device=noise.device, dtype=noise.dtype) * 0.5 * torch.pi)
        frames, time, width = noise.transpose(1, 2), times[:1], times[1] - times[0]
        grown = []
        for step in range(steps):
            channels = torch.cat([torch.cat([frames, frames]), conditions], dim=-1)
            cache = StepCache(keys=keys[step], convs=convs[step])
            direction, cache = self.decoder.estimator(channels, time, cache, visible)
            with_condition, without = direction.chunk(2)
            guidance = self.sizes.guidance
            frames = frames + width * ((1.0 + guidance) * with_condition - guidance * without)
            time = time + width
            width = times[min(step + 2, steps)] - time
            grown.append(cache)
        all_keys = torch.stack([cache.keys for cache in grown]).unflatten(2, (2, batch))
        all_convs = torch.stack([cache.convs for cache in grown]).unflatten(2, (2, batch))
        lengths = [noise.shape[2] + stream_keys.shape[4] for stream_keys, _ in caches]
        return (
            frames.transpose(1, 2),
            [all_keys[:, :, :, row, :, :length] for row, length in enumerate(lengths)],
            [all_convs[:, :, :, row] for row in range(batch)],
        )


def load_flow(files: Token2WavFiles, *, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Flow:
    """Read the flow of a checkpoint: `flow.yaml` and `flow.pt`.

    Raises:
        CheckpointError: a file is missing or broken, or the two do not belong together.
    """
    with torch.device("meta"):
        flow = Flow(read_flow_sizes(files.description))
    fill(flow, read_torch_file(files.flow), path=files.flow, device=device, dtype=dtype)
    return flow


def _side_by_side(streams: Sequence[Tensor], *, new: int) -> tuple[Tensor, Tensor | None]:
    """Put streams' keys into one batch [steps, blocks, 2 · streams, …], filled up at the old end; and tell what is no filling."""
    if len(streams) == 1:
        return streams[0], None
    lengths = [keys.shape[4] for keys in streams]
    longest = max(lengths)
    padded = [functional.pad(keys, (0, 0, 0, longest - length)) for keys, length in zip(streams, lengths, strict=True)]
    batch = torch.stack(padded, dim=3).flatten(2, 3)
    if min(lengths) == longest:
        return batch, None
    ends = torch.tensor([new + length for length in lengths], device=batch.device)
    visible = torch.arange(new + longest, device=batch.device) < ends[:, None]
    return batch, visible.repeat(2, 1)[:, None, None]


def _kept_keys(keys: Tensor, prompt: int, memory: Memory) -> Tensor:
    """Cut one stream's estimator keys, which stand newest chunk first."""
    if keys.shape[4] <= prompt + KEPT_FRAMES:
        return keys.contiguous()
    first, rest = (prompt, KEPT_FRAMES) if memory is Memory.PUBLISHED else (KEPT_FRAMES, prompt)
    return torch.cat([keys[..., :first, :], keys[..., -rest:, :]], dim=4)


def _kept_encoder(cache: EncoderCache, prompt: int, stride: int, memory: Memory) -> EncoderCache:
    """Cut one stream's encoder cache, which stands oldest first."""
    if cache.high.shape[3] <= prompt + KEPT_FRAMES:
        return cache
    high = torch.cat([cache.high[..., :prompt, :], cache.high[..., -KEPT_FRAMES:, :]], dim=3)
    if memory is Memory.PUBLISHED:
        repeated = torch.cat([cache.low] * stride, dim=3)
        cut = torch.cat([repeated[..., :prompt, :], repeated[..., -KEPT_FRAMES:, :]], dim=3)
        low = cut[..., : (prompt + KEPT_FRAMES) // stride, :]
    else:
        low = torch.cat([cache.low[..., : prompt // stride, :], cache.low[..., -KEPT_FRAMES // stride :, :]], dim=3)
    return EncoderCache(ahead=cache.ahead, rise=cache.rise, low=low, high=high)


__all__ = ["KEPT_FRAMES", "CheckpointError", "Flow", "FlowState", "Memory", "Voice", "load_flow"]
