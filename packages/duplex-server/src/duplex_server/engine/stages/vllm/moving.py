"""Moves keys and values from one place of a paged KV cache to another, the keys rotated to their new positions.

Owns the arithmetic, and the finding out of how an attention backend lays out its blocks: it writes known numbers by the backend's
own means and looks where they are. Called by :mod:`.platform` in the engine's process, between two steps. Must never know vLLM,
a request, or which positions are whose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Writes keys and values ``[n, heads, size]`` into a cache at slots ``[n]``: ``write(keys, values, cache, slots)``."""

_BASE = 128
"""Numbers up to this are exact in every type that a cache is moved in."""


class CannotMove(ValueError):
    """The keys and values of this model, or in this cache, cannot be moved; the message says why."""


class Rotation(NamedTuple):
    """How a model rotates its keys: radians a position for each pair, and which numbers of a head make a pair."""

    frequencies: torch.Tensor
    halves: bool

    def turned(self, keys: torch.Tensor, by: int) -> torch.Tensor:
        """Keys ``[n, heads, size]``, moved ``by`` positions."""
        angles = self.frequencies.double() * by
        cos, sin = angles.cos().float().to(keys.device), angles.sin().float().to(keys.device)
        width = 2 * len(self.frequencies)
        part, rest = keys[..., :width].float(), keys[..., width:]
        if self.halves:
            first, second = part.chunk(2, dim=-1)
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        else:
            first, second = part[..., ::2], part[..., 1::2]
            turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
        return torch.cat((turned.to(keys.dtype), rest), dim=-1)


class Layout:
    """Where the numbers of keys and values are within a block of a cache ``[blocks, ...]``."""

    def __init__(self, cache: torch.Tensor, write: Write, *, block: int, heads: int, size: int) -> None:
        """Find out how ``write`` fills blocks of ``block`` positions.

        Raises:
            CannotMove: it keeps something else than the numbers that it is given.
        """
        count = block * heads * size
        self._block = block
        ids = torch.arange(2 * count)
        places = torch.zeros(cache[:1].numel(), dtype=torch.long)
        written = torch.zeros(len(places), dtype=torch.bool)
        slots = torch.arange(block, device=cache.device)
        power = 1
        while power < 2 * count:
            digits = (ids // power % _BASE + 1).to(cache.dtype).to(cache.device)
            keys, values = digits.reshape(2, block, heads, size)
            scratch = torch.zeros_like(cache[:1])
            write(keys.contiguous(), values.contiguous(), scratch, slots)
            found = scratch.reshape(-1).cpu()
            written = found != 0
            places += torch.where(written, (found.double().round().long() - 1) * power, 0)
            power *= _BASE
        at = torch.full((2 * count,), -1)
        inside = written & (places >= 0) & (places < 2 * count)
        at[places[inside]] = inside.nonzero().flatten()
        if int(written.sum()) != 2 * count or bool((at < 0).any()):
            raise CannotMove("the attention backend does not keep keys and values as they are")
        self._keys, self._values = at.to(cache.device).reshape(2, block, heads, size)

    def read(self, cache: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[n, heads, size]`` at ``slots`` ``[n]``."""
        blocks, rows = torch.unique(slots // self._block, return_inverse=True)
        flat = cache[blocks].reshape(len(blocks), -1)
        places = slots % self._block
        return flat[rows[:, None, None], self._keys[places]], flat[rows[:, None, None], self._values[places]]


class Cached(NamedTuple):
    """One layer's cache, how its blocks are laid out, and how it is written."""

    cache: torch.Tensor
    layout: Layout
    write: Write

    def move(self, rotation: Rotation, source: torch.Tensor, target: torch.Tensor, by: int) -> None:
        """Move what is at the slots ``source`` to ``target``, ``by`` positions on."""
        device = self.cache.device
        keys, values = self.layout.read(self.cache, source.to(device))
        turned = rotation.turned(keys, by).contiguous()
        self.write(turned, values.contiguous(), self.cache, target.to(device))
