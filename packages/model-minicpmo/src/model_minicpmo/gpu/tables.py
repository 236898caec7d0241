"""Embedding tables whose contents are still to be loaded.

Owns: that. Called by: the modules of every stage. Never: draws first values: on the device `meta` that alone would load a
compiler, which takes as long as all else that a stage loads.
"""

from __future__ import annotations

import torch
from torch import nn


def table(rows: int, size: int) -> nn.Embedding:
    """Make an embedding of [rows, size] on the current device, without contents."""
    return nn.Embedding.from_pretrained(torch.empty(rows, size), freeze=False)
