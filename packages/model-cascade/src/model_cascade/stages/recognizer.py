"""The recogniser's stage: audio in, words out. Made on a worker thread by the ``thread`` runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import soxr

from duplex_core.transcribing import Recognize, Recognized
from model_cascade.parts.errors import Cancel, CancelledError
from model_cascade.stages.factories import resolve
from model_cascade.stages.telling import told

RATE_HZ = 16000
"""What recognisers hear."""


class Hears(Protocol):
    """What a recogniser must do; a factory of one may be named in the deploy settings."""

    def transcribe(self, samples: Any, cancelled: Cancel) -> str:
        """The words in float32 samples, shape ``(n,)``, 16 kHz, full scale 1.0; empty when there are none."""


def _moonshine() -> Hears:
    from model_cascade.parts.recognizer import Recognizer  # noqa: PLC0415

    return Recognizer()


class RecognizerWorker:
    """A :class:`~duplex_core.stages.StageWorker`.

    Args:
        recognizer: ``moonshine`` or the import path of a factory.
    """

    def __init__(self, *, recognizer: str) -> None:
        self._hears: Hears = resolve(recognizer, {"moonshine": _moonshine})

    def run(self, payload: Any, emit: Callable[[Any], None], cancelled: Cancel) -> None:
        """Recognise one piece of audio."""
        assert isinstance(payload, Recognize)
        samples = np.frombuffer(payload.pcm, "<i2").astype(np.float32) / 32768.0
        if payload.rate_hz != RATE_HZ:
            samples = soxr.resample(samples, payload.rate_hz, RATE_HZ, quality="HQ")
        try:
            with told():
                emit(Recognized(text=self._hears.transcribe(samples, cancelled)))
        except CancelledError:
            return

    def close(self) -> None:
        """Nothing to release: the weights go with the object."""
