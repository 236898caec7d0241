"""Events on their way to a client: order, numbers, the fence, the bounds, the end."""

from __future__ import annotations

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
from duplex_server.engine.journal import Journal
from duplex_server.engine.outbox import ALONE_SHARE, Outbox, weight

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


def outbox_of(slow: list[bool] | None = None, *, read: bool = True, **bounds: Any) -> Outbox:
    """An outbox with a large journal, which somebody reads unless told otherwise."""
    told = [] if slow is None else slow
    outbox = Outbox(Journal(max_events=100_000, max_bytes=1 << 30), on_slow=lambda: told.append(True), **bounds)
    outbox.reader = (lambda: None) if read else None
    return outbox


def taken(outbox: Outbox) -> list[Any]:
    events = []
    while (event := outbox.take()) is not None:
        events.append(event)
    return events


def drained(outbox: Outbox) -> list[Any]:
    outbox.put(CLOSED)
    return taken(outbox)


async def test_a_fence_drops_unsent_deltas_of_older_epochs_and_nothing_else() -> None:
    outbox = outbox_of()
    for event in [InputCleared(), *deltas(1), InputCleared(), *deltas(2)]:
        outbox.put(event)
    assert outbox.purge(2) == len(STREAM_DELTAS)
    kept = drained(outbox)
    assert [type(each) for each in kept] == [InputCleared, InputCleared, *STREAM_DELTAS, SessionClosed]
    assert outbox.waiting_bytes == 0


async def test_numbers_are_given_when_an_event_is_taken_so_a_purge_leaves_no_gap() -> None:
    outbox = outbox_of()
    outbox.put(InputCleared())
    first = outbox.take()
    assert first is not None
    for event in [*deltas(1), InputCleared()]:
        outbox.put(event)
    outbox.purge(2)
    rest = drained(outbox)
    assert [each.server_event_seq for each in [first, *rest]] == [1, 2, 3]
    assert len({each.event_id for each in [first, *rest]}) == 3
    assert first.event_id


@pytest.mark.parametrize("bounds", [{"max_events": 10}, {"max_bytes": weight(InputCleared()) * 10}])
async def test_a_slow_reader_is_told_once_and_still_gets_the_last_event(bounds: dict[str, Any]) -> None:
    slow: list[bool] = []
    outbox = outbox_of(slow, **bounds)
    for _ in range(1000):
        outbox.put(InputCleared())
    assert slow == [True]
    assert len(outbox) <= 10
    left = drained(outbox)
    assert [type(each) for each in left] == [ErrorEvent, SessionClosed]
    assert left[0].error.code is ErrorCode.SLOW_READER


async def test_one_event_larger_than_the_bound_gets_through_when_nothing_waits() -> None:
    outbox = outbox_of(max_bytes=100)
    big = ErrorEvent(error=error(ErrorCode.INVALID_VALUE, "x" * 1000))
    outbox.put(big)
    assert [type(each) for each in drained(outbox)] == [ErrorEvent, SessionClosed]


async def test_nothing_comes_after_the_close() -> None:
    outbox = outbox_of()
    outbox.put(CLOSED)
    outbox.put(InputCleared())
    outbox.put(CLOSED)
    assert [type(each) for each in taken(outbox)] == [SessionClosed]


async def test_a_reader_is_told_of_each_event() -> None:
    outbox, told = outbox_of(), []
    outbox.reader = lambda: told.append(len(outbox))
    outbox.put(InputCleared())
    outbox.put(InputCleared())
    assert told == [1, 2]


@pytest.mark.parametrize("bounds", [{"max_events": 40}, {"max_bytes": weight(InputCleared()) * 40}])
async def test_what_waits_for_nobody_moves_into_the_journal_in_order(bounds: dict[str, Any]) -> None:
    slow: list[bool] = []
    outbox = outbox_of(slow, read=False, **bounds)
    for _ in range(100):
        outbox.put(InputCleared())
    assert slow == []
    assert len(outbox) == 40 // ALONE_SHARE
    moved = outbox.journal.after(0)
    assert [each.server_event_seq for each in [*moved, *drained(outbox)]] == list(range(1, 102))


async def test_who_comes_back_finds_room_in_the_outbox() -> None:
    slow: list[bool] = []
    outbox = outbox_of(slow, read=False, max_events=40)
    for _ in range(1000):
        outbox.put(InputCleared())
    outbox.reader = lambda: None
    for _ in range(20):
        outbox.put(InputCleared())
    assert slow == []
