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


async def test_what_comes_one_at_a_time_is_taken_at_once_and_whoever_brings_many_waits_for_the_loop() -> None:
    box: Mailbox[int] = Mailbox(max_entries=100, max_bytes=100)
    taken: list[int] = []

    def take(entry: int) -> bool:
        taken.append(entry)
        assert not box.hand(-1), "what comes while an entry is being taken waits"
        return entry == 99

    assert not box.hand(0), "nobody serves yet"
    serving = asyncio.create_task(box.serve(take))
    await asyncio.sleep(0)
    handed = 0
    while box.hand(handed):
        handed += 1
    assert taken == list(range(handed))
    assert 1 <= handed <= 50
    box.put(50)
    assert not box.hand(51), "the order stays"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert taken[-1] == 50
    assert box.hand(99)
    async with asyncio.timeout(5):
        await serving
    assert not box.hand(100)
    assert taken[-1] == 99


async def test_who_serves_sees_the_loop_run_between_many_entries() -> None:
    box: Mailbox[int] = Mailbox(max_entries=1000, max_bytes=1000)
    seen: list[int] = []
    for each in range(100):
        box.put(each)
    serving = asyncio.create_task(box.serve(lambda entry: entry == 99))
    while not serving.done():
        seen.append(len(box))
        await asyncio.sleep(0)
    assert len(seen) > 5


async def test_when_serving_is_cancelled_entries_wait() -> None:
    box: Mailbox[int] = Mailbox(max_entries=10, max_bytes=10)
    serving = asyncio.create_task(box.serve(lambda entry: False))
    await asyncio.sleep(0)
    serving.cancel()
    assert not box.hand(1)
    await asyncio.gather(serving, return_exceptions=True)
    assert not box.hand(1)
    box.put(1)
    assert await box.get() == 1
