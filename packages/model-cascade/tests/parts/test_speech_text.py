"""What is left of any text for a voice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_cascade.parts.speech_text import pieces, speakable


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Hello there, how are you?", "Hello there, how are you?"),
        ("", ""),
        ("...", ""),
        ("🙂", ""),
        ("日本語", ""),
        ("Hi 🙂!", "Hi !"),
        ("naïve café", "naive cafe"),
        ("\u201cQuoted\u201d \u2013 and \u2019tis", '"Quoted", and \'tis'),
        ("Tom & Ann, 20% = 1/5 + x", "Tom and Ann, 20 percent equals 1 over 5 plus x"),
        ("**bold** _and_ `code`", "bold and code"),
        ("# Head\n* one\n- two", "Head one two"),
        ("mail foo@bar.com", "mail foo at bar dot com"),
        ("see https://www.example.org.", "see example dot org."),
        ('<volume level="200">loud</volume>', "loud"),
        ("3 < 4", "3 less than 4"),
        ("it is 3.5, or $2.50", "it is 3.5, or $2.50"),
        ("wait!!! what?!", "wait! what?"),
        ("12345678901234567890", " ".join("12345678901234567890")),
        ("5/3/2024 and/or", "5 3 2024 and or"),
        ("½ cup", "1 over 2 cup"),
    ],
)
def test_speakable(text: str, said: str) -> None:
    assert speakable(text) == said


@given(st.text(max_size=400))
def test_any_text_becomes_plain_or_empty_and_stays_so(text: str) -> None:
    said = speakable(text)
    assert "\n" not in said
    assert all(one.isascii() or one in "£€" for one in said)
    assert not set(said) & set("<>&*_`#@"), "nothing that a voice could take for a command"
    assert all(len(word) <= 40 for word in said.split())
    assert said == "" or any(one.isalnum() for one in said)


@given(st.lists(st.text("abc,. ", min_size=1, max_size=30), max_size=30).map(" ".join), st.integers(10, 80))
def test_pieces_are_short_and_lose_no_word(text: str, longest: int) -> None:
    found = pieces(text, longest)
    assert all(len(piece) <= longest for piece in found)
    kept = [one for one in text if one.isalnum()]
    assert [one for one in "".join(found) if one.isalnum()] == kept


def test_pieces_end_after_sentences_where_they_can() -> None:
    assert pieces("One two. Three four, five six.", 14) == ["One two.", "Three four,", "five six."]
