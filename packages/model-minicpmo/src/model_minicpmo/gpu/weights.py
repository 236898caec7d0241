"""How tensors read from a checkpoint become a module's: weight norm is folded away, names and shapes are held to.

Owns: that step, for the parts whose weights are stored under weight norm or in `.pt` files. Called by: the talker and
token2wav. Never: opens a file, or leaves a parameter of the module without a tensor of the checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrizations

from model_minicpmo.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from torch import Tensor

# How the two halves of a weight under weight norm are called, in what was published: (length, direction).
_WEIGHT_NORM_SUFFIXES = (
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    (".weight_g", ".weight_v"),
)


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Give the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def fold_weight_norm(tensors: Mapping[str, Tensor], *, path: Path) -> dict[str, Tensor]:
    """Give the tensors with each pair of weight norm replaced by the weight that it stands for.

    A weight under weight norm is stored as its lengths `g`, one per first index, and its directions `v`; the weight is
    `g · v / ‖v‖`, the norm taken over all indices but the first. Both spellings of the names that torch has had are
    known.

    Args:
        tensors: names to tensors, as a file holds them.
        path: that file, for messages.

    Returns:
        Names to tensors, with `NAME.weight` instead of each pair.

    Raises:
        CheckpointError: half of a pair is missing.
    """
    folded = dict(tensors)
    for length_suffix, direction_suffix in _WEIGHT_NORM_SUFFIXES:
        for name in [name for name in folded if name.endswith(direction_suffix)]:
            stem = name.removesuffix(direction_suffix)
            direction, length = folded.pop(name), folded.pop(stem + length_suffix, None)
            if length is None:
                raise CheckpointError(path, f"has the tensor {name} and lacks {stem}{length_suffix}, its other half")
            folded[stem + ".weight"] = _weight(length.float(), direction.float()).to(direction.dtype)
    return folded


def fill(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    path: Path,
    device: torch.device | str,
    dtype: torch.dtype,
    unused: Collection[str] = (),
) -> None:
    """Give every parameter of a module built on the `meta` device its tensor, and make the module ready for inference.

    Args:
        module: its parameters carry the names of the tensors.
        tensors: names to tensors.
        path: the file that they are of, for messages.
        device: where the parameters are to live.
        dtype: what they are to be.
        unused: beginnings of names which the file may have and the module does not.

    Raises:
        CheckpointError: tensors are missing or unexpected, or have another shape; each is named.
    """
    parameters = dict(module.named_parameters())
    missing = sorted(parameters.keys() - tensors.keys())
    unexpected = [name for name in sorted(tensors.keys() - parameters.keys()) if not name.startswith(tuple(unused))]
    wrong = [
        f"{name} is {list(tensors[name].shape)} instead of {list(parameter.shape)}"
        for name, parameter in parameters.items()
        if name in tensors and tensors[name].shape != parameter.shape
    ]
    problems = [
        f"{word}: {_few(names)}"
        for word, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", wrong))
        if names
    ]
    if problems:
        raise CheckpointError(path, f"tensors do not fit the configuration; {'; '.join(problems)}")
    state = {name: tensors[name].to(device=device, dtype=dtype) for name in parameters}
    module.load_state_dict(state, strict=True, assign=True)
    module.requires_grad_(requires_grad=False)
    module.eval()


def _weight(length: Tensor, direction: Tensor) -> Tensor:
    """Give the weight of one pair, by torch's own arithmetic to the last bit.

    The vocoder's phase is a sum over thousands of turns and shows every rounding of the pitch.
    """
    holder = nn.Module()
    holder.weight = nn.Parameter(torch.empty_like(direction))
    parametrizations.weight_norm(holder, "weight")
    with torch.no_grad():
        pair = holder.parametrizations["weight"]
        pair.original0.copy_(length)
        pair.original1.copy_(direction)
        return holder.weight.detach()


def _few(names: list[str], most: int = 6) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
