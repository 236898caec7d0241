"""The Whisper encoder of MiniCPM-o, for streams whose past stays in a cache, and for whole clips.

Owns: the encoder's modules, named as the checkpoint's tensors under `apm.` are, and what attends to what: a position sees its own
second and all before it.
Called by: the audio front end.
Never: decides when a cache is cleared, or keeps one: each stream's cache is its caller's.

transformers has this encoder without a cache; it serves as the oracle in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_minicpmo.config import AudioConfig
from model_minicpmo.gpu.activations import activation
from model_minicpmo.gpu.tables import table


class KvCache:
    """The keys and values of one stream, in one block of memory that is taken once.

    Args:
        config: The encoder's sizes.
        like: A tensor of the type, and on the device, that the cache is to have.

    Attributes:
        store: [layers, 2 (keys, values), heads, positions, head size].
    """

    def __init__(self, config: AudioConfig, like: Tensor) -> None:
        heads = config.encoder_attention_heads
        shape = (config.encoder_layers, 2, heads, config.max_source_positions, config.d_model // heads)
        self.store = like.new_zeros(shape)

    @property
    def positions(self) -> int:
        """How many positions fit."""
        return self.store.shape[3]


class Attention(nn.Module):
    """Whisper's self-attention; the keys have no bias.

    Args:
        config: The encoder's sizes.
    """

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.heads = config.encoder_attention_heads
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.k_proj = nn.Linear(config.d_model, config.d_model, bias=False)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give queries, keys and values, each [batch, heads, positions, head size], of `hidden` [batch, positions, size]."""
        batch, length, _ = hidden.shape
        queries, keys, values = (
            linear(hidden).view(batch, length, self.heads, -1).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        return queries, keys, values

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Mix the values into [batch, queries, size]; `mask` is True where a query sees a key, None where each sees all."""
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        joined: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return joined


class Layer(nn.Module):
    """One layer: attention, then two linear maps, each after a norm and added to what came in.

    Args:
        config: The encoder's sizes.
    """

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.self_attn = Attention(config)
        self.final_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)
        self.activation = activation(config.activation_function)

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """Apply the second half of the layer, [batch, positions, size] in and out."""
        added: Tensor = self.fc2(self.activation(self.fc1(self.final_layer_norm(hidden))))
        return hidden + added


class WhisperEncoder(nn.Module):
    """The encoder: two convolutions, the second of which halves the rate, then layers of attention.

    Args:
        config: The encoder's sizes.
    """

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv1d(config.num_mel_bins, config.d_model, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(config.d_model, config.d_model, kernel_size=3, stride=2, padding=1)
        self.embed_positions = table(config.max_source_positions, config.d_model)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(config.d_model)

    def convolve(self, mel: Tensor) -> Tensor:
        """Halve the rate of mel frames: float [batch, bins, frames] gives [batch, (frames + 1) // 2, size]."""
        mel = mel.to(device=self.conv1.weight.device, dtype=self.conv1.weight.dtype)
        return F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)

    def continue_streams(self, frames: Tensor, caches: Sequence[KvCache], lengths: Sequence[int]) -> Tensor:
        """Encode the next positions of several streams at once; each sees its own past and all of what is new to it.

        Their keys and values are written into the caches from `lengths` on. A failed call leaves the positions before untouched.

        Args:
            frames: What `convolve` gave, without what belongs to the neighbouring units, [streams, positions, size].
            caches: Each stream's cache.
            lengths: How many positions of each cache are filled.

        Returns:
            [streams, positions, size].

        Raises:
            ValueError: A cache has not so many positions left.
        """
        new = frames.shape[1]
        ends = [length + new for length in lengths]
        for cache, end in zip(caches, ends, strict=True):
            if end > cache.positions:
                raise ValueError(
                    f"a stream would have {end} positions; the encoder knows {cache.positions}: reset it before"
                )
        places = torch.tensor(lengths, device=frames.device)[:, None] + torch.arange(new, device=frames.device)
        hidden = frames + self.embed_positions(places)
        mask = _past_mask(ends, frames.device)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            queries, keys, values = layer.self_attn.project(layer.self_attn_layer_norm(hidden))
            for row, (cache, end) in enumerate(zip(caches, ends, strict=True)):
                cache.store[index, 0, :, end - new : end] = keys[row]
                cache.store[index, 1, :, end - new : end] = values[row]
            past = _gathered([cache.store[index] for cache in caches], ends)
            hidden = hidden + layer.self_attn.attend(queries, past[:, 0], past[:, 1], mask)
            hidden = layer.feed_forward(hidden)
        normed: Tensor = self.layer_norm(hidden)
        return normed

    def encode_clip(self, mel: Tensor, *, block: int) -> Tensor:
        """Encode a whole clip; a position sees all blocks before its own, and its own.

        Args:
            mel: float [1, bins, frames], at most 3000 frames for the published sizes.
            block: Positions of a block: 50 for a second.

        Returns:
            [1, (frames + 1) // 2, size].
        """
        frames = self.convolve(mel)
        blocks = torch.arange(frames.shape[1], device=frames.device) // block
        mask = blocks[None, :] <= blocks[:, None]
        hidden = frames + self.embed_positions.weight[: frames.shape[1]]
        for layer in self.layers:
            assert isinstance(layer, Layer)
            queries, keys, values = layer.self_attn.project(layer.self_attn_layer_norm(hidden))
            hidden = layer.feed_forward(hidden + layer.self_attn.attend(queries, keys, values, mask))
        normed: Tensor = self.layer_norm(hidden)
        return normed


def _past_mask(ends: Sequence[int], device: torch.device) -> Tensor | None:
    """Tell which gathered keys a stream has, [streams, 1, 1, keys]; None when all have equally many."""
    if len(set(ends)) == 1:
        return None
    filled = torch.tensor(ends, device=device)
    return (torch.arange(max(ends), device=device) < filled[:, None])[:, None, None, :]


def _gathered(stores: Sequence[Tensor], ends: Sequence[int]) -> Tensor:
    """Put the filled parts of one layer's stores side by side: [streams, 2, heads, longest, head size]."""
    if len(stores) == 1:
        return stores[0][None, :, :, : ends[0]]
    longest = max(ends)
    gathered = stores[0].new_zeros((len(stores), *stores[0].shape[:2], longest, stores[0].shape[3]))
    for row, (store, end) in enumerate(zip(stores, ends, strict=True)):
        gathered[row, :, :, :end] = store[:, :, :end]
    return gathered
