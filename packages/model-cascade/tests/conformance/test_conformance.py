"""The conformance suite on the cascade: real recogniser, real language model, real voice, real speech, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
import pydantic
import soxr

from duplex_core.config import SessionConfig
from duplex_core.events import Event, OutputTranscriptDone, TranscriptionCompleted
from duplex_core.testing.conformance import ModelConformance
from model_cascade.parts.voices import load_voice
from model_cascade.plugin import duplex_register_models
from model_cascade.settings import CascadeSettings, LanguageModelSettings


@cache
def spoken(text: str) -> bytes:
    """A line in the fast voice: 16-bit mono PCM at 16 kHz."""
    voice = load_voice("nano-gb")
    samples = soxr.resample(voice.synthesize(text), voice.sample_rate_hz, 16000)
    return bytes(samples.astype(np.int16).tobytes())


class TestConformance(ModelConformance):
    """What every model package must pass."""

    spec = duplex_register_models()[0]
    plugin = "model_cascade.plugin"
    max_points = 5
    question = "What is the capital of France?"
    tool_request = "Please use lookup."

    @classmethod
    def deploy(cls) -> pydantic.BaseModel:
        """One voice, short answers, and no lots drawn."""
        return CascadeSettings(voices=("nano",), language_model=LanguageModelSettings(temperature=0.0, max_tokens=24))

    @classmethod
    def config(cls) -> SessionConfig:
        """The package's own, with a fixed question's answer always the same."""
        return msgspec.structs.replace(cls.spec.session_config(cls.deploy()), temperature=0.0)

    @classmethod
    def speech(cls) -> bytes:
        """A question."""
        return spoken("What is the capital of France?")

    @classmethod
    def comparable(cls, events: Sequence[Event]) -> object:
        """The words: how the language model's cache was filled shows in the last digits of its arithmetic."""
        words = [
            event.transcript for event in events if isinstance(event, OutputTranscriptDone | TranscriptionCompleted)
        ]
        assert len(words) == 2
        return words

    @classmethod
    def other_speech(cls) -> bytes:
        """Another."""
        return spoken("What color is the sky?")
