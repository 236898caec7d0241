"""The activations that configurations name.

Owns: those names. Called by: the encoders. Never: imports transformers for them, which takes longer than all else that the senses
load.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

_KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Give the function that transformers knows by a name.

    Raises:
        ValueError: None of the published configurations has such a name.
    """
    if name not in _KNOWN:
        raise ValueError(f"no activation {name!r} is known here, only {', '.join(_KNOWN)}; config.json names it")
    return _KNOWN[name]
