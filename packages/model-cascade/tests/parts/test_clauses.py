"""Where an answer is cut into clauses."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_cascade.parts.clauses import DEFAULT_LENGTHS, ClauseLength, ClauseSplitter

_WORDS = [
    *("a", "Dr.", "e.g.", "3.5", "yes,", "Well,", "no.", "What?!", "U.S.", "I.", "J.", "1.", "...", '"go."', "\u2014"),
    *("and", "etc.", "5", "p.m.", "The", "(so)", "\U0001f642", "na\u00efve;", "x" * 60),
]
_SPACES = [" ", "  ", "\n", "\n\n", " \t", "\u00a0"]
texts = st.one_of(
    st.text(max_size=300),
    st.lists(st.tuples(st.sampled_from(_WORDS), st.sampled_from(_SPACES)), max_size=60).map(
        lambda pairs: "".join(itertools.chain.from_iterable(pairs))
    ),
)


def split(text: str, cuts: list[int] | None = None) -> list[str]:
    splitter = ClauseSplitter()
    edges = [0, *sorted(cuts or []), len(text)]
    clauses = [clause for a, b in itertools.pairwise(edges) for clause in splitter.feed(text[a:b])]
    return [*clauses, *splitter.finish()]


@given(texts, st.data())
def test_no_character_is_lost_repeated_or_moved_however_the_text_comes(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=40))
    clauses = split(text, cuts)
    assert "".join(clauses) == text
    assert all(clauses)
    assert clauses == split(text), "where it cuts must not depend on how the text was divided"


@given(texts)
def test_no_clause_has_more_words_than_it_may(text: str) -> None:
    for place, clause in enumerate(split(text)):
        most = DEFAULT_LENGTHS[min(place, len(DEFAULT_LENGTHS) - 1)].most
        assert sum(any(one.isalnum() for one in word) for word in clause.split()) <= most + 1


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("Yes", ["Yes"]),
        ("", []),
        ("  ", ["  "]),
        ("Hello! How are you?", ["Hello! ", "How are you?"]),
        ("Well, I do not know.", ["Well, ", "I do not know."]),
        ("It costs 3.5 dollars. Cheap.", ["It costs 3.5 dollars. ", "Cheap."]),
        ("Dr. Smith is in. Mrs. Jones is not.", ["Dr. Smith is in. ", "Mrs. Jones is not."]),
        ("Use tools, e.g. a saw. Fine.", ["Use tools, ", "e.g. a saw. ", "Fine."]),
        ("We met at 5 p.m. yesterday. Then at 6 p.m. We left.", ["We met at 5 p.m. yesterday. ", "Then at 6 p.m. ", "We left."]),
        ("J. R. R. Tolkien did. So did I. Then?", ["J. R. R. Tolkien did. ", "So did I. ", "Then?"]),
        ("1. Do this. 2. Do that.", ["1. Do this. ", "2. Do that."]),
        ("The answer is 42. And that is it.", ["The answer is 42. ", "And that is it."]),
        ('He said "go." And left.', ['He said "go." ', "And left."]),
        ("What?! No way... really.", ["What?! ", "No way... ", "really."]),
        ("one\ntwo\n\n- three", ["one\n", "two\n\n", "- three"]),
        ("...Hm. What?", ["...Hm. ", "What?"]),
    ],
)  # fmt: skip
def test_clauses(text: str, clauses: list[str]) -> None:
    assert split(text) == clauses


def test_the_first_clause_does_not_wait_for_punctuation() -> None:
    splitter = ClauseSplitter()
    found: list[str] = []
    fed = 0
    for word in [*("I", "am", "a", "large", "language", "model", "and"), *("I", "was", "trained", "by", "people")]:
        fed += 1
        found = splitter.feed(word + " ")
        if found:
            break
    assert found == ["I am a large language model "], "cut before the joining word"
    assert fed == 8


def test_a_comma_ends_the_first_clause_as_soon_as_the_next_word_begins() -> None:
    splitter = ClauseSplitter()
    assert splitter.feed("Sure,") == []
    assert splitter.feed(" ") == []
    assert splitter.feed("I") == ["Sure, "]


def test_later_clauses_may_be_longer() -> None:
    text = (
        "Yes, " + "and now, my dear friend, listen to what I say, which is long, and so on, for ever, and ever, amen, "
    )
    clauses = split(text)
    assert [len(clause.split()) for clause in clauses[:2]] == [1, 5]
    assert all(len(clause.split()) >= 6 for clause in clauses[2:-1])


def test_the_lengths_can_be_chosen() -> None:
    splitter = ClauseSplitter((ClauseLength(least=1, most=1),))
    assert splitter.feed("one two three ") == ["one ", "two "]
    assert splitter.finish() == ["three "]
    assert splitter.finish() == []
