"""What contexts are laid out with: the checkpoint's tokens and tokenizer, and positions put together for one append.

Owns: how text and embeddings become positions. Called by: the thinker's programs. Never: computes with weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch

from duplex_core.tensors import Tensor
from duplex_core.torch_tensors import as_torch, of_torch
from duplex_core.workers import Append, Sampling
from model_minicpmo.gpu.tokenizer import load_tokenizer
from model_minicpmo.tokens import SpecialTokens, read_special_tokens


class Layout:
    """What all contexts of a checkpoint are laid out with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens: SpecialTokens = read_special_tokens(folder)
        self.tokenizer = load_tokenizer(str(folder))
        self.special = frozenset((*self.tokenizer.all_special_ids, *self.tokens.named().values()))

    def encode(self, text: str) -> list[int]:
        """Give the ids of `text`, in which the names of special tokens are those tokens."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Give the text of `ids`, special tokens left out."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


class Feed:
    """Positions that are put together for one append: ids, and embeddings where they stand."""

    def __init__(self, unknown: int) -> None:
        self._unknown = unknown
        self.ids: list[int] = []
        self._at: list[int] = []
        self._rows: list[torch.Tensor] = []

    def tokens(self, *ids: int) -> Self:
        """Add tokens."""
        self.ids += ids
        return self

    def embeddings(self, rows: Tensor) -> Self:
        """Add embeddings, [n, hidden]."""
        values = as_torch(rows)
        self._at += range(len(self.ids), len(self.ids) + len(values))
        self.ids += [self._unknown] * len(values)
        self._rows.append(values)
        return self

    def append(self, sampling: Sampling, **more: Any) -> Append:
        """Make the append."""
        embeds = of_torch(torch.cat(self._rows)) if self._rows else None
        return Append(ids=self.ids, embeds=embeds, embed_at=self._at, sampling=sampling, **more)
