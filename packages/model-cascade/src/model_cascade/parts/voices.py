"""What a voice is, which there are, and what they share.

Owns: the :class:`Voice` protocol, the names of the voices, and the pauses between clauses. Called by: the cascade's
voice stage and whoever checks its configuration. Never: loads a voice when it is imported; each has its own module.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from model_cascade.parts.errors import Cancel, PartError, never

VoiceName = Literal["joe", "nano", "nano-gb"]
VOICE_NAMES: tuple[VoiceName, ...] = get_args(VoiceName)
"""``joe`` sounds natural; ``nano`` and ``nano-gb`` (British) are twenty times as fast and sound like a machine."""

Pcm = npt.NDArray[np.int16]

_HEAD_MS = 15.0
_PAUSES_MS = {",": 140.0, ";": 180.0, ":": 180.0, ".": 260.0, "!": 260.0, "?": 260.0}
_NO_PAUSE_MS = 30.0
_LOUD = 0.02


class Voice(Protocol):
    """Speaks text."""

    @property
    def name(self) -> str:
        """The name under which it is chosen."""

    @property
    def sample_rate_hz(self) -> int:
        """The rate of what :meth:`synthesize` gives."""

    def synthesize(self, text: str, cancelled: Cancel = never) -> Pcm:
        """Speak a clause; safe to call from several threads at once.

        Args:
            text: Anything: what cannot be said (emoji, foreign scripts, markup) is left out, what is long is spoken
                piece by piece.
            cancelled: Asked before each piece, of which a clause of up to 80 characters has one.

        Returns:
            Mono samples, shape ``(n,)``, with the pause that follows the clause; ``n`` is 0 when nothing can be said.

        Raises:
            CancelledError: ``cancelled`` said so.
            VoiceError: The voice gave nothing usable.
        """


def load_voice(name: str) -> Voice:
    """Load a voice by name (``joe`` about 2 s and 150 MB, the others at once).

    Raises:
        PartError: There is no voice of this name.
        WeightsError: Its weights are missing or are not those that were tested.
    """
    if name == "joe":
        from model_cascade.parts.joe_voice import JoeVoice  # noqa: PLC0415

        return JoeVoice()
    if name in VOICE_NAMES:
        from model_cascade.parts.nano_voice import NanoVoice  # noqa: PLC0415

        return NanoVoice(name)
    raise PartError(f"There is no voice {name!r}; choose one of {', '.join(VOICE_NAMES)}")


def paced(samples: Pcm, text: str, sample_rate_hz: int) -> Pcm:
    """Cut the silence around a clause and put the pause behind it that its last character asks for."""
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > _LOUD * 32768 * _peak(samples))
    if loud.size == 0:
        return np.zeros(0, np.int16)
    margin = int(_HEAD_MS * sample_rate_hz / 1000)
    spoken = samples[max(0, loud[0] - margin) : loud[-1] + 1 + 2 * margin]
    pause_ms = _PAUSES_MS.get(text.rstrip("\"') ")[-1:], _NO_PAUSE_MS)
    return np.concatenate([spoken, np.zeros(int(pause_ms * sample_rate_hz / 1000), np.int16)])


def _peak(samples: Pcm) -> float:
    return float(np.abs(samples.astype(np.int32)).max(initial=0)) / 32768
