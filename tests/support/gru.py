"""A small recurrent network with slots, for tests of the ``torch`` runtime: its answers depend on all that came before.

Used by tests marked ``engines``, whose stages name the factory :data:`FACTORY` and the type :data:`PAYLOADS`. Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from duplex_core.stages import Resources, StageSpec
from duplex_core.tensors import Tensor
from duplex_core.torch_graphs import GraphedStep
from duplex_core.torch_tensors import as_torch, of_torch
from duplex_core.workers import SlotResult, SlotWork

FACTORY = "tests.support.gru:GruWorker"
PAYLOADS = "tests.support.gru:Payload"
WIDTH = 24


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag="frame"):
    """``[WIDTH]`` float32 in, and so many frames out, each made from the one before."""

    values: Tensor
    frames: int = 1


class Made(msgspec.Struct, frozen=True, kw_only=True, tag="made"):
    """``[WIDTH]`` float32."""

    values: Tensor


Payload = Frame | Made


class GruWorker:
    """A GRU over frames. Every step computes all slots; those without work keep their state."""

    def __init__(self, *, hidden: int = 32, frame_ms: float | None = None, weights_seed: int = 0) -> None:
        self.frame_ms = frame_ms
        self._hidden = hidden
        self._seed = weights_seed

    def start(self, slots: int, device: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(self._seed)
        self._cell = torch.nn.GRUCell(WIDTH, self._hidden).to(device).requires_grad_(requires_grad=False)
        self._out = torch.nn.Linear(self._hidden, WIDTH).to(device).requires_grad_(requires_grad=False)
        self._device = device
        self._input = torch.zeros(slots, WIDTH, device=device)
        self._mask = torch.zeros(slots, 1, dtype=torch.bool, device=device)
        self._state = torch.zeros(slots, self._hidden, device=device)
        self._left = [0] * slots
        self._compute = GraphedStep(self._all_slots, self._input, self._mask)

    def reset(self, slot: int) -> None:
        self._state[slot] = 0
        self._input[slot] = 0
        self._left[slot] = 0

    def step(self, work: Sequence[SlotWork]) -> Sequence[SlotResult]:
        self._mask.zero_()
        for each in work:
            self._mask[each.slot] = True
            if each.payload is not None:
                self._input[each.slot] = as_torch(each.payload.values, self._device)
                self._left[each.slot] = each.payload.frames
        made = self._compute(self._input, self._mask)
        results = []
        for each in work:
            self._left[each.slot] -= 1
            self._input[each.slot] = made[each.slot]
            answer = Made(values=of_torch(made[each.slot].clone()))
            results.append(SlotResult(slot=each.slot, outputs=(answer,), done=self._left[each.slot] <= 0))
        return results

    def interrupted(self, slot: int) -> None:
        """Its state stays the session's."""

    def close(self) -> None:
        """Holds nothing that does not end with the process."""

    def _all_slots(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self._state.copy_(torch.where(mask, self._cell(inputs, self._state), self._state))
        return torch.tanh(self._out(self._state))


def spec(*, sessions: int, chats: int = 0, replicas: int = 1, **options: object) -> StageSpec:
    """A stage of this network, on the CPU."""
    return StageSpec(
        name="gru",
        factory=FACTORY,
        runtime="torch",
        options=options,
        replicas=replicas,
        payloads=PAYLOADS,
        resources=Resources(devices=("cpu",), sessions=sessions, chats=chats),
    )


class Alone:
    """One session by itself: the same network with as many slots, of which only one is ever used."""

    def __init__(self, slots: int, slot: int = 0) -> None:
        self._worker = GruWorker()
        self._worker.start(slots, "cpu")
        self._slot = slot

    def run(self, frame: Frame) -> list[bytes]:
        """The bytes of each frame that comes out."""
        made = []
        payload: Frame | None = frame
        while True:
            (result,) = self._worker.step([SlotWork(slot=self._slot, payload=payload)])
            made.append(bytes(result.outputs[0].values.data))
            if result.done:
                return made
            payload = None
