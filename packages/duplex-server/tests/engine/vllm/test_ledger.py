"""The ledger against a list of positions, and the KV cache's books against what they promise. Needs no engine."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_core.errors import DuplexError, ErrorCode
from duplex_server.engine.stages.vllm.ledger import Feed, Ledger, Planned, Span, cut, joined
from duplex_server.engine.stages.vllm.memory import Cache
from duplex_server.engine.stages.vllm.room import PASSED, Room

LIMIT = 40

Position = tuple[str, Any]


@st.composite
def feeds(draw: st.DrawFn) -> Feed:
    """Ids, with spans of embeddings here and there."""
    ids = draw(st.lists(st.integers(0, 99), max_size=12))
    spans, start = [], 0
    while start < len(ids):
        start += draw(st.integers(0, 5))
        length = draw(st.integers(1, 4))
        if start + length <= len(ids):
            spans.append(Span(start, length, draw(st.text(max_size=3))))
        start += length
    return Feed(ids=tuple(ids), spans=tuple(spans))


@st.composite
def appends(draw: st.DrawFn) -> tuple[Feed, int, bool, bool, list[int] | None]:
    """A feed, its most tokens, fresh, drop_last, and what was chosen; ``None``: it was aborted."""
    most = draw(st.integers(1, 6))
    chosen = draw(st.none() | st.lists(st.integers(100, 199), min_size=1, max_size=most))
    return draw(feeds()), most, draw(st.integers(0, 5)) == 0, draw(st.booleans()), chosen


def spelled(feed: Feed) -> list[Position]:
    """Every position of a feed by itself."""
    positions: list[Position] = [("id", each) for each in feed.ids]
    for start, length, item in feed.spans:
        positions[start : start + length] = [("embedding", (item, row)) for row in range(length)]
    return positions


@given(st.lists(appends(), max_size=12))
def test_what_is_fed_after_a_loss_is_what_had_been_fed(steps: list[Any]) -> None:
    ledger = Ledger(LIMIT)
    context: list[Position] = []
    pending: list[Position] = []
    for feed, most, fresh, drop_last, chosen in steps:
        kept = [] if fresh or drop_last else pending
        base = [] if fresh else context
        wanted = [*kept, *spelled(feed)]
        try:
            planned = ledger.plan(feed, most, fresh=fresh, drop_last=drop_last)
        except ValueError:
            assert not wanted
            continue
        except DuplexError:
            assert len(base) + len(wanted) + most > LIMIT
            continue
        assert len(base) + len(wanted) + most <= LIMIT
        assert spelled(joined(planned.before)) == base
        assert spelled(planned.feed) == wanted
        assert (planned.start, planned.prompt) == (len(base), len(base) + len(wanted))
        assert planned.anew == (not base)
        if chosen is not None:
            ledger.commit(planned, chosen)
            context = [*base, *wanted, *(("id", each) for each in chosen[:-1])]
            pending = [("id", chosen[-1])]
        assert ledger.context == len(context)
        assert ledger.pending == (pending[0][1] if pending else None)


@given(st.lists(feeds(), max_size=5))
def test_joined_feeds_are_one_after_the_other(parts: list[Feed]) -> None:
    assert spelled(joined(parts)) == [each for part in parts for each in spelled(part)]


@given(feeds(), st.data())
def test_a_part_of_a_feed_is_its_positions(feed: Feed, data: Any) -> None:
    start = data.draw(st.integers(0, len(feed)))
    stop = data.draw(st.integers(start, len(feed)))
    whole = msgspec.structs.replace(
        feed, spans=tuple(span._replace(item=tuple(range(span.length))) for span in feed.spans)
    )
    part = cut(whole, start, stop, lambda item, low, high: item[low:high])

    def rows(some: Feed) -> list[Position]:
        return [(kind, what[0][what[1]] if kind == "embedding" else what) for kind, what in spelled(some)]

    assert rows(part) == rows(whole)[start:stop]


def test_an_append_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Ledger(LIMIT).plan(Feed(ids=(1,)), 0)


def test_what_does_not_fit_is_said_in_numbers() -> None:
    ledger = Ledger(8)
    planned: Planned = ledger.plan(Feed(ids=(1, 2)), 6)
    ledger.commit(planned, [3, 4])
    with pytest.raises(DuplexError, match="holds 3 of 8 positions; 3 more and up to 3 tokens do not fit") as refused:
        ledger.plan(Feed(ids=(5, 6)), 3)
    assert refused.value.info.code is ErrorCode.CONTEXT_FULL
    ledger.plan(Feed(ids=(5, 6)), 2)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(("claim", "rest", "drop")), st.integers(1, 90)), max_size=30
    )
)
def test_no_more_is_held_than_there_is_and_nobody_busy_is_set_aside(steps: list[tuple[str, str, int]]) -> None:
    cache = Cache(100, 10)
    held: dict[str, int] = {}
    busy: set[str] = set()
    rested: list[str] = []
    for key, what, positions in steps:
        if what == "drop" or (what == "rest" and key not in held):
            cache.drop(key)
            held.pop(key, None)
            busy.discard(key)
        elif what == "rest":
            held[key] = min(held[key], -(-positions // 10))
            cache.rest(key, held[key] * 10)
            busy.discard(key)
            rested = [each for each in rested if each != key] + [key]
        else:
            victims = cache.victims(key, positions)
            idle = [each for each in held if each not in busy and each != key]
            needed = max(held.get(key, 0), -(-positions // 10))
            if victims is None:
                assert sum(blocks for each, blocks in held.items() if each in busy and each != key) + needed > 10
                with pytest.raises(ValueError, match="not free"):
                    cache.claim(key, 1000)
                continue
            assert set(victims) <= set(idle)
            assert list(victims) == [each for each in rested if each in idle][: len(victims)]
            for each in victims:
                cache.drop(each)
                del held[str(each)]
            cache.claim(key, positions)
            held[key] = needed
            busy.add(key)
        assert cache.free == 10 - sum(held.values()) >= 0
        assert cache.used == pytest.approx(sum(held.values()) / 10)


class Somebody:
    """A session or a chat that asks for room."""

    def __init__(self, name: str, *, first: bool = True) -> None:
        self.name = name
        self.first = first
        self.put_out = 0
        self.room: Room | None = None

    def set_aside(self) -> None:
        assert self.room is not None
        self.put_out += 1
        self.room.drop(self)


async def test_a_chat_in_line_lets_sessions_pass_but_not_for_ever() -> None:
    room, order = Room(Cache(10, 10)), []

    async def turn(somebody: Somebody) -> None:
        await room.claim(somebody, 10)
        order.append(somebody.name)
        await asyncio.sleep(0)
        room.drop(somebody)

    holder = Somebody("holder")
    await room.claim(holder, 10)
    async with asyncio.TaskGroup() as group:
        group.create_task(turn(Somebody("chat", first=False)))
        for number in range(PASSED + 3):
            group.create_task(turn(Somebody(f"s{number}")))
        await asyncio.sleep(0)
        room.drop(holder)
    assert order == [
        *(f"s{number}" for number in range(PASSED)),
        "chat",
        *(f"s{PASSED + number}" for number in range(3)),
    ]


async def test_who_gives_up_waiting_leaves_the_line_moving() -> None:
    room, holder, late = Room(Cache(20, 10)), Somebody("holder"), Somebody("late")
    holder.room = room
    await room.claim(holder, 20)
    waiting = [asyncio.create_task(room.claim(each, 20)) for each in (Somebody("gone"), late)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    room.rest(holder, 15)
    await waiting[1]
    assert holder.put_out == 1
    assert room.used == 1.0
    assert waiting[0].cancelled()
