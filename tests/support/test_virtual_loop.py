"""Virtual time passes when everything waits, and only then."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.support import virtual_loop
from tests.support.virtual_loop import Stuck, VirtualLoop, in_virtual_time


def test_an_hour_passes_in_no_time_and_in_order() -> None:
    rung: list[str] = []

    async def ring(name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        rung.append(f"{name} at {asyncio.get_running_loop().time() - 1000:.0f}")

    @in_virtual_time
    async def run() -> None:
        await asyncio.gather(ring("hour", 3600), ring("second", 1), ring("minute", 60))

    began = time.monotonic()
    run()
    assert rung == ["second at 1", "minute at 60", "hour at 3600"]
    assert time.monotonic() - began < 5


def test_no_time_passes_while_something_can_happen() -> None:
    @in_virtual_time
    async def run() -> None:
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(0.001, lambda: pytest.fail("time has passed"))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: 7) == 7
        alarm.cancel()

    run()


def test_who_waits_for_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_loop, "STUCK_S", 0.01)
    loop = VirtualLoop()
    with pytest.raises(Stuck):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_a_task_that_is_left_fails_the_test() -> None:
    kept: list[Any] = []

    @in_virtual_time
    async def run() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(3600)))

    with pytest.raises(AssertionError, match="tasks are left"):
        run()
