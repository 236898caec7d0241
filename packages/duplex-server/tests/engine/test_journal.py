"""What was told is numbered and kept within bounds."""

from __future__ import annotations

import random

import pytest

from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.events import Event, InputCleared
from duplex_server.engine.journal import Journal


def numbers(events: list[Event]) -> list[int]:
    return [event.server_event_seq for event in events]


def test_events_are_numbered_from_one_and_each_has_an_id_of_its_own() -> None:
    journals = [Journal(max_events=10, max_bytes=1000) for _ in range(2)]
    stamped = [journal.stamp(InputCleared(), 1) for journal in journals for _ in range(5)]
    assert numbers(stamped) == [1, 2, 3, 4, 5] * 2
    assert len({event.event_id for event in stamped}) == 10


def test_what_is_kept_is_what_was_given_out() -> None:
    journal = Journal(max_events=10, max_bytes=1000)
    stamped = [journal.stamp(InputCleared(), 1) for _ in range(5)]
    assert all(kept is given for kept, given in zip(journal.after(2), stamped[2:], strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_any_run_of_stamps_and_acknowledgements_keeps_the_bounds_and_the_order(seed: int) -> None:
    rng = random.Random(seed)
    journal = Journal(max_events=rng.choice([0, 1, 7]), max_bytes=rng.choice([0, 40, 1000]))
    sizes: dict[int, int] = {}
    floor = 0
    for _ in range(300):
        if rng.random() < 0.8:
            size = rng.randrange(30)
            sizes[journal.stamp(InputCleared(), size).server_event_seq] = size
        elif journal.last_seq:
            seq = rng.randrange(journal.last_seq + 1)
            journal.acknowledge(seq)
            floor = max(floor, seq)
        kept = numbers(journal.after(0))
        assert kept == list(range(journal.first_seq, journal.last_seq + 1))
        assert len(journal) == len(kept) <= journal._max_events
        assert journal.kept_bytes == sum(sizes[seq] for seq in kept) <= journal._max_bytes
        assert journal.first_seq > floor
        some = rng.randrange(-1, journal.last_seq + 2)
        assert numbers(journal.after(some)) == [seq for seq in kept if seq > some]


def test_what_was_never_sent_cannot_have_arrived() -> None:
    journal = Journal(max_events=10, max_bytes=1000)
    journal.stamp(InputCleared(), 1)
    with pytest.raises(DuplexError) as caught:
        journal.acknowledge(2)
    assert caught.value.info.code is ErrorCode.INVALID_VALUE
    assert numbers(journal.after(0)) == [1]
