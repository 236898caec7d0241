"""Consumers get everything in order, at their own pace, in bounded memory."""

from __future__ import annotations

import asyncio

import pytest

from duplex_client.errors import ConsumerLagged
from duplex_client.streams import Mailbox, Signal


def mailbox(limit: int = 3) -> Mailbox[int]:
    return Mailbox(limit=limit, what="numbers")


async def test_a_signal_raised_between_the_call_and_the_await_is_not_lost() -> None:
    signal = Signal()
    waiting = asyncio.ensure_future(signal.wait())  # runs only in the loop's next turn
    signal.raise_()
    await asyncio.wait_for(waiting, 5)


async def test_items_come_in_order_and_the_end_is_quiet() -> None:
    box = mailbox()
    for item in (1, 2, 3):
        box.put(item)
    box.end()
    assert [item async for item in box] == [1, 2, 3]


async def test_a_waiting_consumer_is_woken() -> None:
    box = mailbox()
    waiting = asyncio.ensure_future(anext(box))
    await asyncio.sleep(0)
    box.put(7)
    assert await waiting == 7


async def test_a_consumer_that_lags_is_told_how_much_it_missed_and_goes_on() -> None:
    box = mailbox(limit=2)
    for item in range(5):
        box.put(item)
    with pytest.raises(ConsumerLagged, match="3 numbers were dropped") as caught:
        await anext(box)
    assert caught.value.missed == 3
    assert [await anext(box), await anext(box)] == [3, 4]


async def test_an_error_ends_it_after_what_had_arrived() -> None:
    box = mailbox()
    box.put(1)
    box.end(OSError("gone"))
    assert await anext(box) == 1
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            await anext(box)


async def test_a_closed_one_takes_nothing_more() -> None:
    with mailbox() as box:
        box.put(1)
    box.put(2)
    assert [item async for item in box] == []
