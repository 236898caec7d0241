"""The fast voice: SVOX Pico through py-nanotts.

Owns: how it is called so that no text can be taken for a command or break it. Called by:
:func:`model_cascade.parts.voices.load_voice`. Never: passes markup on.

The library holds the interpreter lock while it computes, 5 ms and more for each second of speech, so long clauses are
spoken in pieces.
"""

from __future__ import annotations

import threading

import numpy as np
import py_nanotts

from model_cascade.parts import weights
from model_cascade.parts.errors import Cancel, CancelledError, PartError, VoiceError, never
from model_cascade.parts.speech_text import pieces, speakable
from model_cascade.parts.voices import Pcm, paced

_LONGEST = 80  # some 25 ms of the interpreter lock
_VOLUME = 0.6  # at 1.0 the loudest syllables clip
_LANGUAGES = {
    "nano": ("en-US", (weights.NANO_ANALYSIS_US, weights.NANO_SIGNAL_US)),
    "nano-gb": ("en-GB", (weights.NANO_ANALYSIS_GB, weights.NANO_SIGNAL_GB)),
}


class NanoVoice:
    """A female voice, American (``nano``) or British (``nano-gb``), 16 000 Hz. About 1/200 of real time on one core.

    Args:
        name: Which of the two.
        speed: How fast it speaks, from 0.5 to 2.0.

    Raises:
        PartError: There is no such voice.
        WeightsError: The weights are missing or are not those that were tested.
    """

    sample_rate_hz = 16_000

    def __init__(self, name: str = "nano", *, speed: float = 1.0) -> None:
        if name not in _LANGUAGES:
            raise PartError(f"There is no voice {name!r} here; choose {' or '.join(_LANGUAGES)}")
        self.name = name
        self._language, files = _LANGUAGES[name]
        for file in files:
            weights.verified(file)
        self._speed = speed
        self._engine = py_nanotts.NanoTTS()
        self._lock = threading.Lock()

    def synthesize(self, text: str, cancelled: Cancel = never) -> Pcm:
        """Speak a clause, as :class:`~model_cascade.parts.voices.Voice` says."""
        found = []
        for piece in pieces(speakable(text), _LONGEST):
            if cancelled():
                raise CancelledError("Speech")
            found.append(self._speak(piece))
        return np.concatenate(found) if found else np.zeros(0, np.int16)

    def _speak(self, piece: str) -> Pcm:
        with self._lock:
            try:
                raw = self._engine.speak(piece, voice=self._language, speed=self._speed, volume=_VOLUME)
            except RuntimeError as error:
                raise VoiceError(f"The voice {self.name} cannot say {piece!r}: {error}") from error
        return paced(np.frombuffer(raw, "<i2").astype(np.int16), piece, self.sample_rate_hz)
