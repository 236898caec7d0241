"""The driver of the ``torch`` runtime by itself, in this process: what it tells its worker, which takes notes, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from duplex_core.fence import Fence
from duplex_core.stages import Lane, Resources, StageRequest, StageSpec
from duplex_core.workers import SlotResult, SlotWork
from duplex_server.engine.stages.batched.driver import BatchedDriver
from duplex_server.engine.stages.processes.driver import Seats


class Notes:
    """A worker that writes down what it is told. Payloads are numbers of steps."""

    frame_ms: float | None = None
    made: Notes

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.left: dict[int, int] = {}
        Notes.made = self

    def start(self, slots: int, device: str) -> None:
        self.told.append(("start", slots, device))

    def reset(self, slot: int) -> None:
        self.told.append(("reset", slot))

    def step(self, work: Sequence[SlotWork]) -> Sequence[SlotResult]:
        self.told.append(("step", *sorted(each.slot for each in work)))
        for each in work:
            self.left[each.slot] = (self.left[each.slot] if each.payload is None else each.payload) - 1
        return [SlotResult(slot=each.slot, outputs=(1,), done=self.left[each.slot] <= 0) for each in work]

    def interrupted(self, slot: int) -> None:
        self.told.append(("interrupted", slot))

    def close(self) -> None:
        self.told.append("close")


class Sink:
    """Takes down what comes of it, and says when all is in."""

    def __init__(self) -> None:
        self.finals: list[str] = []
        self.came = asyncio.Event()

    def output(self, request: StageRequest, payload: Any, *, final: bool = False, **_: Any) -> None:
        if final:
            self.finals.append(request.request_id)
        self.came.set()

    def failed(self, request: StageRequest, info: Any, **_: Any) -> None:
        raise AssertionError(info)

    def submitted_at(self, request: StageRequest) -> float:
        return 0.0

    def stats(self, gauges: Any, **_: Any) -> None:
        """Of no interest here."""

    def dead(self, reason: str) -> None:
        raise AssertionError(reason)


async def started() -> tuple[BatchedDriver, Sink, list[Any]]:
    sink = Sink()
    driver = BatchedDriver(sink)
    spec = StageSpec(name="work", factory=f"{Notes.__module__}:Notes", resources=Resources(sessions=2))
    await driver.start(spec, "cpu", Seats(sessions=2, chats=1))
    return driver, sink, Notes.made.told


def request(who: str, name: str, steps: int = 1) -> StageRequest:
    return StageRequest(stage="work", request_id=name, fence=Fence(session_id=who), lane=Lane.OUTPUT, payload=steps)


async def test_a_worker_is_started_with_a_slot_for_each_seat_and_closed_once() -> None:
    driver, _, told = await started()
    await driver.stop()
    assert told == [("start", 3, "cpu"), "close"]


async def test_a_slot_is_reset_when_somebody_begins_in_it_and_when_they_have_ended() -> None:
    driver, _, told = await started()
    driver.place("a")
    driver.place("b")
    driver.release("a")
    driver.place("c")
    await driver.stop()
    assert told[1:-1] == [("reset", 0), ("reset", 1), ("reset", 0), ("reset", 0)]


async def test_what_comes_together_is_one_step_and_what_runs_on_goes_on_without_waiting() -> None:
    driver, sink, told = await started()
    driver.place("a")
    driver.place("b")
    driver.submit(request("a", "long", 3))
    driver.submit(request("b", "short"))
    async with asyncio.timeout(10):
        while len(sink.finals) < 2:
            sink.came.clear()
            await sink.came.wait()
    await driver.stop()
    assert told[3:-1] == [("step", 0, 1), ("step", 0), ("step", 0)]
    assert sink.finals == ["short", "long"]


@pytest.mark.parametrize("how", ["abort", "release"])
async def test_a_worker_is_told_of_an_interruption_only_if_the_request_had_begun(how: str) -> None:
    driver, sink, told = await started()
    driver.place("a")
    driver.submit(request("a", "never"))
    driver.abort("a", "never")
    driver.submit(request("a", "long", 1_000_000))
    await sink.came.wait()
    getattr(driver, how)("a")
    steps = len(told)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await driver.stop()
    without_steps = [each for each in told if each[0] != "step"][2:-1]
    assert without_steps == [("interrupted", 0), *([("reset", 0)] if how == "release" else [])]
    assert told[steps:] == ["close"], "no step after it"
    assert sink.finals == []
