"""The parts, loaded once for all tests, and a measure of how well speech was understood."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import soxr

from model_cascade.parts.local_language_model import LocalLanguageModel
from model_cascade.parts.recognizer import Recognizer
from model_cascade.parts.voices import Pcm, Voice, load_voice


@pytest.fixture(scope="session")
def recognizer() -> Recognizer:
    return Recognizer()


@pytest.fixture(scope="session")
def voices() -> Callable[[str], Voice]:
    loaded: dict[str, Voice] = {}

    def voice(name: str) -> Voice:
        if name not in loaded:
            loaded[name] = load_voice(name)
        return loaded[name]

    return voice


@pytest.fixture(scope="session")
def smollm2() -> Iterator[LocalLanguageModel]:
    model = LocalLanguageModel(slots=2, context_tokens=512, prompt_tokens=256)
    yield model
    model.close()


@pytest.fixture(scope="session")
def hear(recognizer: Recognizer) -> Callable[[Pcm, int], str]:
    """What the recogniser hears in 16-bit samples at any rate."""

    def heard(samples: Pcm, rate_hz: int) -> str:
        return recognizer.transcribe(soxr.resample(samples.astype(np.float32) / 32768.0, rate_hz, 16_000))

    return heard


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower().replace("-", " "))


@pytest.fixture(scope="session")
def word_errors() -> Callable[[str, str], tuple[int, int]]:
    """How many words must be changed, added or taken away (Levenshtein), and how many there are."""

    def errors(said: str, heard: str) -> tuple[int, int]:
        reference, found = words(said), words(heard)
        row = list(range(len(found) + 1))
        for i, one in enumerate(reference, 1):
            diagonal, row[0] = row[0], i
            for j, other in enumerate(found, 1):
                diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (one != other))
        return row[-1], len(reference)

    return errors
