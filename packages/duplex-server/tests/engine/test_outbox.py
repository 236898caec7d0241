"""Events on their way to a client: order, numbers, the fence, the bounds, the end."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    STREAM_DELTAS,
    CloseReason,
    ErrorEvent,
    InputCleared,
    OutputAudioDelta,
    SessionClosed,
)
from duplex_core.testing import examples
from duplex_server.engine.outbox import Outbox, weight

CLOSED = SessionClosed(session_id="sess_1", reason=CloseReason.CLIENT)


def deltas(epoch: int) -> list[Any]:
    """One of each kind of delta, made under ``epoch``."""
    made: list[Any] = []
    for kind in STREAM_DELTAS:
        example = next(each for each in examples.EVENT_EXAMPLES.values() if type(each) is kind)
        if isinstance(example, OutputAudioDelta):
            metadata = msgspec.structs.replace(example.metadata, epoch=epoch)
            made.append(msgspec.structs.replace(example, metadata=metadata))
        else:
            made.append(msgspec.structs.replace(example, epoch=epoch))
    return made


async def drained(outbox: Outbox) -> list[Any]:
    outbox.put(CLOSED)
    return [event async for event in outbox.read()]


async def test_a_fence_drops_unsent_deltas_of_older_epochs_and_nothing_else() -> None:
    outbox = Outbox(on_slow=lambda: None)
    for event in [InputCleared(), *deltas(1), InputCleared(), *deltas(2)]:
        outbox.put(event)
    assert outbox.purge(2) == len(STREAM_DELTAS)
    kept = await drained(outbox)
    assert [type(each) for each in kept] == [InputCleared, InputCleared, *STREAM_DELTAS, SessionClosed]
    assert outbox.waiting_bytes == 0


async def test_numbers_are_given_when_an_event_is_taken_so_a_purge_leaves_no_gap() -> None:
    outbox = Outbox(on_slow=lambda: None)
    outbox.put(InputCleared())
    first = await outbox.get()
    assert first is not None
    for event in [*deltas(1), InputCleared()]:
        outbox.put(event)
    outbox.purge(2)
    rest = await drained(outbox)
    assert [each.server_event_seq for each in [first, *rest]] == [1, 2, 3]
    assert len({each.event_id for each in [first, *rest]}) == 3
    assert first.event_id


@pytest.mark.parametrize("bounds", [{"max_events": 10}, {"max_bytes": weight(InputCleared()) * 10}])
async def test_a_slow_reader_is_told_once_and_still_gets_the_last_event(bounds: dict[str, int]) -> None:
    slow = []
    outbox = Outbox(on_slow=lambda: slow.append(True), **bounds)
    for _ in range(1000):
        outbox.put(InputCleared())
    assert slow == [True]
    assert len(outbox) <= 10
    left = await drained(outbox)
    assert [type(each) for each in left] == [ErrorEvent, SessionClosed]
    assert left[0].error.code is ErrorCode.SLOW_READER


async def test_one_event_larger_than_the_bound_gets_through_when_nothing_waits() -> None:
    outbox = Outbox(on_slow=lambda: None, max_bytes=100)
    big = ErrorEvent(error=error(ErrorCode.INVALID_VALUE, "x" * 1000))
    outbox.put(big)
    assert [type(each) for each in await drained(outbox)] == [ErrorEvent, SessionClosed]


async def test_nothing_comes_after_the_close() -> None:
    outbox = Outbox(on_slow=lambda: None)
    outbox.put(CLOSED)
    outbox.put(InputCleared())
    outbox.put(CLOSED)
    assert [type(each) async for each in outbox.read()] == [SessionClosed]
    assert await outbox.get() is None


async def test_a_reader_that_waits_is_woken() -> None:
    outbox = Outbox(on_slow=lambda: None)
    waiting = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.put(InputCleared())
    async with asyncio.timeout(5):
        assert isinstance(await waiting, InputCleared)


async def test_a_second_reader_is_refused() -> None:
    outbox = Outbox(on_slow=lambda: None)
    outbox.put(CLOSED)
    assert len([event async for event in outbox.read()]) == 1
    with pytest.raises(RuntimeError, match="one reader"):
        await anext(outbox.read())
