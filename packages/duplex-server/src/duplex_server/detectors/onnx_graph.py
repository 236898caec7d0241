"""ONNX graphs written from scratch: the few messages of the format that a chain of operators needs.

Owns the encoding and nothing of any network. Called by a detector that wants its weights run in another arrangement than the one
that they were published in. Must never be used to read a file: what it writes goes straight to onnxruntime, which checks it.

The format is that of `onnx.proto` (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto); the numbers below are its fields'.
"""

import numpy as np
import numpy.typing as npt

Attribute = int | str | tuple[int, ...]

_IR_VERSION = 8
_OPSET = 17
_TYPES = {np.dtype("<f4"): 1, np.dtype("<i4"): 6, np.dtype("<i8"): 7}


class Graph:
    """A graph that is being written. Values are referred to by name; float32 all through, but for whole numbers."""

    def __init__(self, name: str) -> None:
        """Begin with nothing in it."""
        self._name = name
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []

    def input(self, name: str, *shape: int | str, kind: str = "<f4") -> str:
        """Declare an input of a shape, in which a name stands for any size, and a kind, as numpy writes it. Its name."""
        self._inputs.append(_value(name, shape, kind))
        return name

    def output(self, name: str, *shape: int | str) -> None:
        """Declare that a value is an output, float32 of a shape."""
        self._outputs.append(_value(name, shape, "<f4"))

    def constant(self, values: npt.ArrayLike) -> str:
        """Add a constant, float32 or, from whole numbers, int64. The name that it got."""
        array = np.asarray(values)
        array = array.astype("<i8" if array.dtype.kind == "i" else "<f4")
        name = f"constant {len(self._constants)}"
        dims = b"".join(_number(1, size) for size in array.shape)
        kind = _number(2, _TYPES[array.dtype])
        self._constants.append(dims + kind + _bytes(8, name.encode()) + _bytes(9, array.tobytes()))
        return name

    def node(self, operator: str, *inputs: str, to: tuple[str, ...] = (), **attributes: Attribute) -> str:
        """Add an operator. Its first output's name, which is made up unless ``to`` names the outputs."""
        outputs = to or (f"{operator} {len(self._nodes)}",)
        node = b"".join(_bytes(1, name.encode()) for name in inputs)
        node += b"".join(_bytes(2, name.encode()) for name in outputs)
        node += _bytes(4, operator.encode())
        node += b"".join(_bytes(5, _attribute(name, value)) for name, value in attributes.items())
        self._nodes.append(node)
        return outputs[0]

    def model(self) -> bytes:
        """The whole, as a model file."""
        graph = b"".join(_bytes(1, node) for node in self._nodes) + _bytes(2, self._name.encode())
        graph += b"".join(_bytes(5, constant) for constant in self._constants)
        graph += b"".join(_bytes(11, each) for each in self._inputs)
        graph += b"".join(_bytes(12, each) for each in self._outputs)
        return _number(1, _IR_VERSION) + _bytes(7, graph) + _bytes(8, _number(2, _OPSET))


def _value(name: str, shape: tuple[int | str, ...], kind: str) -> bytes:
    sizes = (_number(1, size) if isinstance(size, int) else _bytes(2, size.encode()) for size in shape)
    tensor = _number(1, _TYPES[np.dtype(kind)]) + _bytes(2, b"".join(_bytes(1, size) for size in sizes))
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def _attribute(name: str, value: Attribute) -> bytes:
    start = _bytes(1, name.encode())
    if isinstance(value, int):
        return start + _number(3, value) + _number(20, 2)
    if isinstance(value, str):
        return start + _bytes(4, value.encode()) + _number(20, 3)
    return start + b"".join(_number(8, each) for each in value) + _number(20, 7)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
