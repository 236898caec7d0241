"""The conformer that turns audio codes into mel-rate frames, chunk by chunk over caches.

Owns: its arithmetic and the shape of its caches. Called by: `flow.py`. Never: decides how much of a cache is kept.

Two stacks of layers with relative positions (Transformer-XL, arXiv:1901.02860, section 3.3), with a doubling of the
rate between. The first stack sees some codes ahead through a convolution. Caches of a batch may differ in length:
shorter ones are padded on the left, so that relative positions stay true, and padded keys are masked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model_minicpmo.gpu.token2wav.description import EncoderSizes

# How many frames the second convolution of the look-ahead keeps from before.
_AHEAD_MEMORY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderCache:
    """What the encoder remembers of one stream.

    Attributes:
        ahead: last inputs of the look-ahead's second convolution, [1, width, 2].
        rise: last inputs of the convolution after the doubling, [1, width, 2 · stride].
        low: keys and values, packed, of the layers at the codes' rate: [layers, 1, heads, codes, 2 · head].
        high: the same at the frames' rate: [up_layers, 1, heads, frames, 2 · head].
    """

    ahead: Tensor
    rise: Tensor
    low: Tensor
    high: Tensor


class _Embed(nn.Module):
    """Linear and layer norm, then scaled by the square root of the width."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(width_in, width), nn.LayerNorm(width, eps=1e-5))
        self.scale = math.sqrt(width)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(rows) * self.scale


