"""The voice's stage: a clause in, its sound out. Made on a worker thread by the ``thread`` runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import soxr

from model_cascade.parts.errors import Cancel, CancelledError
from model_cascade.parts.voices import VOICE_NAMES, Pcm, Voice, load_voice
from model_cascade.payloads import Utter, Uttered
from model_cascade.stages.factories import resolve
from model_cascade.stages.telling import told


class VoiceWorker:
    """A :class:`~duplex_core.stages.StageWorker` that holds every configured voice.

    Args:
        voices: names or import paths, the first being the default.
        rate_hz: the rate that every voice is brought to.
    """

    def __init__(self, *, voices: Sequence[str], rate_hz: int) -> None:
        known: dict[str, Callable[[], Voice]] = {name: partial(load_voice, name) for name in VOICE_NAMES}
        self._voices: dict[str, Voice] = {name: resolve(name, known) for name in voices}
        self._default = next(iter(self._voices.values()))
        self._rate_hz = rate_hz

    def run(self, payload: Any, emit: Callable[[Any], None], cancelled: Cancel) -> None:
        """Speak one clause."""
        assert isinstance(payload, Utter)
        voice = self._voices.get(payload.voice, self._default)
        try:
            with told():
                samples = voice.synthesize(payload.text, cancelled)
        except CancelledError:
            return
        emit(Uttered(pcm=self._at_rate(samples, voice.sample_rate_hz).tobytes()))

    def _at_rate(self, samples: Pcm, rate_hz: int) -> Pcm:
        if rate_hz == self._rate_hz or samples.size == 0:
            return samples
        resampled: Pcm = soxr.resample(samples, rate_hz, self._rate_hz, quality="HQ").astype(np.int16)
        return resampled

    def close(self) -> None:
        """Nothing to release: the weights go with the objects."""
