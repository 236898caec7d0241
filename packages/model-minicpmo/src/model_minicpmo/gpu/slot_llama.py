"""The Llama backbone of the talker, over a key-value cache of slots that lives as long as a turn.

Owns: the layers' arithmetic and the cache. Called by: the talker. Never: samples, knows what a position means, or checks
whether a row fits: its caller holds the lengths.

A slot is one speaker's row of the cache. A call hands over rows of equal width; shorter ones are padded on the right. Padding
writes beyond the slot's end, where no query looks before a later call has overwritten it: a query sees keys at its own position
and before, so that a row's result does not depend on the rows beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

# The span of the cache that a step reads is rounded up to this many positions, so that shapes change seldom.
_SPAN_STEP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSizes:
    """The sizes of a Llama decoder, and its two constants."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int
    norm_eps: float
    rope_theta: float

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.hidden // self.heads


class SlotCache:
    """Keys and values of every layer and slot, `[layers, slots, positions, kv_heads, head]` each."""

    __slots__ = ("keys", "positions", "slots", "values")

    def __init__(
        self, sizes: LlamaSizes, *, slots: int, positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (sizes.layers, slots, positions, sizes.kv_heads, sizes.head)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.slots = slots
        self.positions = positions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where one call's rows stand in the cache, and what they may see; the same for every layer."""

    slots: Tensor  # [rows], int64
    positions: Tensor  # [rows, width], int64
    span: int
    all_slots: bool
    visible: Tensor  # [rows, 1, width, span], bool
    cos: Tensor  # [rows, width, 1, head]
    sin: Tensor


class RmsNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise `[..., size]`."""
        exact = rows.float()
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * exact.to(rows.dtype)


class _Attention(nn.Module):
    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.sizes = sizes
        inner = sizes.heads * sizes.head
        kv_inner = sizes.kv_heads * sizes.head
        self.q_proj = nn.Linear(sizes.hidden, inner, bias=False)
        self.k_proj = nn.Linear(sizes.hidden, kv_inner, bias=False)
        self.v_proj = nn.Linear(sizes.hidden, kv_inner, bias=False)
        self.o_proj = nn.Linear(inner, sizes.hidden, bias=False)

    def forward(self, rows: Tensor, place: _Place, keys: Tensor, values: Tensor) -> Tensor:
        sizes = self.sizes
        heads = (*rows.shape[:2], -1, sizes.head)
        query = _rotated(self.q_proj(rows).view(heads), place)
        keys[place.slots[:, None], place.positions] = _rotated(self.k_proj(rows).view(heads), place)
        values[place.slots[:, None], place.positions] = self.v_proj(rows).view(heads)
        if place.all_slots:
            seen_keys, seen_values = keys[:, : place.span], values[:, : place.span]
        else:
            seen_keys, seen_values = keys[place.slots, : place.span], values[place.slots, : place.span]
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2),
            seen_keys.transpose(1, 2),
            seen_values.transpose(1, 2),
            attn_mask=place.visible,
            enable_gqa=sizes.heads != sizes.kv_heads,
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class _FeedForward(nn.Module):
    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(rows)) * self.up_proj(rows))


class _Layer(nn.Module):
    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.self_attn = _Attention(sizes)
        self.mlp = _FeedForward(sizes)
        self.input_layernorm = RmsNorm(sizes.hidden, sizes.norm_eps)
        self.post_attention_layernorm = RmsNorm(sizes.hidden, sizes.norm_eps)

    def forward(self, rows: Tensor, place: _Place, keys: Tensor, values: Tensor) -> Tensor:
        rows = rows + self.self_attn(self.input_layernorm(rows), place, keys, values)
        return rows + self.mlp(self.post_attention_layernorm(rows))


class SlotLlama(nn.Module):
    """A Llama decoder whose parameters carry the names of `transformers`' `LlamaModel`, without its token embedding."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.layers = nn.ModuleList([_Layer(sizes) for _ in range(sizes.layers)])
        self.norm = RmsNorm(sizes.hidden, sizes.norm_eps)

    def forward(self, rows: Tensor, cache: SlotCache, slots: list[int], starts: list[int]) -> Tensor:
        """Continue some slots, and write their keys and values into the cache.

        Args:
            rows: embeddings [len(slots), width, hidden]; each row begins at its slot's next position.
            cache: read and written.
            slots: which slot each row continues; no slot twice.
            starts: the position at which each row begins, which is the slot's length so far. `start + width` may not exceed
                the cache's positions.

        Returns:
            Last hidden states, normed, [len(slots), width, hidden]. What stands behind a row's own width is no result.
        """
        place = self._place(rows, cache, slots, starts)
        for index, layer in enumerate(self.layers):
            rows = layer(rows, place, cache.keys[index], cache.values[index])
        return self.norm(rows)

    def _place(self, rows: Tensor, cache: SlotCache, slots: list[int], starts: list[int]) -> _Place:
        device, width = rows.device, rows.shape[1]
        end = max(starts) + width
        span = min(-(-end // _SPAN_STEP) * _SPAN_STEP, cache.positions)
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        visible = torch.arange(span, device=device) <= positions[..., None]
        half = torch.arange(0, self.sizes.head, 2, dtype=torch.float32, device=device) / self.sizes.head
        angles = positions.float()[..., None] * self.sizes.rope_theta**-half
        angles = torch.cat([angles, angles], dim=-1)[:, :, None]
        return _Place(
            slots=torch.tensor(slots, device=device),
            positions=positions,
            span=span,
            all_slots=slots == list(range(cache.slots)),
            visible=visible[:, None],
            cos=angles.cos().to(rows.dtype),
            sin=angles.sin().to(rows.dtype),
        )


def _rotated(heads: Tensor, place: _Place) -> Tensor:
    """Turn each head `[rows, width, heads, head]` by its position: the first half pairs with the second."""
    first, second = heads.chunk(2, dim=-1)
    return heads * place.cos + torch.cat([-second, first], dim=-1) * place.sin