class _LookAhead(nn.Module):
    """Two convolutions: the first looks `lookahead` codes ahead, the second two back; their sum with the input."""

    def __init__(self, width: int, lookahead: int) -> None:
        super().__init__()
        self.lookahead = lookahead
        self.conv1 = nn.Conv1d(width, width, lookahead + 1)
        self.conv2 = nn.Conv1d(width, width, _AHEAD_MEMORY + 1)

    def forward(self, rows: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Take [batch, codes + lookahead, width]; give [batch, codes, width] and the new memory."""
        seen = functional.leaky_relu(self.conv1(rows.transpose(1, 2)))
        seen = torch.cat([memory, seen], dim=2)
        return self.conv2(seen).transpose(1, 2) + rows[:, : -self.lookahead], seen[..., -_AHEAD_MEMORY:]


class _Rise(nn.Module):
    """Each row repeated `stride` times, then a causal convolution."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv1d(width, width, 2 * stride + 1)

    def forward(self, rows: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        repeated = rows.transpose(1, 2).repeat_interleave(self.stride, dim=2)
        repeated = torch.cat([memory, repeated], dim=2)
        return self.conv(repeated).transpose(1, 2), repeated[..., -2 * self.stride :]


class _RelativeAttention(nn.Module):
    """Attention whose scores add a term in the distance between query and key."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(heads, self.head))
        self.pos_bias_v = nn.Parameter(torch.empty(heads, self.head))

    def forward(self, rows: Tensor, place: _Place, cache: Tensor) -> tuple[Tensor, Tensor]:
        split = (*rows.shape[:2], self.heads, self.head)
        query = self.linear_q(rows).view(split)
        new = torch.cat([self.linear_k(rows).view(split), self.linear_v(rows).view(split)], dim=-1)
        packed = torch.cat([cache, new.transpose(1, 2)], dim=2)
        keys, values = packed.chunk(2, dim=-1)
        content = (query + self.pos_bias_u).transpose(1, 2) @ keys.transpose(-2, -1)
        distances = self.linear_pos(place.distances).view(-1, self.heads, self.head)
        by_distance = (query + self.pos_bias_v).transpose(1, 2) @ distances.permute(1, 2, 0)
        scores = content + by_distance.gather(-1, place.shift.expand(*content.shape))
        scores = scores / math.sqrt(self.head)
        if place.hidden is not None:
            scores = scores.masked_fill(place.hidden, -torch.inf)
        mixed = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
        return self.linear_out(mixed), packed


class _FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(width, inner)
        self.w_2 = nn.Linear(inner, width)

    def forward(self, rows: Tensor) -> Tensor:
        return self.w_2(functional.silu(self.w_1(rows)))


class _Layer(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.self_attn = _RelativeAttention(sizes.width, sizes.heads)
        self.feed_forward = _FeedForward(sizes.width, sizes.inner)
        self.norm_mha = nn.LayerNorm(sizes.width, eps=1e-12)
        self.norm_ff = nn.LayerNorm(sizes.width, eps=1e-12)

    def forward(self, rows: Tensor, place: _Place, cache: Tensor) -> tuple[Tensor, Tensor]:
        mixed, packed = self.self_attn(self.norm_mha(rows), place, cache)
        rows = rows + mixed
        return rows + self.feed_forward(self.norm_ff(rows)), packed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a chunk stands to its cache; the same for all layers of a stack."""

    distances: Tensor  # [cached + 2 · new - 1, width]: an embedding per distance, farthest first
    shift: Tensor  # [new, cached + new]: which of them a query and a key are apart
    hidden: Tensor | None  # [batch, 1, 1, cached + new]: keys that are padding


class Encoder(nn.Module):
    """The conformer, under the checkpoint's names (below `encoder.`)."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed = _Embed(sizes.width_in, sizes.width)
        self.pre_lookahead_layer = _LookAhead(sizes.width, sizes.lookahead)
        self.encoders = nn.ModuleList([_Layer(sizes) for _ in range(sizes.layers)])
        self.up_layer = _Rise(sizes.width, sizes.stride)
        self.up_embed = _Embed(sizes.width_in, sizes.width)
        self.up_encoders = nn.ModuleList([_Layer(sizes) for _ in range(sizes.up_layers)])
        self.after_norm = nn.LayerNorm(sizes.width, eps=1e-5)

    def empty_cache(self) -> EncoderCache:
        """Give the cache of a stream that has not begun."""
        sizes, like = self.sizes, self.after_norm.weight
        keys = (1, sizes.heads, 0, 2 * sizes.width // sizes.heads)
        return EncoderCache(
            ahead=like.new_zeros(1, sizes.width, _AHEAD_MEMORY),
            rise=like.new_zeros(1, sizes.width, 2 * sizes.stride),
            low=like.new_zeros(sizes.layers, *keys),
            high=like.new_zeros(sizes.up_layers, *keys),
        )

    def forward(self, rows: Tensor, caches: Sequence[EncoderCache], *, last: bool) -> tuple[Tensor, list[EncoderCache]]:
        """Continue some streams by a chunk each.

        Args:
            rows: embedded codes [batch, codes, width_in]. The last `lookahead` of them are only looked at, unless
                `last`.
            caches: one a stream.
            last: whether nothing follows, so that all codes are encoded.

        Returns:
            Frames [batch, stride · codes encoded, width], and the streams' new caches, grown by the chunk.
        """
        rows = self.embed(rows)
        if last:
            rows = functional.pad(rows, (0, 0, 0, self.sizes.lookahead))
        rows, ahead = self.pre_lookahead_layer(rows, torch.cat([cache.ahead for cache in caches]))
        rows, low = self._stack(rows, self.encoders, [cache.low for cache in caches])
        rows, rise = self.up_layer(rows, torch.cat([cache.rise for cache in caches]))
        rows, high = self._stack(self.up_embed(rows), self.up_encoders, [cache.high for cache in caches])
        grown = [
            EncoderCache(ahead=ahead[index : index + 1], rise=rise[index : index + 1], low=low[index], high=high[index])
            for index in range(len(caches))
        ]
        return self.after_norm(rows), grown

    def _stack(self, rows: Tensor, layers: nn.ModuleList, caches: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        lengths = [cache.shape[3] for cache in caches]
        longest = max(lengths)
        padded = torch.cat(
            [functional.pad(cache, (0, 0, longest - length, 0)) for cache, length in zip(caches, lengths, strict=True)],
            dim=1,
        )
        place = self._place(rows, lengths)
        grown = []
        for index, layer in enumerate(layers):
            rows, packed = layer(rows, place, padded[index])
            grown.append(packed)
        stacked = torch.stack(grown)
        # A copy of each, so that a stream that waits does not hold the memory of the whole batch.
        own = [stacked[:, row : row + 1, :, longest - length :] for row, length in enumerate(lengths)]
        return rows, [cache.contiguous() for cache in own]

    def _place(self, rows: Tensor, lengths: Sequence[int]) -> _Place:
        device, new, cached = rows.device, rows.shape[1], max(lengths)
        apart = torch.arange(cached + new - 1, -new, -1, device=device, dtype=torch.float32)
        even = torch.arange(0, self.sizes.width, 2, device=device, dtype=torch.float32)
        angles = apart[:, None] * torch.exp(even * -(math.log(10000.0) / self.sizes.width))
        distances = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(rows.dtype)
        queries = torch.arange(new, device=device)
        shift = (new - 1 - queries)[:, None] + torch.arange(cached + new, device=device)
        hidden = None
        if min(lengths) < cached:
            first = cached - torch.tensor(lengths, device=device)
            hidden = (torch.arange(cached + new, device=device) < first[:, None])[:, None, None]
        return _Place(distances=distances, shift=shift, hidden=hidden)
