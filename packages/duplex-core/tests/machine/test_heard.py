"""What was heard: the text that goes with a time, and the time that the client's clock must show."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_core.ledger import TextMark
from duplex_core.machine.heard import REMEMBERED, Playback, Speech, Track

STEADY = settings(derandomize=True, database=None, deadline=None)
TEXT = "One two three. Four five six."


def mark(chars: int, ms: float) -> TextMark:
    return TextMark(chars=chars, ms=ms)


# -- text --------------------------------------------------------------------------------------------------------------


def test_nothing_heard_is_no_text_and_all_heard_is_all_of_it() -> None:
    speech = Speech(audio_ms=1000.0, complete=True)
    assert speech.chars(TEXT, 0.0) == 0
    assert speech.chars(TEXT, 1000.0) == len(TEXT)
    assert speech.chars("", 1000.0) == 0


def test_the_models_marks_decide() -> None:
    speech = Speech(marks=[mark(14, 500.0), mark(29, 1000.0)], audio_ms=1000.0, complete=True)
    assert [speech.chars(TEXT, ms) for ms in (499.0, 500.0, 999.0, 1000.0)] == [0, 14, 14, 29]


def test_marks_that_promise_more_text_than_there_is() -> None:
    speech = Speech(marks=[mark(500, 500.0)], audio_ms=1000.0)
    assert speech.chars(TEXT, 600.0) == len(TEXT)


def test_without_marks_a_finished_answer_is_cut_by_proportion_at_a_whole_word() -> None:
    speech = Speech(audio_ms=1000.0, complete=True)
    assert TEXT[: speech.chars(TEXT, 550.0)] == "One two three. "
    assert TEXT[: speech.chars(TEXT, 300.0)] == "One two "


def test_text_that_came_with_sound_ends_where_that_sound_ends() -> None:
    speech = Speech(anchors=[mark(14, 800.0), mark(29, 1000.0)], audio_ms=1000.0, complete=True)
    assert TEXT[: speech.chars(TEXT, 800.0)] == "One two three."
    assert TEXT[: speech.chars(TEXT, 780.0)] == "One two "


def test_text_that_ran_ahead_of_its_sound_was_not_heard_while_the_answer_is_being_made() -> None:
    speech = Speech(audio_ms=240.0)
    assert speech.chars("A long answer whose text was there at once. " * 20, 240.0) == 0
    speech = Speech(anchors=[mark(14, 500.0)], audio_ms=900.0)
    assert speech.chars(TEXT, 900.0) == 14


def test_a_line_break_ends_a_word_too() -> None:
    text = "one\ntwo\nthree\nfour"
    speech = Speech(audio_ms=1800.0, complete=True)
    assert text[: speech.chars(text, 1000.0)] == "one\ntwo\n"


def test_a_language_without_spaces_is_cut_at_the_last_sure_place() -> None:
    text = "今日は良い天気です。明日は雨でしょう。"
    speech = Speech(anchors=[mark(10, 1000.0)], audio_ms=1900.0, complete=True)
    assert speech.chars(text, 1500.0) == 10


def test_what_was_cut_is_gone_for_good() -> None:
    speech = Speech(marks=[mark(3, 100.0), mark(29, 900.0)], audio_ms=1000.0, complete=True)
    kept = TEXT[: speech.chars(TEXT, 500.0)]
    speech.cut(500.0)
    assert kept == "One"
    assert speech.chars(kept, 99999.0) == len(kept)
    assert speech.audio_ms == 500.0


rising = st.lists(st.tuples(st.integers(0, 12), st.floats(0.5, 400.0)), max_size=6).map(
    lambda steps: [
        mark(chars, ms)
        for chars, ms in zip(
            itertools.accumulate(step[0] for step in steps),
            itertools.accumulate(step[1] for step in steps),
            strict=True,
        )
    ]
)
speeches = st.builds(Speech, marks=rising, anchors=rising, audio_ms=st.floats(0.0, 3000.0), complete=st.booleans())
words = st.text(alphabet="ab \n\t天", max_size=60)


@STEADY
@given(speech=speeches, text=words, times=st.lists(st.floats(-10.0, 4000.0), min_size=2, max_size=12))
def test_hearing_longer_is_never_hearing_less(speech: Speech, text: str, times: list[float]) -> None:
    chars = [speech.chars(text, ms) for ms in sorted(times)]
    assert chars == sorted(chars)
    assert all(0 <= count <= len(text) for count in chars)


@STEADY
@given(speech=speeches, text=words, heard_ms=st.floats(0.0, 4000.0))
def test_nothing_is_heard_beyond_what_the_marks_allow(speech: Speech, text: str, heard_ms: float) -> None:
    chars = speech.chars(text, heard_ms)
    if speech.complete and heard_ms >= speech.audio_ms:
        return
    known = speech.marks or speech.anchors
    later = [each.chars for each in known if each.ms > heard_ms]
    if speech.marks:
        assert chars <= max((each.chars for each in known if each.ms <= heard_ms), default=0)
    elif later:
        assert chars <= later[0], "beyond the next sure place"
    elif not speech.complete:
        assert chars <= max((each.chars for each in known), default=0), "text without sound was not heard"


@STEADY
@given(speech=speeches, text=words, cuts=st.lists(st.floats(0.0, 4000.0), min_size=1, max_size=6))
def test_cutting_never_restores(speech: Speech, text: str, cuts: list[float]) -> None:
    for limit in cuts:
        shorter = text[: speech.chars(text, limit)].rstrip()
        speech.cut(limit)
        assert text.startswith(shorter)
        assert len(shorter) <= len(text)
        text = shorter
        assert speech.chars(text, 1e9) <= len(text)


# -- time --------------------------------------------------------------------------------------------------------------


def sounding(*lengths_ms: float, now_ms: float = 0.0, made: bool = True) -> tuple[Playback, list[Track]]:
    playback, tracks = Playback(), []
    for number, ms in enumerate(lengths_ms, 1):
        track = Track(response_id=f"resp_{number}", item_id=f"item_{number}", generated=made)
        playback.begin(track)
        playback.send(track, ms, now_ms)
        tracks.append(track)
    return playback, tracks


def test_without_acknowledgements_the_clock_counts_up_to_what_was_sent() -> None:
    _, (track,) = sounding(1000.0, now_ms=500.0)
    assert [track.heard_ms(now) for now in (500.0, 900.0, 1500.0, 9999.0)] == [0.0, 400.0, 1000.0, 1000.0]


def test_sound_that_comes_too_late_begins_when_it_comes() -> None:
    playback, (track,) = sounding(100.0)
    playback.send(track, 100.0, 1000.0)
    assert track.heard_ms(1000.0) == 100.0
    assert track.heard_ms(1050.0) == 150.0


def test_answers_sound_one_after_the_other() -> None:
    playback, (first, second) = sounding(1000.0, 500.0)
    assert playback.due_ms == 1000.0
    assert playback.ends_at_ms == 1500.0
    assert (first.heard_ms(1200.0), second.heard_ms(1200.0)) == (1000.0, 200.0)
    assert playback.drained(1200.0) == [first]
    assert playback.due_ms == 1500.0


def test_an_acknowledgement_is_believed_and_shifts_what_comes() -> None:
    playback, (first, second) = sounding(1000.0, 500.0)
    playback.acknowledge(first, 300.0, 800.0)
    assert first.heard_ms(99999.0) == 300.0
    assert first.ends_at_ms == 1500.0
    assert second.ends_at_ms == 2000.0
    playback.acknowledge(first, 250.0, 900.0)
    assert first.ledger.played_ms == 300.0, "an older figure takes nothing back"


def test_an_acknowledged_answer_ends_those_before_it() -> None:
    playback, (first, second) = sounding(1000.0, 500.0)
    playback.acknowledge(second, 100.0, 600.0)
    assert playback.drained(600.0) == [first]
    assert second.ends_at_ms == 1000.0


def test_an_acknowledgement_cannot_be_about_what_was_not_sent() -> None:
    playback, (track,) = sounding(1000.0)
    playback.acknowledge(track, 5000.0, 10.0)
    assert track.ledger.played_ms == 1000.0


def test_an_answer_that_is_still_being_made_is_not_over_when_its_sound_runs_out() -> None:
    playback, _ = sounding(100.0, made=False)
    assert playback.drained(9999.0) == []
    assert playback.due_ms is None


def test_what_is_played_no_further_lets_the_next_begin() -> None:
    playback, (first, second, third) = sounding(1000.0, 500.0, 500.0)
    playback.forget(first, 400.0)
    assert [second.ends_at_ms, third.ends_at_ms] == [900.0, 1400.0]
    playback.forget(third, 500.0)
    assert second.ends_at_ms == 900.0


@pytest.mark.parametrize(("response_id", "item_id"), [("resp_1", None), (None, "item_1"), ("resp_1", "item_1")])
def test_an_answer_that_is_over_is_still_known_by_name(response_id: str | None, item_id: str | None) -> None:
    playback, (first, _) = sounding(100.0, 100.0)
    playback.drained(9999.0)
    assert playback.find(response_id, item_id) is first


def test_the_newest_answer_is_meant_when_none_is_named() -> None:
    playback, (_, second) = sounding(100.0, 100.0)
    assert playback.find(None, None) is second
    assert playback.find("resp_1", "item_2") is None
    playback.clear()
    assert playback.find(None, None) is None, "an interruption supersedes them all"


def test_only_so_many_are_remembered() -> None:
    playback, tracks = sounding(*[10.0] * (REMEMBERED + 3))
    playback.drained(9999.0)
    assert playback.find(tracks[0].response_id, None) is None
    assert playback.find(tracks[-1].response_id, None) is tracks[-1]


moves = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.floats(0.1, 500.0)),
        st.tuples(st.just("acknowledge"), st.floats(0.0, 3000.0)),
        st.tuples(st.just("wait"), st.floats(0.0, 500.0)),
        st.tuples(st.just("next"), st.just(0.0)),
        st.tuples(st.just("forget"), st.floats(0.0, 1.0)),
    ),
    max_size=40,
)


@STEADY
@given(moves=moves)
def test_the_ledger_keeps_its_order_and_nobody_hears_what_was_not_sent(moves: list[tuple[str, float]]) -> None:
    playback, now_ms = Playback(), 0.0
    tracks = [Track(response_id="resp_0", item_id="item_0")]
    playback.begin(tracks[0])
    for number, (move, value) in enumerate(moves, 1):
        newest = tracks[-1]
        if move == "send":
            playback.send(newest, value, now_ms)
        elif move == "acknowledge":
            playback.acknowledge(tracks[number % len(tracks)], value, now_ms)
        elif move == "next":
            newest.generated = True
            tracks.append(Track(response_id=f"resp_{number}", item_id=f"item_{number}"))
            playback.begin(tracks[-1])
        elif move == "forget" and len(tracks) > 1:
            playback.forget(tracks[int(value * (len(tracks) - 2))], now_ms)
        else:
            now_ms += value
            playback.drained(now_ms)
        for track in playback.tracks:
            ledger = track.ledger
            assert ledger.generated_ms >= ledger.sent_ms >= ledger.played_ms >= ledger.committed_ms >= 0.0
            assert 0.0 <= track.heard_ms(now_ms) <= ledger.sent_ms
        ends = [track.ends_at_ms for track in playback.tracks if track.ledger.sent_ms]
        assert all(one <= other + 1e-6 for one, other in itertools.pairwise(ends)), "out of order"
