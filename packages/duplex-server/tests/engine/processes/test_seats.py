"""Seats: sticky, least loaded, bounded for each kind; chats in line, in order; what a replica takes with it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.stages import Purpose
from duplex_server.engine.stages.processes.driver import Seats
from duplex_server.engine.stages.processes.seats import Seating


def seating(*, replicas: int = 2, sessions: int = 2, chats: int = 1, line: int = 3) -> Seating:
    made = Seating("work", Seats(sessions=sessions, chats=chats), line=line)
    for replica in range(replicas):
        made.replica_up(replica)
    return made


def test_sessions_go_where_the_fewest_sit_and_stay_there() -> None:
    seats = seating()
    assert [seats.place(each) for each in "abcd"] == [0, 1, 0, 1]
    seats.leave("a")
    seats.leave("c")
    assert seats.place("e") == 0
    assert [seats.where(each) for each in "bde"] == [1, 1, 0]


def test_a_chat_counts_where_it_is_least_loaded_but_takes_no_sessions_seat() -> None:
    seats = seating(sessions=1, chats=1)
    assert seats.join("chat") == 0
    assert [seats.place(each) for each in "ab"] == [1, 0]
    with pytest.raises(DuplexError) as refused:
        seats.place("c")
    assert refused.value.info.code is ErrorCode.RESOURCE_EXHAUSTED
    assert refused.value.info.message == "all 2 seats of the model's stage work are taken"
    assert seats.where("c") is None


def test_without_a_replica_nobody_is_placed() -> None:
    with pytest.raises(DuplexError) as refused:
        seating(replicas=0).place("a")
    assert refused.value.info.code is ErrorCode.ENGINE_ERROR
    assert refused.value.info.retryable


def test_chats_wait_in_line_and_move_up_in_order() -> None:
    seats = seating(replicas=1, chats=1)
    assert [seats.join(each) for each in ("one", "two", "three", "four")] == [0, None, None, None]
    with pytest.raises(DuplexError, match="3 chat requests wait"):
        seats.join("five")
    seats.leave("three")
    seats.leave("one")
    assert seats.seated() == [("two", 0)]
    assert seats.seated() == []
    seats.leave("two")
    assert seats.join("six") is None, "a seat that is free is the next one's in line"
    assert seats.seated() == [("four", 0)]


def test_the_line_outlives_a_replica_and_who_sat_there_does_not() -> None:
    seats = seating(replicas=1, chats=1)
    seats.place("a")
    assert [seats.join("one"), seats.join("two")] == [0, None]
    assert seats.replica_down(0) == {"a": Purpose.SESSION, "one": Purpose.CHAT}
    assert (seats.up, seats.where("a"), seats.seated()) == (0, None, [])
    seats.replica_up(0)
    assert seats.seated() == [("two", 0)]


def test_a_stage_without_seats_for_chats_says_so() -> None:
    with pytest.raises(DuplexError, match="takes no chat requests"):
        seating(chats=0).join("chat")


class Anything(RuleBasedStateMachine):
    """Whatever happens in whatever order, the seats are enough and nobody is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.seats = seating(replicas=0, sessions=2, chats=2, line=2)
        self.up: set[int] = set()
        self.sat: dict[str, int] = {}

    @rule(replica=st.integers(0, 2))
    def replica_changes(self, replica: int) -> None:
        if replica in self.up:
            self.up.discard(replica)
            gone = {who for who, where in self.sat.items() if where == replica}
            assert set(self.seats.replica_down(replica)) == gone
            self.sat = {who: where for who, where in self.sat.items() if who not in gone}
        else:
            self.up.add(replica)
            self.seats.replica_up(replica)

    @rule(who=st.sampled_from("abcdefgh"))
    def a_session_comes(self, who: str) -> None:
        if who not in self.sat:
            try:
                self.sat[who] = self.seats.place(who)
            except DuplexError:
                assert self.seats.taken(Purpose.SESSION) == 2 * len(self.up)

    @rule(who=st.sampled_from("ABCDEFGH"))
    def a_chat_comes(self, who: str) -> None:
        if who in self.sat or self.seats.waits(who):
            return
        try:
            where = self.seats.join(who)
        except DuplexError:
            assert self.seats.waiting == 2
        else:
            if where is not None:
                self.sat[who] = where

    @rule(who=st.sampled_from("abcdefghABCDEFGH"))
    def somebody_goes(self, who: str) -> None:
        assert self.seats.leave(who) == self.sat.pop(who, None)

    @rule()
    def the_line_moves(self) -> None:
        for who, where in self.seats.seated():
            assert who not in self.sat
            self.sat[who] = where

    @invariant()
    def all_sit_where_they_sat(self) -> None:
        for who, where in self.sat.items():
            assert self.seats.where(who) == where
            assert where in self.up
        for replica in self.up:
            sessions = [who for who, where in self.sat.items() if where == replica and who.islower()]
            chats = [who for who, where in self.sat.items() if where == replica and who.isupper()]
            assert max(len(sessions), len(chats)) <= 2
        assert self.seats.waiting <= 2


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
