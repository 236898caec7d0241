"""The loudspeaker as a function of time: what sounds when, and what an interruption leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_client.playback import PlaybackClock
from tests.clients.scripted import RATE_HZ, tone


def test_audio_that_arrives_faster_than_it_sounds_queues_up() -> None:
    clock = PlaybackClock()
    for value in (1, 2, 3):
        assert clock.add("a", tone(100, value), RATE_HZ, 1000.0)
    assert clock.idle_at_ms == 1300.0
    assert clock.played_ms("a", 1000.0) == 0.0
    assert clock.played_ms("a", 1250.0) == 250.0
    assert clock.played_ms("a", 5000.0) == clock.generated_ms("a") == 300.0


def test_a_gap_in_the_arrival_is_a_gap_in_what_is_heard() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(100), RATE_HZ, 1000.0)
    clock.add("a", tone(100), RATE_HZ, 1150.0)
    assert clock.playing(1050.0) == "a"
    assert clock.playing(1120.0) is None
    assert clock.played_ms("a", 1120.0) == 100.0
    assert clock.played_ms("a", 1200.0) == 150.0
    assert [span.starts_at_ms for span in clock.spans("a", 1200.0)] == [1000.0, 1150.0]


def test_one_can_tell_when_so_much_will_have_been_heard() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(100), RATE_HZ, 1000.0)
    clock.add("a", tone(100), RATE_HZ, 1150.0)
    assert clock.sounds_at_ms("a", 100.0) == 1100.0
    assert clock.sounds_at_ms("a", 140.0) == 1190.0
    assert clock.sounds_at_ms("a", 201.0) is None
    assert clock.sounds_at_ms("b", 1.0) is None


def test_dropping_cuts_at_the_very_sample_and_refuses_the_rest() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(500), RATE_HZ, 0.0)
    assert clock.drop(123.0, "a") == ("a",)
    assert clock.idle_at_ms == 123.0
    assert clock.played_ms("a", 9999.0) == 123.0
    assert clock.generated_ms("a") == 500.0
    assert not clock.add("a", tone(100), RATE_HZ, 130.0)
    assert clock.playing(130.0) is None


def test_dropping_what_was_heard_whole_cuts_nothing() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(100), RATE_HZ, 0.0)
    assert clock.drop(100.0) == ()
    assert clock.played_ms("a", 200.0) == 100.0


def test_the_answer_behind_a_dropped_one_moves_up() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(300), RATE_HZ, 0.0)
    clock.add("b", tone(100), RATE_HZ, 10.0)
    clock.add("b", tone(100), RATE_HZ, 10.0)
    assert clock.drop(50.0, "a") == ("a",)
    assert clock.playing(60.0) == "b"
    assert clock.ends_at_ms("b") == 250.0


def test_dropping_the_answer_behind_leaves_the_one_that_sounds() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(300), RATE_HZ, 0.0)
    clock.add("b", tone(100), RATE_HZ, 0.0)
    assert clock.drop(50.0, "b") == ("b",)
    assert clock.played_ms("a", 300.0) == 300.0
    assert clock.ends_at_ms("b") is None
    assert clock.played_ms("b", 1000.0) == 0.0


def test_an_answer_dropped_before_it_arrived_is_never_played() -> None:
    clock = PlaybackClock()
    assert clock.drop(0.0, "late") == ()
    assert not clock.add("late", tone(100), RATE_HZ, 1.0)


def test_forgetting_gives_memory_back_and_refuses_more() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(100), RATE_HZ, 0.0)
    clock.forget("a")
    assert clock.spans("a", 100.0) == ()
    assert not clock.add("a", tone(100), RATE_HZ, 100.0)


def test_a_sound_card_gets_the_line_with_its_gaps() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(10, 5), RATE_HZ, 100.0)
    clock.add("a", tone(10, 7), RATE_HZ, 115.0)
    out = b"".join(clock.render(at, 10.0, RATE_HZ) for at in (95.0, 105.0, 115.0))
    assert out == tone(5, 0) + tone(10, 5) + tone(5, 0) + tone(10, 7)


@given(
    parts=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 400), st.integers(0, 300)), min_size=1, max_size=12),
    drop_after=st.integers(0, 2000),
    whose=st.sampled_from(["a", "b", None]),
)
def test_nothing_dropped_sounds_after_the_drop_and_nothing_heard_is_lost(
    parts: list[tuple[str, int, int]], drop_after: int, whose: str | None
) -> None:
    clock, now = PlaybackClock(), 0.0
    for name, ms, wait in parts:
        now += wait
        clock.add(name, tone(ms), RATE_HZ, now)
    at = now + drop_after
    before = {name: clock.played_ms(name, at) for name in "ab"}
    cut = clock.drop(at, whose)
    for name in "ab":
        assert clock.played_ms(name, at) == pytest.approx(before[name], abs=1000 / RATE_HZ)
        later = clock.played_ms(name, at + 10_000)
        if name in cut:
            assert later == pytest.approx(before[name], abs=1000 / RATE_HZ)
        else:
            assert later == pytest.approx(clock.generated_ms(name), abs=1e-6)
    assert clock.idle_at_ms <= now + sum(ms for _, ms, _ in parts) + 1e-6


def test_what_is_held_goes_on_where_it_stopped() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(1000), RATE_HZ, 0.0)
    clock.hold(300.0)
    assert clock.holding
    assert clock.playing(500.0) is None
    assert clock.played_ms("a", 500.0) == 300.0
    assert clock.ends_at_ms("a") == float("inf")
    clock.add("a", tone(200), RATE_HZ, 400.0)
    clock.resume(900.0)
    assert clock.playing(1000.0) == "a"
    assert clock.ends_at_ms("a") == 900.0 + 700.0 + 200.0
    assert b"".join(span.pcm for span in clock.spans("a", 5000.0)) == tone(1000) + tone(200)
    offsets = [(span.offset_ms, span.duration_ms) for span in clock.spans("a", 5000.0)]
    assert offsets == [(0.0, 300.0), (300.0, 700.0), (1000.0, 200.0)]


def test_what_is_dropped_while_it_is_held_never_sounds() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(1000), RATE_HZ, 0.0)
    clock.add("b", tone(100), RATE_HZ, 0.0)
    clock.hold(300.0)
    assert clock.drop(400.0, "a") == ("a",)
    clock.resume(500.0)
    assert clock.played_ms("a", 5000.0) == 300.0
    assert clock.playing(550.0) == "b"
    assert not clock.add("a", tone(10), RATE_HZ, 600.0)


def test_holding_twice_and_going_on_without_a_hold_change_nothing() -> None:
    clock = PlaybackClock()
    clock.add("a", tone(1000), RATE_HZ, 0.0)
    clock.resume(100.0)
    clock.hold(200.0)
    clock.hold(400.0)
    clock.resume(500.0)
    assert clock.ends_at_ms("a") == 1300.0
