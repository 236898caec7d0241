"""The recogniser, on human speech, on the voices, and on what is no speech."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import soxr

from model_cascade.parts.errors import CancelledError, PartError
from model_cascade.parts.recognizer import Recognizer, _loop, read_vocabulary
from model_cascade.parts.voices import Voice
from tests.support.clips import Clip

THINGS = ("tree", "bench", "gate", "wall", "pond", "path", "table", "statue", "fountain", "flower", "hedge", "swing")
Floats = np.typing.NDArray[np.float32]


def samples_of(clip: Clip) -> Floats:
    return np.frombuffer(clip.pcm(), np.int16).astype(np.float32) / np.float32(32768)


@pytest.fixture(scope="module")
def question(voices: Callable[[str], Voice]) -> Floats:
    voice = voices("nano")
    spoken = voice.synthesize("What is the capital of France?").astype(np.float32) / np.float32(32768)
    samples: Floats = soxr.resample(spoken, voice.sample_rate_hz, 16_000)
    return samples


@pytest.mark.clips
def test_human_speech_is_understood(
    clips: list[Clip], recognizer: Recognizer, word_errors: Callable[[str, str], tuple[int, int]]
) -> None:
    counts = [
        word_errors(clip.transcript.replace("mister", "mr"), recognizer.transcribe(samples_of(clip))) for clip in clips
    ]
    wrong, spoken = (sum(count) for count in zip(*counts, strict=True))
    assert spoken > 70
    assert wrong / spoken <= 0.10, "4 of 87 words when this was written"


def test_case_and_punctuation_come_with_the_words(recognizer: Recognizer, question: Floats) -> None:
    assert recognizer.transcribe(question) == "What is the capital of France?"


@pytest.mark.parametrize("size", [0, 1, 100, 800, 4_000, 16_000, 80_000])
@pytest.mark.parametrize("level", [0.0, 1e-4])
def test_silence_says_nothing(size: int, level: float, recognizer: Recognizer) -> None:
    noise = np.random.default_rng(1).standard_normal(size) * level / 4
    assert recognizer.transcribe(noise.astype(np.float32)) == ""


def test_noise_says_next_to_nothing(recognizer: Recognizer) -> None:
    rng = np.random.default_rng(2)
    said = []
    for _ in range(12):
        noise = rng.standard_normal(rng.integers(8_000, 48_000)) * rng.choice([0.003, 0.01, 0.1])
        said.append(recognizer.transcribe(noise.astype(np.float32)))
    assert sum(bool(text) for text in said) <= 1, said


@pytest.mark.parametrize("size", [1, 50, 300, 1_000, 3_000])
def test_too_little_to_recognise_does_no_harm(size: int, recognizer: Recognizer, question: Floats) -> None:
    assert len(recognizer.transcribe(question[8_000 : 8_000 + size]).split()) <= 2


def test_an_utterance_longer_than_the_model_takes_is_recognised_in_pieces(
    recognizer: Recognizer,
    voices: Callable[[str], Voice],
    word_errors: Callable[[str, str], tuple[int, int]],
) -> None:
    voice = voices("nano-gb")
    text = " ".join(f"The {thing} in my garden is older than the house of my friend." for thing in THINGS)
    spoken = voice.synthesize(text).astype(np.float32) / np.float32(32768)
    assert spoken.size > 35 * voice.sample_rate_hz
    wrong, total = word_errors(text, recognizer.transcribe(spoken))
    assert wrong / total <= 0.08, "3 of 156 words when this was written"


def test_what_repeats_six_times_is_a_loop() -> None:
    assert [_loop(tokens) for tokens in ([1, 2] * 6, [3] * 6, [1, 2] * 5, [4, 1, 2, 3] * 6, [])] == [2, 1, 0, 4, 0]


def test_samples_that_are_no_numbers_are_no_sound(recognizer: Recognizer) -> None:
    assert recognizer.transcribe(np.full(16_000, np.nan, np.float32)) == ""


def test_the_shape_is_checked(recognizer: Recognizer) -> None:
    with pytest.raises(PartError, match=r"\(2, 16000\)"):
        recognizer.transcribe(np.zeros((2, 16_000), np.float32))


def test_recognition_is_given_up_at_the_next_step(recognizer: Recognizer, question: Floats) -> None:
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked == 4

    with pytest.raises(CancelledError):
        recognizer.transcribe(question, cancelled)
    assert asked == 4


def test_two_threads_may_recognise_at_once(recognizer: Recognizer, question: Floats) -> None:
    heard: list[str] = []
    threads = [threading.Thread(target=lambda: heard.append(recognizer.transcribe(question))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == ["What is the capital of France?"] * 2


def test_the_vocabulary_has_lengths_of_one_and_two_bytes() -> None:
    long = b"x" * 300
    assert read_vocabulary(b"\x02hi\x00" + bytes([300 % 128 + 128, 300 // 128]) + long) == [b"hi", b"", long]
