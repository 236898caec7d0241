"""What is told of a growing transcript never takes anything back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_core.machine.transcript import TranscriptState, agreed_prefix, follow_transcript

STEADY = settings(derandomize=True, database=None, deadline=None)
texts = st.text(alphabet="ab c", max_size=12) | st.text(max_size=12)
growing = st.lists(st.sampled_from(["turn ", "on ", "the ", "light", " now", "lights", "\n"]), max_size=8).map("".join)


def tell(*hypotheses: str, final: bool = True) -> list[str]:
    state, deltas = TranscriptState(), []
    for number, text in enumerate(hypotheses, 1):
        state, delta = follow_transcript(state, text, final=final and number == len(hypotheses))
        deltas.append(delta)
    return deltas


def test_a_word_is_told_once_two_hypotheses_agree_on_it() -> None:
    assert tell("turn", "turn on", "turn on the", "turn on the light.") == ["", "turn", " on", " the light."]


def test_a_word_that_still_changes_is_not_told() -> None:
    assert tell("I sea", "I seem to", "I seem to be", final=False) == ["", "I", " seem to"]


def test_a_final_hypothesis_that_contradicts_tells_nothing_more() -> None:
    assert tell("red car", "red car is", "read car is") == ["", "red car", ""]


def test_a_final_hypothesis_alone_is_told_whole() -> None:
    assert tell("Hello there.") == ["Hello there."]


def test_the_agreed_words() -> None:
    assert agreed_prefix("one two", "one two three") == "one two"
    assert agreed_prefix("one two", "one twofold three") == "one"
    assert agreed_prefix("one", "two") == ""
    assert agreed_prefix("", "two") == ""
    assert agreed_prefix("one two three", "one two") == "one two"


@STEADY
@given(first=texts, second=texts)
def test_what_is_agreed_begins_both(first: str, second: str) -> None:
    agreed = agreed_prefix(first, second)
    assert second.startswith(agreed)
    assert first.startswith(agreed)


@STEADY
@given(hypotheses=st.lists(texts | growing, min_size=1, max_size=8), final=st.booleans())
def test_deltas_put_together_begin_some_hypothesis_and_end_the_last_when_nothing_contradicts(
    hypotheses: list[str], final: bool
) -> None:
    state, story = TranscriptState(), ""
    for number, text in enumerate(hypotheses, 1):
        last = final and number == len(hypotheses)
        state, delta = follow_transcript(state, text, final=last)
        story += delta
        assert state.told == story
        assert state.last == text
        assert any(one.startswith(story) for one in hypotheses[:number])
        if last and text.startswith(story):
            assert story == text
