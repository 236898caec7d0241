"""Payloads as bytes and back, with the contents of their tensors beside them.

A payload belongs to the type that its stage names in ``payloads``. The bytes of a :class:`~duplex_core.tensors.Tensor` are never
put into the encoding: they stay where they are, and the encoding has the place of each among the buffers that go with it. Used by
both ends. Must never use pickle, or import what a payload does not name.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import msgspec

from duplex_core.stages import StageSpec
from duplex_core.tensors import Tensor
from duplex_server.engine.stages.loading import StageLoadError, describe, resolve
from duplex_server.engine.stages.processes.framing import Buffer

_BUFFER = 1
"""The code of the extension type that stands for a tensor's bytes."""


class PayloadError(ValueError):
    """A payload cannot be sent, or what came is not of the stage's type; the message says how."""


class Payloads:
    """The payloads of one stage."""

    def __init__(self, spec: StageSpec) -> None:
        """Find the type of the payloads of ``spec``.

        Raises:
            StageLoadError: it names none, the path is wrong, or what it names is no type that can be sent.
        """
        if not spec.payloads:
            raise StageLoadError(
                "its work goes to another process, so the plan must say what it is: set payloads to the import path of a type"
            )
        kind = resolve("payloads type", spec.payloads)
        self._buffers: Sequence[bytearray] = ()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_refuse)
        try:
            self._decoder = msgspec.msgpack.Decoder(kind | None, ext_hook=self._buffer)
            known = not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
        except TypeError as exc:
            raise StageLoadError(f"its payloads type {spec.payloads} cannot be sent: {describe(exc)}") from exc
        if not known:
            raise StageLoadError(
                f"its payloads type {spec.payloads} cannot be sent: it is no Struct, no dataclass and no type of JSON's; "
                "make it a msgspec.Struct"
            )

    def encode(self, payload: Any, buffers: list[Buffer]) -> msgspec.Raw:
        """The encoding of ``payload``, which may be ``None``; the bytes of its tensors are added to ``buffers``.

        Raises:
            PayloadError: it holds something that cannot be sent.
        """
        try:
            return msgspec.Raw(self._encoder.encode(_without_bytes(payload, buffers)))
        except (TypeError, ValueError, OverflowError) as exc:
            raise PayloadError(f"a {type(payload).__name__} cannot be sent: {exc}") from exc

    def decode(self, encoded: msgspec.Raw, buffers: Sequence[bytearray]) -> Any:
        """The payload again; its tensors share the memory of ``buffers``, and may be written to.

        Raises:
            PayloadError: what was sent is not of the stage's type.
        """
        self._buffers = buffers
        try:
            return self._decoder.decode(encoded)
        except (msgspec.DecodeError, ValueError, IndexError) as exc:
            raise PayloadError(str(exc)) from exc
        finally:
            self._buffers = ()

    def _buffer(self, code: int, data: memoryview) -> bytearray:
        if code != _BUFFER:
            raise ValueError(f"there is no extension type {code}")
        return self._buffers[int.from_bytes(data, "little")]


def _refuse(value: Any) -> Any:
    kind = type(value)
    advice = ""
    if hasattr(value, "__array__"):
        advice = "; make it a duplex_core.tensors.Tensor (duplex_core.torch_tensors.of_torch does for torch)"
    raise TypeError(f"it holds a {kind.__module__}.{kind.__qualname__}{advice}")


class _Place(msgspec.Struct):
    """What is encoded of a tensor: the same fields, with the number of its buffer for its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: msgspec.msgpack.Ext


def _without_bytes(value: Any, buffers: list[Buffer]) -> Any:
    """``value`` itself, or, where there are tensors in it, its like without their bytes."""
    if isinstance(value, Tensor):
        place = msgspec.msgpack.Ext(_BUFFER, len(buffers).to_bytes(4, "little"))
        buffers.append(_flat(value.data))
        return _Place(value.dtype, value.shape, place)
    if isinstance(value, msgspec.Struct):
        twin = None
        for name in value.__struct_fields__:
            held = getattr(value, name)
            other = _without_bytes(held, buffers)
            if other is not held:
                twin = (
                    copy.copy(value) if twin is None else twin
                )  # only ever encoded: what it checks of itself is not asked
                msgspec.structs.force_setattr(twin, name, other)
        return value if twin is None else twin
    if isinstance(value, tuple | list):
        others = [_without_bytes(each, buffers) for each in value]
        return others if any(a is not b for a, b in zip(others, value, strict=True)) else value
    if isinstance(value, dict):
        named = {key: _without_bytes(each, buffers) for key, each in value.items()}
        return named if any(named[key] is not each for key, each in value.items()) else value
    return value


def _flat(data: Any) -> Buffer:
    view = memoryview(data)
    if not view.nbytes:
        return b""
    return (view if view.c_contiguous else memoryview(view.tobytes())).cast("B")
