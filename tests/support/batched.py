"""A worker for tests of the process runtimes: it does what each payload says. Needs no torch.

Used by tests of the server, whose stages name the factory :data:`FACTORY` and the type :data:`PAYLOADS`; it runs in their worker
processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from duplex_core.errors import ErrorCode, error
from duplex_core.stages import Forward, LinkKind, Resources, StageSpec
from duplex_core.tensors import Tensor
from duplex_core.workers import SlotResult, SlotWork

FACTORY = "tests.support.batched:ScriptWorker"
PAYLOADS = "tests.support.batched:Payload"
DECLINED = error(ErrorCode.INVALID_VALUE, "that is no word of ours", param="session.options.word")
"""What a request that asks to be declined is told."""
TOO_LARGE = (64 << 20) + 1
"""More bytes than may be sent beside tensors."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """What to do: the name of one of the methods of :class:`ScriptWorker`."""

    do: str = "count"
    times: int = 1
    tensor: Tensor | None = None


class Said(msgspec.Struct, frozen=True, kw_only=True, tag="said"):
    """What came of it."""

    text: str
    tensor: Tensor | None = None


Payload = Ask | Said


class ScriptWorker:
    """Its state of a slot is how many requests have been counted there, and how many were interrupted."""

    def __init__(
        self,
        *,
        frame_ms: float | None = None,
        gather_ms: float = 2.0,
        broken: str = "",
        wait_for: str = "",
        crash_on_start: str = "",
    ) -> None:
        if broken:
            raise OSError(broken)
        self.frame_ms = frame_ms
        self.gather_ms = gather_ms
        self._wait_for = wait_for
        self._crash_on_start = crash_on_start
        self._counted: list[int] = []
        self._interrupted: list[int] = []
        self._left: dict[int, tuple[Ask, int]] = {}

    def start(self, slots: int, device: str) -> None:
        if self._crash_on_start and Path(self._crash_on_start).exists():
            print("no weights today", flush=True)  # noqa: T201 - what a library would print
            os._exit(7)
        while self._wait_for and not Path(self._wait_for).exists():
            time.sleep(0.01)
        self.device = device
        self._counted = [0] * slots
        self._interrupted = [0] * slots

    def reset(self, slot: int) -> None:
        self._counted[slot] = self._interrupted[slot] = 0
        self._left.pop(slot, None)

    def step(self, work: Sequence[SlotWork]) -> Sequence[SlotResult]:
        return [self._one(each, len(work)) for each in reversed(work)]

    def interrupted(self, slot: int) -> None:
        self._left.pop(slot, None)
        self._interrupted[slot] += 1

    def close(self) -> None:
        """Holds nothing."""

    def _one(self, work: SlotWork, together: int) -> SlotResult:
        ask, begun = (work.payload, 0) if work.payload is not None else self._left[work.slot]
        self._left[work.slot] = (ask, begun + 1)
        result: SlotResult = getattr(self, f"_{ask.do}")(work.slot, ask, begun, together)
        if result.done:
            del self._left[work.slot]
        return result

    def _said(self, slot: int, text: Any, *, done: bool = True) -> SlotResult:
        return SlotResult(slot=slot, outputs=(Said(text=str(text)),), done=done)

    def _count(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        self._counted[slot] += 1
        return self._said(slot, self._counted[slot])

    def _interruptions(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return self._said(slot, self._interrupted[slot])

    def _where(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return self._said(slot, f"{os.getpid()} {slot} {self.device}")

    def _together(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return self._said(slot, together)

    def _words(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return self._said(slot, begun, done=begun + 1 >= ask.times)

    def _nothing(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return SlotResult(slot=slot)

    def _slow(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        time.sleep(ask.times / 1000)
        return self._said(slot, "slow")

    def _hang(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        while True:
            time.sleep(1)

    def _refuse(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return SlotResult(slot=slot, failed="no words today")

    def _decline(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return SlotResult(slot=slot, failed=DECLINED)

    def _raise(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        raise ValueError("no such word")

    def _misanswer(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return SlotResult(slot=slot + 100)

    def _exit(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        os._exit(3)

    def _misfit(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return SlotResult(slot=slot, outputs=({"no": "payload"},))

    def _unsendable(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return SlotResult(slot=slot, outputs=(object(),))

    def _stuck(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return SlotResult(slot=slot, outputs=(object(),), done=False)

    def _large(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        return self._said(slot, "x" * TOO_LARGE)

    def _forward(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        passed = Forward(kind=LinkKind.TOKENS, payload=Said(text="on", tensor=ask.tensor))
        return SlotResult(slot=slot, outputs=(Said(text="first"), passed))

    def _reverse(self, slot: int, ask: Ask, begun: int, together: int) -> SlotResult:
        assert ask.tensor is not None
        flipped = bytes(ask.tensor.data)[::-1]
        answer = Tensor(dtype=ask.tensor.dtype, shape=ask.tensor.shape, data=flipped)
        return SlotResult(slot=slot, outputs=(Said(text=type(ask.tensor.data).__name__, tensor=answer),))


def spec(*, sessions: int = 2, chats: int = 1, replicas: int = 1, **options: Any) -> StageSpec:
    """A stage of this worker."""
    return StageSpec(
        name="work",
        factory=FACTORY,
        runtime="torch",
        options=options,
        replicas=replicas,
        payloads=PAYLOADS,
        resources=Resources(sessions=sessions, chats=chats),
    )
