"""The shared clock of the sessions' timers: never early, at most a tick late, one trouble is one timer's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duplex_server.engine.ticks import TICK_S, Ticks
from tests.support.virtual_loop import in_virtual_time


@in_virtual_time
async def test_timers_ring_in_order_never_early_and_at_most_a_tick_late() -> None:
    loop, ticks = asyncio.get_running_loop(), Ticks()
    begun, rung = loop.time(), []
    wanted = [0.0, 0.0001, 0.0049, 0.005, 0.0051, 0.1, 0.1001, 3.0]
    for after in reversed(wanted):
        ticks.call_at(begun + after, lambda after=after: rung.append((after, loop.time() - begun)))
    await asyncio.sleep(4.0)
    assert sorted(after for after, _ in rung) == wanted
    assert [at for _, at in rung] == sorted(at for _, at in rung)
    for after, at in rung:
        assert after - 1e-6 <= at <= after + TICK_S + 1e-6


@in_virtual_time
async def test_one_wake_up_of_the_loop_rings_all_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, ticks = asyncio.get_running_loop(), Ticks()
    set_at: list[float] = []
    call_at = loop.call_at

    def counted(when: float, *args: Any, **more: Any) -> asyncio.TimerHandle:
        set_at.append(when)
        return call_at(when, *args, **more)

    monkeypatch.setattr(loop, "call_at", counted)
    rung: list[int] = []
    for index in range(100):
        ticks.call_at(loop.time() + 0.001 + 0.00001 * index, lambda index=index: rung.append(index))
    assert len(set_at) == 1
    await asyncio.sleep(TICK_S)
    assert rung == list(range(100))


@in_virtual_time
async def test_what_was_cancelled_does_not_ring_not_even_by_one_that_rings_with_it() -> None:
    loop, ticks = asyncio.get_running_loop(), Ticks()
    rung: list[str] = []
    at_s = loop.time() + 0.01

    def first() -> None:
        rung.append("first")
        third.cancel()
        ticks.call_at(loop.time(), lambda: rung.append("set meanwhile"))

    ticks.call_at(at_s, first)
    second = ticks.call_at(at_s, lambda: rung.append("second"))
    third = ticks.call_at(at_s, lambda: rung.append("third"))
    second.cancel()
    second.cancel()
    await asyncio.sleep(0.1)
    assert rung == ["first", "set meanwhile"]


def troubles() -> list[BaseException]:
    """What the running loop is told from here on."""
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    return told


@in_virtual_time
async def test_one_that_raises_is_told_to_the_loop_and_the_others_ring() -> None:
    loop, ticks, told = asyncio.get_running_loop(), Ticks(), troubles()
    rung: list[int] = []

    def broken() -> None:
        raise KeyError("a timer's own trouble")

    at_s = loop.time() + 0.01
    ticks.call_at(at_s, lambda: rung.append(1))
    ticks.call_at(at_s, broken)
    ticks.call_at(at_s, lambda: rung.append(2))
    await asyncio.sleep(0.1)
    assert rung == [1, 2]
    assert [str(each) for each in told] == ['"a timer\'s own trouble"']


@in_virtual_time
async def test_what_is_set_for_the_tick_that_rings_rings_though_its_setter_raises() -> None:
    loop, ticks, told = asyncio.get_running_loop(), Ticks(), troubles()
    rung: list[str] = []

    def broken() -> None:
        ticks.call_at(loop.time(), lambda: rung.append("set meanwhile"))
        raise ValueError("and then it raised")

    at_s = loop.time() + 0.01
    ticks.call_at(at_s, broken)
    ticks.call_at(at_s, lambda: rung.append("second"))
    await asyncio.sleep(0.1)
    assert sorted(rung) == ["second", "set meanwhile"]
    assert [str(each) for each in told] == ["and then it raised"]
