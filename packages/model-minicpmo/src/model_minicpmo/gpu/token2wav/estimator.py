"""The transformer that gives the flow's direction at one time, for a chunk of frames over cached earlier ones.

Owns: its arithmetic and the shape of its cache. Called by: `flow.py`, once a step of the flow. Never: integrates,
guides, or decides how much of a cache is kept.

Blocks as of a diffusion transformer (arXiv:2212.09748): the time shifts, scales and gates what attention, two causal
convolutions and a feed-forward add. Attention has neither positions nor a causal mask: a frame sees its whole chunk and
everything cached, and the order of the cache does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from model_minicpmo.gpu.token2wav.description import EstimatorSizes

_TIME_WIDTH = 256
_TIME_SCALE = 1000.0
_KERNEL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCache:
    """What one step of the flow remembers of earlier frames, for a batch.

    Attributes:
        keys: keys and values, packed, newest chunk first: [blocks, batch, heads, frames, 2 · head].
        convs: last inputs of the blocks' two convolutions: [blocks, batch, 2 · width, 2].
    """

    keys: Tensor
    convs: Tensor


class _Time(nn.Module):
    """A time in [0, 1] as a vector: cosines and sines, then two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(_TIME_WIDTH, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, times: Tensor) -> Tensor:
        half = _TIME_WIDTH // 2
        steps = torch.arange(half, device=times.device, dtype=torch.float32) / half
        angles = (times.float() * _TIME_SCALE)[:, None] * torch.exp(-math.log(10000.0) * steps)
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1).to(times.dtype))


class _Attention(nn.Module):
    def __init__(self, sizes: EstimatorSizes) -> None:
        super().__init__()
        self.heads, self.head = sizes.heads, sizes.head
        inner = sizes.heads * sizes.head
        self.to_q = nn.Linear(sizes.width, inner)
        self.to_k = nn.Linear(sizes.width, inner)
        self.to_v = nn.Linear(sizes.width, inner)
        self.q_norm = nn.LayerNorm(sizes.head)
        self.k_norm = nn.LayerNorm(sizes.head)
        self.proj = nn.Linear(inner, sizes.width)

    def forward(self, rows: Tensor, cache: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        split = (*rows.shape[:2], self.heads, self.head)
        query = self.q_norm(self.to_q(rows).view(split)).transpose(1, 2)
        new = torch.cat([self.k_norm(self.to_k(rows).view(split)), self.to_v(rows).view(split)], dim=-1)
        packed = torch.cat([new.transpose(1, 2), cache], dim=2)
        keys, values = packed.chunk(2, dim=-1)
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=visible)
        return self.proj(mixed.transpose(1, 2).flatten(2)), packed


class _FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, rows: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(rows), approximate="tanh"))


class _Convolutions(nn.Module):
    """Two causal convolutions, with a norm and Mish between. The gaps in `block` are the checkpoint's numbering."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.block = nn.ModuleDict(
            {"1": nn.Conv1d(width, width, _KERNEL), "3": nn.LayerNorm(width), "6": nn.Conv1d(width, width, _KERNEL)}
        )

    def forward(self, rows: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        first, second = memory.split(self.width, dim=1)
        before = torch.cat([first, rows.transpose(1, 2)], dim=2)
        between = self.block["3"](self.block["1"](before).transpose(1, 2))
        after = torch.cat([second, functional.mish(between).transpose(1, 2)], dim=2)
        kept = torch.cat([before[..., 1 - _KERNEL :], after[..., 1 - _KERNEL :]], dim=1)
        return self.block["6"](after).transpose(1, 2), kept


class _Modulation(nn.Module):
    """SiLU and a linear layer that turn the time's vector into shifts, scales and gates; numbered as in the checkpoint."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.add_module("1", nn.Linear(width, parts * width))

    def forward(self, time: Tensor) -> tuple[Tensor, ...]:
        return self.get_submodule("1")(functional.silu(time)).chunk(self.parts, dim=-1)


class _Block(nn.Module):
    def __init__(self, sizes: EstimatorSizes) -> None:
        super().__init__()
        self.width = sizes.width
        self.attn = _Attention(sizes)
        self.conv = _Convolutions(sizes.width)
        self.mlp = _FeedForward(sizes.width, sizes.inner)
        self.adaLN_modulation = _Modulation(sizes.width, 9)

    def forward(
        self, rows: Tensor, time: Tensor, keys: Tensor, convs: Tensor, visible: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = self.adaLN_modulation(time)
        mixed, packed = self.attn(_modulated(rows, *parts[0:2]), keys, visible)
        rows = rows + parts[2] * mixed
        mixed, kept = self.conv(_modulated(rows, *parts[6:8]), convs)
        rows = rows + parts[8] * mixed
        return rows + parts[5] * self.mlp(_modulated(rows, *parts[3:5])), packed, kept


class _Final(nn.Module):
    def __init__(self, sizes: EstimatorSizes) -> None:
        super().__init__()
        self.adaLN_modulation = _Modulation(sizes.width, 2)
        self.linear = nn.Linear(sizes.width, sizes.channels_out)

    def forward(self, rows: Tensor, time: Tensor) -> Tensor:
        return self.linear(_modulated(rows, *self.adaLN_modulation(time)))


class Estimator(nn.Module):
    """The transformer, under the checkpoint's names (below `decoder.estimator.`)."""

    def __init__(self, sizes: EstimatorSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.t_embedder = _Time(sizes.width)
        self.in_proj = nn.Linear(sizes.channels_in, sizes.width)
        self.blocks = nn.ModuleList([_Block(sizes) for _ in range(sizes.blocks)])
        self.final_layer = _Final(sizes)

    def empty_cache(self, batch: int) -> StepCache:
        """Give the cache of a step before any frame."""
        sizes, like = self.sizes, self.in_proj.weight
        return StepCache(
            keys=like.new_zeros(sizes.blocks, batch, sizes.heads, 0, 2 * sizes.head),
            convs=like.new_zeros(sizes.blocks, batch, 2 * sizes.width, _KERNEL - 1),
        )

    def forward(
        self, channels: Tensor, time: Tensor, cache: StepCache, visible: Tensor | None
    ) -> tuple[Tensor, StepCache]:
        """Give the direction at one time.

        Args:
            channels: what is known of each frame, [batch, frames, channels_in].
            time: [1], in 0 to 1.
            cache: of this step.
            visible: [batch, 1, 1, frames + cached], False for padding in the cache; None when there is none.

        Returns:
            [batch, frames, channels_out], and the cache with these frames before the older ones.
        """
        vector = self.t_embedder(time)[:, None]
        rows = self.in_proj(channels)
        keys, convs = [], []
        for index, block in enumerate(self.blocks):
            rows, packed, kept = block(rows, vector, cache.keys[index], cache.convs[index], visible)
            keys.append(packed)
            convs.append(kept)
        return self.final_layer(rows, vector), StepCache(keys=torch.stack(keys), convs=torch.stack(convs))


def _modulated(rows: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return functional.layer_norm(rows, rows.shape[-1:], eps=1e-6) * (1 + scale) + shift
