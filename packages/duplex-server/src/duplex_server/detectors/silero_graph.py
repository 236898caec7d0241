"""Silero's network in an arrangement for batches: the same weights, every layer one matrix product over all frames.

Owns the layout of the published weight file and the arithmetic of the network at 16 kHz. Called by
:mod:`duplex_server.detectors.silero` when it loads. Must never be given a file but the one whose SHA-256 that module checks: the
places of the weights are those of that very file.

As published, the network's convolutions run frame by frame, each over at most four columns, which leaves the processor's vector
units idle: 57 µs of a core for a frame, in batches of any size, and 117 for a frame alone. As matrix products over the columns of
all frames the same takes 15 µs in batches of 24 frames and 13 in larger ones, 35 for three frames of one session, and 80 for one.

What comes before the recurrent cell remembers nothing, so several frames of one session go through it side by side: that is four
fifths of the work.

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
CONTEXT: Final = 64
"""Samples before a frame that the network hears with it."""

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
_HIDDEN: Final = 128
_WINDOW: Final = 256
_FREQUENCIES: Final = _WINDOW // 2 + 1


def batched(file: bytes) -> bytes:
    """The network as an ONNX model for some frames of each of N sessions, M frames in all.

    Inputs:
        ``samples`` float32[M, 576]: the 64 samples before each frame, and the frame.
        ``places`` int64[S, N]: which row is each session's first, second and so on. A session that has fewer than S frames has
        any row for the others.
        ``counts`` int32[N]: how many frames each session has, at least one.
        ``memory`` float32[N, 256]: the recurrent cells' outputs, and their insides.

    Outputs: ``probability`` float32[S, N], without meaning where a session has no frame, and the memory after its last.

    Args:
        file: The published weight file.
    """
    graph = Graph("silero")
    columns = _magnitudes(graph, _weight(file, "stft"), graph.input("samples", "M", CONTEXT + FRAME))
    count = _COLUMNS
    for layer, stride in enumerate(_STRIDES, start=1):
        kernel = _weight(file, f"conv {layer}")
        rows = _windows(graph, columns, kernel, count, stride)
        count = (count - 1) // stride + 1
        columns = graph.node("Relu", _linear(graph, *rows, _weight(file, f"bias {layer}")))
    steps = graph.node("Gather", columns, graph.input("places", "S", "N", kind="<i8"), axis=0)
    outputs, memory = _lstm(graph, file, steps, graph.input("counts", "N", kind="<i4"))
    last = _linear(graph, graph.node("Relu", outputs), _weight(file, "sum")[:, None], _weight(file, "sum bias"))
    graph.node("Reshape", graph.node("Sigmoid", last), graph.node("Shape", "places"), to=("probability",))
    graph.output("probability", "S", "N")
    graph.output(memory, "N", 2 * _HIDDEN)
    return graph.model()


def _weight(file: bytes, name: str) -> Floats:
    first, shape = _PLACES[name]
    return np.frombuffer(file, "<f4", math.prod(shape), first).reshape(shape)


def _linear(graph: Graph, rows: str, matrix: Floats, bias: Floats) -> str:
    return graph.node("Gemm", rows, graph.constant(matrix), graph.constant(bias))


def _slice(graph: Graph, values: str, begin: int, end: int, step: int = 1, *, axis: int = 1) -> str:
    """From ``begin`` to ``end`` along an axis, the second by default."""
    return graph.node("Slice", values, *(graph.constant([each]) for each in (begin, end, axis, step)))


def _magnitudes(graph: Graph, basis: Floats, samples: str) -> str:
    """float32[4 N, 129]: the magnitudes of the four windows of each.

    The first sample of a window weighs nothing. About its middle one the cosines are even and the sines odd, so those get the
    sums of the samples on either side, and these the differences, which halves the products.
    """
    half = _WINDOW // 2
    mirrored = graph.node("Pad", samples, graph.constant([0, 0, 0, CONTEXT]), mode="reflect")
    halves = graph.node("Reshape", mirrored, graph.constant([0, _COLUMNS + 1, half]))
    first, second = _slice(graph, halves, 0, _COLUMNS), _slice(graph, halves, 1, _COLUMNS + 1)
    before = _slice(graph, first, 1, half, axis=2)
    after = _slice(graph, second, half - 1, 0, -1, axis=2)  # from the window's end back to its middle
    middle = _slice(graph, second, 0, 1, axis=2)
    even = graph.node("Concat", graph.node("Add", before, after), middle, axis=2)
    real = _wave(graph, even, basis[:_FREQUENCIES, 1 : half + 1])
    imaginary = _wave(graph, graph.node("Sub", before, after), basis[_FREQUENCIES:, 1:half])
    squares = (graph.node("Mul", part, part) for part in (real, imaginary))
    return graph.node("Sqrt", graph.node("Add", *squares))


def _wave(graph: Graph, windows: str, basis: Floats) -> str:
    rows = graph.node("Reshape", windows, graph.constant([-1, basis.shape[1]]))
    return graph.node("MatMul", rows, graph.constant(basis.T))


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


def _lstm(graph: Graph, file: bytes, steps: str, counts: str) -> tuple[str, str]:
    """The cell's outputs after each step, float32[S N, 128], and its memory after the last."""
    # The cell's gates in the file: input, forget, cell, output; here output is second.
    order = np.r_[0:128, 384:512, 128:256, 256:384]
    weights = (_weight(file, f"lstm {part}")[order][None] for part in ("input", "memory"))
    bias = np.concatenate([_weight(file, f"lstm {part} bias")[order] for part in ("input", "memory")])[None]
    halves = graph.constant([_HIDDEN, _HIDDEN])
    memory = graph.node("Unsqueeze", graph.input("memory", "N", 2 * _HIDDEN), graph.constant([0]))
    graph.node("Split", memory, halves, to=("output before", "inside before"), axis=2)
    given = (steps, *(graph.constant(each) for each in (*weights, bias)), counts, "output before", "inside before")
    graph.node("LSTM", *given, to=("outputs", "output after", "inside after"), hidden_size=_HIDDEN)
    after = graph.node("Concat", "output after", "inside after", axis=2)
    flat = graph.constant([-1, _HIDDEN])
    return graph.node("Reshape", "outputs", flat), graph.node("Reshape", after, graph.constant([-1, 2 * _HIDDEN]))
