"""A step of fixed shapes, captured as a CUDA graph where there is a GPU, and called as it is where there is none.

For workers of the ``torch`` runtime, whose batched step always has as many rows as there are slots. Imports torch, and is
therefore imported by nothing in this package: only by the parts of a model package that run in a stage's worker process.

The way over a CPU is what this project's tests run. **The way over a GPU has not been run here**: it follows torch's
documentation of CUDA graphs, and a model package that uses it must compare its results with the plain function's on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WARM_UPS = 3
"""Runs before the capture, in which libraries choose their kernels and take their memory."""


class GraphedStep:
    """``function`` of tensors, to be called again and again with tensors of the same shapes, types and device.

    On a GPU the function runs a few times when this is made, with copies of ``examples``: a state that it changes in place must
    be reset afterwards. From then on only what it did on the GPU happens again: Python code in it does not run any more, so it
    must not branch on values, move anything to the CPU, or allocate by the size of anything but its arguments' shapes.

    Args:
        function: takes tensors and returns a tensor, or a tuple of them.
        examples: arguments as they will be.
    """

    def __init__(self, function: Callable[..., Any], *examples: torch.Tensor) -> None:
        """Capture ``function`` if the examples are on a GPU."""
        self._function = function
        self._graph: Any = None
        if examples and examples[0].is_cuda:
            self._capture(examples)

    @property
    def captured(self) -> bool:
        """Whether calls replay a graph."""
        return self._graph is not None

    def __call__(self, *arguments: torch.Tensor) -> Any:
        """What the function gives for these arguments. It is overwritten by the next call: copy what is to be kept.

        Raises:
            ValueError: the shapes, types or devices are not those of the examples, where a graph was captured.
        """
        if self._graph is None:
            return self._function(*arguments)
        for place, given in zip(self._inputs, arguments, strict=True):
            if (given.shape, given.dtype, given.device) != (place.shape, place.dtype, place.device):
                raise ValueError(
                    f"the step was captured for {place.dtype} {list(place.shape)} on {place.device} and is called with "
                    f"{given.dtype} {list(given.shape)} on {given.device}"
                )
            place.copy_(given)
        self._graph.replay()
        return self._outputs

    def _capture(self, examples: tuple[torch.Tensor, ...]) -> None:
        self._inputs = tuple(example.clone() for example in examples)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            for _ in range(WARM_UPS):
                self._function(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            self._outputs = self._function(*self._inputs)
        self._graph = graph
