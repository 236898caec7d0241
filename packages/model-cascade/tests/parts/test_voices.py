"""Both voices, heard by the recogniser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_cascade.parts import voices as voices_module
from model_cascade.parts.errors import CancelledError, PartError
from model_cascade.parts.nano_voice import NanoVoice
from model_cascade.parts.voices import VOICE_NAMES, Pcm, Voice, load_voice, paced

Voices = Callable[[str], Voice]
SENTENCES = (
    "Hello, how are you today?",
    "What is the capital of France?",
    "Please tell me about the weather.",
    "I would like to book a table for two people.",
    "Wait, stop. What about Germany?",
    "The quick brown fox jumps over the lazy dog.",
)
# Of 44 words the recogniser gets 0 wrong from joe and nano-gb and 1 from nano, each time.
MOST_ERRORS = {"joe": 2, "nano": 3, "nano-gb": 2}
AWKWARD = (
    *("", "   ", "...", "🙂", "日本語", "\x00", "<b", "</volume>", '<volume level="0">hm', "a<b>c", "&amp;", "%s %n"),
    *("1234567890123", "-5 + 7 = 12", "$3.50", "£1,000,000", "10:30", "5/3/2024", "3/4", "xqzwv", "A" * 50, "'" * 9),
    *("O'Brien's", "e.g. i.e. etc.", "U.S.A. NASA", "naïve Ærøskøbing", "٣٤٥", "Ⅷ", "don\u2019t\u2014stop", "\ud800"),
)


@pytest.mark.parametrize("name", VOICE_NAMES)
def test_what_a_voice_says_is_understood(
    name: str, voices: Voices, hear: Callable[[Pcm, int], str], word_errors: Callable[[str, str], tuple[int, int]]
) -> None:
    voice = voices(name)
    assert voice.name == name
    wrong = 0
    for sentence in SENTENCES:
        samples = voice.synthesize(sentence)
        assert samples.dtype == np.int16
        assert samples.ndim == 1
        wrong += word_errors(sentence, hear(samples, voice.sample_rate_hz))[0]
    assert wrong <= MOST_ERRORS[name]


@pytest.mark.parametrize("name", ["joe", "nano"])
@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("The ticket costs $3.50 today.", r"costs (\$3\.50|(three|3) dollars,? (and )?(fifty|50) cents)"),
        ("About 20% of people agree.", r"about (twenty|20) ?(%|percent) of"),
    ],
)
def test_numbers_are_read_as_numbers(
    name: str, text: str, heard: str, voices: Voices, hear: Callable[[Pcm, int], str]
) -> None:
    """Joe never says a sentence twice alike: these were understood in each of 456 and 559 draws, and others not always."""
    voice = voices(name)
    assert re.search(heard, hear(voice.synthesize(text), voice.sample_rate_hz).lower())


def test_joe_loads_where_warnings_are_errors_and_nothing_was_compiled_before(tmp_path: Path) -> None:
    """What Python warns of as it compiles a dependency it says once, so only to who comes first."""
    command = [sys.executable, "-W", "error", "-c", "import model_cascade.parts.joe_voice"]
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["joe", "nano"])
@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_gives_sound_or_nothing(name: str, text: str, voices: Voices) -> None:
    voice = voices(name)
    samples = voice.synthesize(text)
    assert samples.dtype == np.int16
    assert samples.size < 20 * voice.sample_rate_hz


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60))
def test_no_text_breaks_the_fast_voice(text: str, voices: Voices) -> None:
    assert voices("nano").synthesize(text).dtype == np.int16


@settings(max_examples=15, deadline=None)
@given(text=st.text(max_size=30))
def test_no_text_breaks_the_natural_voice(text: str, voices: Voices) -> None:
    assert voices("joe").synthesize(text).dtype == np.int16


@pytest.mark.parametrize("text", ["", "🙂", "...", "日本語"])
def test_nothing_to_say_is_no_sound(text: str, voices: Voices) -> None:
    assert voices("nano").synthesize(text).size == 0
    assert voices("joe").synthesize(text).size == 0


@pytest.mark.parametrize("name", ["joe", "nano"])
def test_a_long_clause_is_spoken_whole_and_can_be_given_up_between_pieces(name: str, voices: Voices) -> None:
    voice = voices(name)
    text = "This is a rather long clause that goes on and on " * 5
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked == 2

    with pytest.raises(CancelledError):
        voice.synthesize(text, cancelled)
    assert asked == 2
    assert voice.synthesize(text).size > 8 * voice.sample_rate_hz


def test_clauses_begin_at_once_and_end_with_the_pause_that_their_punctuation_asks_for(voices: Voices) -> None:
    for voice in (voices("nano"), voices("joe")):
        sentence, part = (voice.synthesize(text) for text in ("We can go.", "We can go"))
        for samples, pause_ms in ((sentence, 260), (part, 30)):
            loud = np.flatnonzero(np.abs(samples.astype(int)) > 0.05 * np.abs(samples.astype(int)).max())
            assert loud[0] < 0.06 * voice.sample_rate_hz
            silent_ms = (samples.size - loud[-1]) * 1000 / voice.sample_rate_hz
            assert pause_ms <= silent_ms < pause_ms + 120


def test_the_voices_do_not_clip(voices: Voices) -> None:
    for voice in (voices("nano"), voices("joe")):
        samples = voice.synthesize("The weather in Paris is quite nice today.").astype(int)
        assert 6_000 < np.abs(samples).max() < 32_000


def test_silence_is_cut_away_whole() -> None:
    assert paced(np.zeros(1000, np.int16), "x.", 16_000).size == 0
    assert paced(np.zeros(0, np.int16), "x.", 16_000).size == 0


def test_the_speed_can_be_chosen() -> None:
    text = "The weather in Paris is quite nice today."
    slow, fast = (NanoVoice("nano", speed=speed).synthesize(text).size for speed in (0.8, 1.6))
    assert slow > 1.5 * fast


def test_an_unknown_voice_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(PartError, match=r"no voice 'bob'.*joe, nano, nano-gb"):
        load_voice("bob")
    with pytest.raises(PartError, match="nano"):
        NanoVoice("joe")


def test_voices_may_be_named_without_being_loaded() -> None:
    assert voices_module.VOICE_NAMES == ("joe", "nano", "nano-gb")
