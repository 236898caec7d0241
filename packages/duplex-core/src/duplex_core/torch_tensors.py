"""From torch to :class:`~duplex_core.tensors.Tensor` and back, for workers that compute with torch.

Imports torch, and is therefore imported by nothing in this package: only by the parts of a model package and of a server that
run in a stage's worker process.
"""

from __future__ import annotations

import torch

from duplex_core.tensors import ITEM_BYTES, Tensor

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}
_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in _DTYPES.items()}


def as_torch(tensor: Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """The same values as torch's tensor on ``device``.

    On the CPU it shares the bytes when they may be written to (received ones may); else it is a copy.
    """
    data = memoryview(tensor.data)
    if not data.nbytes:
        return torch.empty(tensor.shape, dtype=_DTYPES[tensor.dtype], device=device)
    if data.readonly:
        data = memoryview(bytearray(data))
    flat = torch.frombuffer(data, dtype=_DTYPES[tensor.dtype])
    return flat.reshape(tensor.shape).to(device)


def of_torch(values: torch.Tensor) -> Tensor:
    """``values`` as a value that can be sent; one on the CPU that is contiguous shares its memory, so leave it alone.

    Raises:
        ValueError: an element type that a tensor may not have.
    """
    name = _NAMES.get(values.dtype)
    if name is None:
        raise ValueError(f"a tensor may not have the type {values.dtype}; it may have: {', '.join(ITEM_BYTES)}")
    flat = values.detach().to("cpu").contiguous()
    data = flat.reshape(-1).view(torch.uint8).numpy() if flat.numel() else b""
    return Tensor(dtype=name, shape=tuple(flat.shape), data=memoryview(data))
