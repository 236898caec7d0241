"""Silero's network in an arrangement for batches: the same weights, every layer one matrix product over all frames.

Owns the layout of the published weight file and the arithmetic of the network at 16 kHz. Called by
:mod:`duplex_server.detectors.silero` when it loads. Must never be given a file but the one whose SHA-256 that module checks: the
places of the weights are those of that very file.

As published, the network's convolutions run frame by frame, each over at most four columns, which leaves the processor's vector
units idle: 57 µs of a core for a frame, in batches of any size. As matrix products over the columns of all frames the same takes
19 µs in batches of 8 and 17 in larger ones, and 61 instead of 117 for a frame alone.

The network (v6.2, https://github.com/snakers4/silero-vad): 576 samples, mirrored to 640; four windows of 256, 128 apart; the
magnitudes of their 129 frequencies; four convolutions of width 3 with a rectifier each; one LSTM cell; a rectifier, a weighted
sum, a sigmoid.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from duplex_server.detectors.onnx_graph import Graph

FRAME: Final = 512
"""Samples of a frame."""
MEMORY: Final = 320
"""Numbers that are remembered from frame to frame: the last 64 samples, the recurrent cell's output (128), its inside (128)."""

Floats = npt.NDArray[np.float32]

_PLACES: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "stft": (1015921, (258, 256)),
    "conv 1": (1280249, (128, 129, 3)),
    "bias 1": (1478516, (128,)),
    "conv 2": (1479163, (64, 128, 3)),
    "bias 2": (1577589, (64,)),
    "conv 3": (1577979, (64, 64, 3)),
    "bias 3": (1627253, (64,)),
    "conv 4": (1627644, (128, 64, 3)),
    "bias 4": (1726071, (128,)),
    "lstm input": (1726701, (512, 128)),
    "lstm memory": (1988963, (512, 128)),
    "lstm input bias": (2251214, (512,)),
    "lstm memory bias": (2253369, (512,)),
    "sum": (2255538, (128,)),
    "sum bias": (2256158, (1,)),
}
"""Name of a weight to its first byte in the file and its shape; all are float32, little endian, the last axis closest."""
_STRIDES: Final = (1, 2, 2, 1)
_COLUMNS: Final = 4
_MEMORY_PARTS: Final = (64, 128, 128)


def batched(file: bytes) -> bytes:
    """The network as an ONNX model for batches.

    Inputs: ``frames`` float32[N, 512] and ``memory`` float32[N, 320]. Outputs: ``probability`` float32[N, 1], and the memory
    after it.

    Args:
        file: The published weight file.
    """
    graph = Graph("silero")
    frames = graph.input("frames", FRAME)
    parts = graph.constant(_MEMORY_PARTS)
    graph.node("Split", graph.input("memory", MEMORY), parts, to=("before", "output before", "inside before"), axis=1)
    columns = _magnitudes(graph, _weight(file, "stft"), graph.node("Concat", "before", frames, axis=1))
    count = _COLUMNS
    for layer, stride in enumerate(_STRIDES, start=1):
        kernel = _weight(file, f"conv {layer}")
        rows = _windows(graph, columns, kernel, count, stride)
        count = (count - 1) // stride + 1
        columns = graph.node("Relu", _linear(graph, *rows, _weight(file, f"bias {layer}")))
    output, inside = _lstm(graph, file, columns)
    total = _linear(graph, graph.node("Relu", output), _weight(file, "sum")[:, None], _weight(file, "sum bias"))
    graph.node("Sigmoid", total, to=("probability",))
    graph.output("probability", 1)
    last = _slice(graph, frames, FRAME - _MEMORY_PARTS[0], FRAME)
    graph.output(graph.node("Concat", last, output, inside, axis=1), MEMORY)
    return graph.model()


def _weight(file: bytes, name: str) -> Floats:
    first, shape = _PLACES[name]
    return np.frombuffer(file, "<f4", math.prod(shape), first).reshape(shape)


def _linear(graph: Graph, rows: str, matrix: Floats, bias: Floats) -> str:
    return graph.node("Gemm", rows, graph.constant(matrix), graph.constant(bias))


def _slice(graph: Graph, values: str, begin: int, end: int, step: int = 1) -> str:
    """From ``begin`` to ``end`` along the second axis."""
    return graph.node("Slice", values, *(graph.constant([each]) for each in (begin, end, 1, step)))


def _magnitudes(graph: Graph, basis: Floats, samples: str) -> str:
    """float32[4 N, 129]: the magnitudes of the four windows of each."""
    half = basis.shape[1] // 2
    mirrored = graph.node("Pad", samples, graph.constant([0, 0, 0, 64]), mode="reflect")
    halves = graph.node("Reshape", mirrored, graph.constant([0, _COLUMNS + 1, half]))
    first, second = _slice(graph, halves, 0, _COLUMNS), _slice(graph, halves, 1, _COLUMNS + 1)
    windows = graph.node("Concat", first, second, axis=2)
    rows = graph.node("Reshape", windows, graph.constant([-1, 2 * half]))
    waves = graph.node("MatMul", rows, graph.constant(basis.T))
    graph.node("Split", graph.node("Mul", waves, waves), to=("real", "imaginary"), axis=1)
    return graph.node("Sqrt", graph.node("Add", "real", "imaginary"))


def _windows(graph: Graph, rows: str, kernel: Floats, columns: int, stride: int) -> tuple[str, Floats]:
    """What a kernel of width 3 lies over at each place, and the kernel as a matrix: their product is the convolution.

    It is padded by one on either side. Between the layers a row is a column; the ``columns`` of a frame are neighbours.
    """
    outputs, inputs, width = kernel.shape
    if columns <= stride:  # the only place, where nothing is under the first tap
        matrix = kernel[:, :, 1 : columns + 1].transpose(2, 1, 0).reshape(-1, outputs)
    else:
        matrix = kernel.transpose(2, 1, 0).reshape(-1, outputs)
        frames = graph.node("Reshape", rows, graph.constant([-1, columns, inputs]))
        padded = graph.node("Pad", frames, graph.constant([0, 1, 0, 0, 1, 0]))
        under = (_slice(graph, padded, tap, tap + columns, stride) for tap in range(width))
        rows = graph.node("Concat", *under, axis=2)
    return graph.node("Reshape", rows, graph.constant([-1, len(matrix)])), matrix


def _lstm(graph: Graph, file: bytes, columns: str) -> tuple[str, str]:
    """One step of the cell: its output, and its inside then. Its gates in the file: input, forget, cell, output."""
    order = np.r_[0:256, 384:512, 256:384]  # those that a sigmoid opens side by side
    weights = np.concatenate((_weight(file, "lstm input"), _weight(file, "lstm memory")), axis=1)[order]
    bias = (_weight(file, "lstm input bias") + _weight(file, "lstm memory bias"))[order]
    gates = _linear(graph, graph.node("Concat", columns, "output before", axis=1), weights.T, bias)
    graph.node("Split", gates, graph.constant([384, 128]), to=("opened", "new"), axis=1)
    graph.node("Split", graph.node("Sigmoid", "opened"), to=("write", "keep", "show"), axis=1)
    kept = graph.node("Mul", "keep", "inside before")
    written = graph.node("Mul", "write", graph.node("Tanh", "new"))
    inside = graph.node("Add", kept, written)
    output = graph.node("Mul", "show", graph.node("Tanh", inside))
    return output, inside
