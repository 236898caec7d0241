"""The mailbox: order, and what a client may fill it with."""

from __future__ import annotations

import asyncio

from duplex_server.engine.mailbox import Mailbox


async def test_entries_come_out_in_order_and_the_engines_own_get_in_when_the_client_is_refused() -> None:
    box: Mailbox[str] = Mailbox(max_entries=2, max_bytes=100)
    assert box.offer("a", 1)
    assert box.offer("b", 1)
    assert not box.offer("c", 1)
    box.put("engine")
    box.put("urgent", first=True)
    assert [await box.get() for _ in range(4)] == ["urgent", "a", "b", "engine"]
    assert box.offer("c", 1)


async def test_bytes_are_bounded_too_and_one_entry_beyond_the_bound_is_taken_alone() -> None:
    box: Mailbox[str] = Mailbox(max_entries=100, max_bytes=10)
    assert box.offer("huge", 1000)
    assert not box.offer("tiny", 1)
    await box.get()
    assert box.offer("tiny", 1)


async def test_who_was_refused_waits_until_there_is_room() -> None:
    """An entry can be refused while less than half is used; waiting for room must not spin then."""
    box: Mailbox[str] = Mailbox(max_entries=100, max_bytes=10)
    assert box.offer("small", 4)
    assert not box.crowded
    assert not box.offer("large", 7)
    waiting = asyncio.create_task(box.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await box.get()
    async with asyncio.timeout(5):
        await waiting
    assert box.offer("large", 7)


async def test_clearing_lets_everyone_go_who_waits() -> None:
    box: Mailbox[str] = Mailbox(max_entries=1, max_bytes=10)
    assert box.offer("a", 1)
    waiting = asyncio.create_task(box.room())
    await asyncio.sleep(0)
    box.clear()
    async with asyncio.timeout(5):
        await waiting
    assert len(box) == 0


async def test_what_must_get_in_gets_in_and_counts() -> None:
    box: Mailbox[str] = Mailbox(max_entries=4, max_bytes=100)
    for each in "abcdef":
        box.note(each, 1)
    before = box.crowded
    assert not box.offer("g", 1), "what may be refused is"
    assert [await box.get() for _ in range(6)] == list("abcdef")
    assert (before, box.crowded) == (True, False)
    assert box.offer("g", 1)
