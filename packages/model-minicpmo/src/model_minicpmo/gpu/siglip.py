"""The SigLIP encoder of MiniCPM-o, for pictures of any shape, and the resampler behind it.

Owns: the modules, named as the checkpoint's tensors under `vpm.` and `resampler.` are, and where a patch lies in the grid of
learnt positions.
Called by: the vision front end.
Never: knows what a picture or a token is.

transformers has this encoder as Idefics2's, for whole pictures; it serves as the oracle in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_minicpmo.config import VisionConfig
from model_minicpmo.gpu.activations import activation
from model_minicpmo.gpu.tables import table

Grid = tuple[int, int]
"""Rows and columns of patches."""


class Embeddings(nn.Module):
    """Patches to vectors, with learnt positions; a patch takes that of the cell of the learnt grid in which it lies.

    Args:
        config: The encoder's sizes.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.side = config.image_size // config.patch_size
        self.patch_embedding = nn.Conv2d(
            config.num_channels, config.hidden_size, kernel_size=config.patch_size, stride=config.patch_size
        )
        self.position_embedding = table(self.side**2, config.hidden_size)

    def forward(self, strips: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Embed strips of patches [views, 3, patch, patch · longest], each of which has rows · columns patches in front.

        Returns:
            [views, longest, size].
        """
        patches = self.patch_embedding(strips).squeeze(2).transpose(1, 2)
        places = torch.zeros(patches.shape[:2], dtype=torch.long)
        for row, (rows, columns) in enumerate(grids):
            cells = self.cells(rows)[:, None] * self.side + self.cells(columns)
            places[row, : rows * columns] = cells.flatten()
        positioned: Tensor = patches + self.position_embedding(places.to(patches.device))
        return positioned

    def cells(self, count: int) -> Tensor:
        """Tell for each of `count` patches along one side into which of the learnt cells it falls, int64 [count].

        Some patches begin on the very edge of a cell, where rounding decides; so the step is a float32, as in the vendor's code.
        Other implementations round otherwise and put such a patch into the cell beside.
        """
        edges = torch.arange(1 / self.side, 1.0, 1 / self.side)
        step = float(1 / torch.tensor(count))
        return torch.bucketize(torch.arange(0, 1 - 1e-6, step), edges, right=True)


class Attention(nn.Module):
    """Self-attention over the patches of a view.

    Args:
        config: The encoder's sizes.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(config.hidden_size, config.hidden_size))

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Mix [views, patches, size]; `mask` is True where there is a patch to see."""
        queries, keys, values = (
            self.get_submodule(name)(hidden).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        joined: Tensor = self.get_submodule("out_proj")(mixed.transpose(1, 2).flatten(2))
        return joined


class Mlp(nn.Module):
    """Two linear maps.

    Args:
        config: The encoder's sizes.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = activation(config.hidden_act)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [views, patches, size] to the same shape."""
        mapped: Tensor = self.fc2(self.activation(self.fc1(hidden)))
        return mapped


class Layer(nn.Module):
    """One layer: attention, then the linear maps, each after a norm and added to what came in.

    Args:
        config: The encoder's sizes.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.self_attn = Attention(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = Mlp(config)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Map [views, patches, size] to the same shape."""
        hidden = hidden + self.self_attn(self.layer_norm1(hidden), mask)
        mapped: Tensor = hidden + self.mlp(self.layer_norm2(hidden))
        return mapped


class Encoder(nn.Module):
    """The layers in order.

    Args:
        config: The encoder's sizes.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Map [views, patches, size] to the same shape."""
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden


class VisionEncoder(nn.Module):
    """The whole encoder, `vpm.`.

    Args:
        config: The encoder's sizes.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, strips: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Encode strips of patches [views, 3, patch, patch · longest] to [views, longest, size]; see `Embeddings.forward`."""
        mask = _filled(grids, strips.device)
        hidden = self.encoder(self.embeddings(strips, grids), None if mask is None else mask[:, None, None, :])
        normed: Tensor = self.post_layernorm(hidden)
        return normed


class Resampler(nn.Module):
    """A fixed number of learnt queries that look at the patches of a view, `resampler.`.

    Args:
        queries: How many embeddings a view becomes.
        size: The language model's size; the heads have 128 of it each.
        patches_size: The encoder's size.
    """

    def __init__(self, *, queries: int, size: int, patches_size: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(queries, size))
        self.proj = nn.Parameter(torch.zeros(size, size))
        self.kv_proj = nn.Linear(patches_size, size, bias=False)
        self.attn = nn.MultiheadAttention(size, size // 128)
        self.ln_q = nn.LayerNorm(size, eps=1e-6)
        self.ln_kv = nn.LayerNorm(size, eps=1e-6)
        self.ln_post = nn.LayerNorm(size, eps=1e-6)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Turn encoded patches [views, longest, encoder size] into [views, queries, size]."""
        values = self.ln_kv(self.kv_proj(patches)).transpose(0, 1)
        positions = torch.zeros_like(values)
        for row, (rows, columns) in enumerate(grids):
            positions[: rows * columns, row] = position_waves(rows, columns, like=values)
        filled = _filled(grids, patches.device)
        queries = self.ln_q(self.query)[:, None].expand(-1, patches.shape[0], -1)
        mixed, _ = self.attn(
            queries,
            values + positions,
            values,
            key_padding_mask=None if filled is None else ~filled,
            need_weights=False,
        )
        resampled: Tensor = self.ln_post(mixed.transpose(0, 1)) @ self.proj
        return resampled


def position_waves(rows: int, columns: int, *, like: Tensor) -> Tensor:
    """Give each cell of a grid its place as sines and cosines: first those of its column, then those of its row.

    Args:
        rows: Rows of the grid.
        columns: Columns of the grid.
        like: A tensor whose last axis is as long as a place is to be, and of the type and device wanted.

    Returns:
        [rows · columns, size], row by row.
    """
    half = like.shape[-1] // 2
    speeds = 1.0 / 10_000 ** (torch.arange(half // 2, dtype=torch.float32) / (half / 2))
    phases = [torch.arange(count)[:, None] * speeds for count in (columns, rows)]
    across, down = (torch.cat([phase.sin(), phase.cos()], dim=1).to(like) for phase in phases)
    places = [across[None].expand(rows, columns, half), down[:, None].expand(rows, columns, half)]
    return torch.cat(places, dim=2).reshape(rows * columns, 2 * half)


def _filled(grids: Sequence[Grid], device: torch.device) -> Tensor | None:
    """Tell where views have patches, bool [views, longest]; None when all have equally many."""
    counts = [rows * columns for rows, columns in grids]
    if len(set(counts)) == 1:
        return None
    return torch.arange(max(counts), device=device) < torch.tensor(counts, device=device)[:, None]
