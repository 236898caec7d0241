"""What the benchmark of the ``torch`` runtime computes: a recurrent network over frames of sound, with slots.

Owns the worker. Runs in the stage's worker process. Imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from benchmarks.stages.frames import FRAME_MS, SAMPLES, Bare, Frame, Took
from duplex_core.tensors import Tensor
from duplex_core.torch_tensors import as_torch, of_torch
from duplex_core.workers import SlotResult, SlotWork


class Network:
    """Two layers of GRU between projections. Every step computes all slots; idle ones keep their state."""

    def __init__(self, *, hidden: int, gather_ms: float) -> None:
        """``hidden`` units a layer."""
        self.frame_ms: float | None = FRAME_MS
        self.gather_ms = gather_ms
        self._hidden = hidden

    def start(self, slots: int, device: str) -> None:
        """Make the network, with random weights."""
        torch.set_num_threads(1)
        torch.manual_seed(0)
        torch.set_grad_enabled(mode=False)
        hidden = self._hidden
        self._into = torch.nn.Linear(SAMPLES, hidden).to(device)
        self._cells = [torch.nn.GRUCell(hidden, hidden).to(device) for _ in range(2)]
        self._out = torch.nn.Linear(hidden, SAMPLES).to(device)
        self._states = [torch.zeros(slots, hidden, device=device) for _ in self._cells]
        self._input = torch.zeros(slots, SAMPLES, device=device)
        self._mask = torch.zeros(slots, 1, dtype=torch.bool, device=device)
        self._slots = slots
        self._device = device

    def reset(self, slot: int) -> None:
        """Begin anew."""
        for state in self._states:
            state[slot] = 0

    def step(self, work: Sequence[SlotWork]) -> Sequence[SlotResult]:
        """One frame for each slot that has one, or the bare loop."""
        asked = work[0].payload
        if isinstance(asked, Bare):
            return [SlotResult(slot=work[0].slot, outputs=(self._bare(asked),))]
        self._mask.zero_()
        for each in work:
            self._mask[each.slot] = True
            self._input[each.slot] = as_torch(each.payload.samples, self._device)
        made = self._compute()
        return [SlotResult(slot=each.slot, outputs=(Frame(samples=of_torch(made[each.slot])),)) for each in work]

    def interrupted(self, slot: int) -> None:
        """Every request is one step."""

    def close(self) -> None:
        """Holds nothing."""

    def _compute(self) -> torch.Tensor:
        layer = torch.tanh(self._into(self._input))
        for cell, state in zip(self._cells, self._states, strict=True):
            state.copy_(torch.where(self._mask, cell(layer, state), state))
            layer = state
        return torch.tanh(self._out(layer))

    def _bare(self, asked: Bare) -> Took:
        """The loop that there would be without any runtime: the same frames in and out, as the same values."""
        samples = Tensor(dtype="float32", shape=(SAMPLES,), data=bytearray(asked.samples.data))
        work = [SlotWork(slot=slot, payload=Frame(samples=samples)) for slot in range(self._slots)]
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(asked.steps):
            self.step(work)
        took, used = time.perf_counter() - began, time.process_time() - cpu
        return Took(ms=took * 1000 / asked.steps, cpu_ms=used * 1000 / asked.steps)
