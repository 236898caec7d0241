"""A tensor as a value: type, shape and bytes, for payloads that go from one stage to another, also between processes.

Owns no arithmetic: whoever computes makes an array of its own library from it, without a copy where that library allows.
NumPy takes one through ``numpy.asarray`` (by the array interface); :mod:`duplex_core.torch_tensors` is for torch. Imports
neither.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

ITEM_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "uint8": 1,
    "bool": 1,
}
"""The element types that a tensor may have, and the bytes of one element."""
_TYPESTR = {
    "float32": "<f4",
    "float16": "<f2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "uint8": "|u1",
    "bool": "|b1",
}


class Tensor(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A dense tensor in row-major order, little endian.

    Attributes:
        dtype: a key of :data:`ITEM_BYTES`.
        shape: its sizes; empty for a scalar.
        data: its bytes; anything with the buffer protocol.

    Raises:
        ValueError: an unknown type, or bytes that do not fit the shape.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Any

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        size = ITEM_BYTES.get(self.dtype)
        if size is None:
            raise ValueError(f"a tensor has no type {self.dtype!r}; it may have: {', '.join(ITEM_BYTES)}")
        wanted = math.prod(self.shape) * size
        if memoryview(self.data).nbytes != wanted:
            given = memoryview(self.data).nbytes
            raise ValueError(f"a tensor of {self.dtype} {list(self.shape)} has {wanted} bytes, not {given}")

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return memoryview(self.data).nbytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What NumPy reads; an array made from it shares these bytes.

        Raises:
            AttributeError: bfloat16, which NumPy does not know.
        """
        typestr = _TYPESTR.get(self.dtype)
        if typestr is None:
            raise AttributeError(f"NumPy has no {self.dtype}; take it as torch's, or as raw bytes from .data")
        return {"version": 3, "typestr": typestr, "shape": self.shape, "data": memoryview(self.data).cast("B")}

    def __eq__(self, other: object) -> bool:
        """Equal in type, shape and every bit."""
        if not isinstance(other, Tensor):
            return NotImplemented
        same = (self.dtype, self.shape) == (other.dtype, other.shape)
        return same and memoryview(self.data).cast("B") == memoryview(other.data).cast("B")

    def __hash__(self) -> int:
        """By type and shape only."""
        return hash((self.dtype, self.shape))
