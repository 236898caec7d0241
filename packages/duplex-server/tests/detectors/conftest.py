"""Speech and noise for the detectors' tests: synthesised where samples must be the same everywhere."""

import numpy as np
import numpy.typing as npt
import py_nanotts
import pytest

from duplex_server.detectors import SileroBatch

SENTENCES = (
    ("en-US", "Hello there, how are you doing today? I would like to know the weather in Paris."),
    ("en-GB", "Please stop. That is not what I asked for; tell me about the second one instead."),
    ("de-DE", "Guten Tag, ich möchte gern einen Tisch für zwei Personen bestellen."),
)


@pytest.fixture(scope="session")
def voices() -> list[npt.NDArray[np.int16]]:
    """Three synthesised utterances, int16 at 16 kHz, by three voices."""
    speaker = py_nanotts.NanoTTS()
    return [np.frombuffer(speaker.speak(text, voice=voice), np.int16) for voice, text in SENTENCES]


@pytest.fixture(scope="session")
def silero() -> SileroBatch:
    """The network, loaded once; all state is the caller's."""
    return SileroBatch()
