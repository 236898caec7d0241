"""Timers of both halves of the engine: rung once, replaced, ended; and that one which rings early is not set again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from duplex_core.commands import ConversationItemCreate, ResponseCreate
from duplex_core.events import ResponseDone
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.model import Deadline, EndTurn, ModelInput, ModelOutput, Respond, WakeAt
from duplex_server.engine.chat import ChatRequest
from duplex_server.engine.timers import Rung, Timers

QUESTION = MessageItem(role=Role.USER, content=(InputText(text="when?"),))


class Waiting:
    """A model session that answers 40 ms after it was asked, and looks at the time when it is woken."""

    def __init__(self) -> None:
        self.woken_ms: list[float] = []
        self.due_ms = 0.0
        self._asked: Respond | None = None

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        match event:
            case Respond():
                self._asked, self.due_ms = event, now_ms + 40.0
            case Deadline():
                self.woken_ms.append(now_ms)
            case _:
                return ()
        assert self._asked is not None
        if now_ms < self.due_ms:
            return (WakeAt(key="answer", at_ms=self.due_ms),)
        return (EndTurn(fence=self._asked.fence),)


async def keep_awake() -> None:
    while True:  # noqa: ASYNC110 - it is what it is for
        await asyncio.sleep(0)


@pytest.mark.parametrize("half", ["chat", "session"])
async def test_a_timer_that_rings_early_rings_once(half: str, engine_of: Any, stages: Any) -> None:
    models: list[Waiting] = []

    def create() -> Waiting:
        models.append(Waiting())
        return models[-1]

    async with engine_of(stages.gated_model(create).spec) as engine:
        # The loop takes a timer for due that has so much to go when something else wakes it, as it does, if with less, where
        # clocks are coarse.
        asyncio.get_running_loop()._clock_resolution = 0.03  # type: ignore[attr-defined]
        waking = asyncio.create_task(keep_awake())
        if half == "chat":
            async for _ in engine.generate(ChatRequest(history=(QUESTION,))):
                pass
        else:
            handle = await engine.open_session()
            await handle.submit(ConversationItemCreate(item=QUESTION))
            await handle.submit(ResponseCreate())
            async for event in handle.events():
                if isinstance(event, ResponseDone):
                    break
        waking.cancel()
    (model,) = models
    assert len(model.woken_ms) == 1
    assert model.woken_ms[0] >= model.due_ms


async def test_a_timer_rings_once_and_at_its_newest_time() -> None:
    rung: list[Rung[str]] = []
    timers: Timers[str] = Timers(rung.append)
    now_ms = asyncio.get_running_loop().time() * 1000.0
    timers.set("a", now_ms + 60_000.0)
    timers.set("b", now_ms)
    timers.set("a", now_ms + 1.0)
    timers.set("c", now_ms)
    timers.set("c", None)
    async with asyncio.timeout(5):
        while len(timers):  # noqa: ASYNC110 - of the timers' own
            await asyncio.sleep(0)
    assert [each.due for each in rung] == ["b", "a"]
    assert rung[1].at_ms == now_ms + 1.0
    assert rung[1].time_ms(now_ms) == now_ms + 1.0
    assert rung[1].time_ms(now_ms + 5.0) == now_ms + 5.0


async def test_closed_timers_ring_no_more_and_take_none() -> None:
    rung: list[Rung[str]] = []
    timers: Timers[str] = Timers(rung.append)
    timers.set("a", 0.0)
    timers.close()
    timers.set("b", 0.0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert (rung, len(timers)) == ([], 0)
