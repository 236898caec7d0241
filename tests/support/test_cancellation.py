"""The harness that cancels at every await sees what it is there to see."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from tests.support import cancellation
from tests.support.cancellation import Belongings, Cut, Moment, everywhere


async def two_steps(heard: list[str]) -> str:
    await asyncio.sleep(0)
    heard.append("one")
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    heard.append("two")
    return "done"


async def test_each_suspension_is_cut_once_in_each_moment_and_the_last_run_is_whole() -> None:
    played: list[tuple[Cut[Any], list[str]]] = []

    async def scene(cut: Cut[Any]) -> None:
        heard: list[str] = []
        await cut(two_steps(heard))
        played.append((cut, heard))

    assert await everywhere(scene) == 2
    assert [heard for _, heard in played] == [[], ["one"], ["one", "two"]] * 2
    assert [cut.reached for cut, _ in played] == [True, True, False] * 2
    assert [cut.result for cut, _ in played] == [None, None, "done"] * 2


async def test_a_result_that_has_come_can_still_be_lost() -> None:
    came: list[str] = []

    async def take() -> None:
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: came.append("it came"))
        asyncio.get_running_loop().call_soon(future.set_result, "it")
        came.append(await future)

    cut: Cut[Any] = Cut(0, Moment.WOKEN)
    await cut(take())
    assert came == ["it came"]


async def test_who_swallows_a_cancellation_is_told() -> None:
    async def deaf() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    cut: Cut[Any] = Cut(0, Moment.WAITING)
    with pytest.raises(AssertionError, match="did not come out"):
        await cut(deaf())


async def test_what_fails_without_a_cut_fails() -> None:
    async def wrong() -> None:
        await asyncio.sleep(0)
        raise KeyError("wrong")

    with pytest.raises(KeyError):
        await Cut(5, Moment.WAITING)(wrong())


@pytest.mark.parametrize("kind", ["task", "timer", "thread"])
async def test_what_is_left_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "PATIENCE_S", 0.01)
    loop, belongings, let_go = asyncio.get_running_loop(), Belongings(), threading.Event()
    left: Any
    match kind:
        case "task":
            left = asyncio.create_task(asyncio.Event().wait(), name="left task")
        case "timer":
            left = loop.call_later(3600, print, "left timer")
        case _:
            left = threading.Thread(target=let_go.wait, name="left thread")
            left.start()
    with pytest.raises(AssertionError, match=f"left {kind}" if kind != "timer" else "print"):
        await belongings.gone()
    let_go.set()
    if kind == "thread":
        await asyncio.to_thread(left.join)
    else:
        left.cancel()
    monkeypatch.undo()
    await belongings.gone()
