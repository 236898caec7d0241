"""The transition table: every legal move is made as it says, every other raises and changes nothing."""

from __future__ import annotations

import itertools

import pytest

from duplex_core.machine.table import (
    TRANSITIONS,
    Answer,
    Hearing,
    IllegalMove,
    Lanes,
    Life,
    Sound,
    State,
    Trigger,
    following,
)

LANES: tuple[type[State], ...] = (Life, Hearing, Answer, Sound)
STATES: tuple[State, ...] = tuple(state for lane in LANES for state in lane)
MOVES = list(itertools.product(STATES, Trigger))
BEGINNING: dict[type[State], State] = {
    Life: Life.OPEN,
    Hearing: Hearing.QUIET,
    Answer: Answer.NONE,
    Sound: Sound.SILENT,
}


def way_to(goal: State) -> list[Trigger]:
    """The shortest way from the beginning of a lane to one of its states."""
    lane = type(goal)
    ways: dict[State, list[Trigger]] = {BEGINNING[lane]: []}
    frontier = [BEGINNING[lane]]
    while frontier:
        state = frontier.pop(0)
        for trigger, after in TRANSITIONS[state].items():
            if after not in ways:
                ways[after] = [*ways[state], trigger]
                frontier.append(after)
    return ways[goal]


def lanes_in(state: State) -> Lanes:
    lanes = Lanes()
    for trigger in way_to(state):
        lanes.move(type(state), trigger)
    assert state in lanes.snapshot()
    return lanes


def test_the_table_has_every_state() -> None:
    assert set(TRANSITIONS) == set(STATES)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_every_state_can_be_reached(state: State) -> None:
    assert state in lanes_in(state).snapshot()


@pytest.mark.parametrize(("state", "trigger"), MOVES, ids=lambda part: part.name)
def test_every_state_with_every_trigger(state: State, trigger: Trigger) -> None:
    lanes = lanes_in(state)
    before = lanes.snapshot()
    after = TRANSITIONS[state].get(trigger)
    if after is None:
        with pytest.raises(IllegalMove, match=f"no move '{trigger.value}' out of '{state.value}'"):
            lanes.move(type(state), trigger)
        assert lanes.snapshot() == before
        with pytest.raises(IllegalMove):
            following(state, trigger)
        return
    lanes.move(type(state), trigger)
    changed = [one for one, other in zip(lanes.snapshot(), before, strict=True) if one is not other]
    assert after in lanes.snapshot()
    assert changed in ([], [after])
    assert following(state, trigger) is after


def test_moves_stay_in_their_lane() -> None:
    for state, moves in TRANSITIONS.items():
        assert {type(after) for after in moves.values()} <= {type(state)}


def test_a_session_begins_open_quiet_silent_and_without_a_response() -> None:
    lanes = Lanes()
    assert (lanes.life, lanes.hearing, lanes.answer, lanes.sound) == (
        Life.OPEN,
        Hearing.QUIET,
        Answer.NONE,
        Sound.SILENT,
    )


def test_nothing_leads_out_of_the_end() -> None:
    assert not TRANSITIONS[Life.CLOSED]
    assert not TRANSITIONS[Life.CLOSING].keys() - {Trigger.RELEASED}
