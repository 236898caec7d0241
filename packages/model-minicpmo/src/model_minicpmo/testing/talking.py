"""A tiny checkpoint that holds conversations, with everything that a published one has: for tests of a whole server.

Owns: which parts it is put together from, and its own voice. Called by: tests that go end to end.
Never: pretends to understand; what it does is told in `behaviour`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import soundfile

from model_minicpmo.testing.behaviour import Behaviour
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TALKING
from model_minicpmo.testing.tiny_speech import write_voice_models

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

VOICE = "system_ref_audio.wav"
"""The file in `assets` with the checkpoint's own voice."""
_RATE = 24_000
_SECONDS = 2.0


def write_talking_checkpoint(folder: Path, behaviour: Behaviour | None = None, *, seed: int = 0) -> Path:
    """Write a checkpoint of the sizes `TALKING` that behaves, with a voice and models that read voices.

    Args:
        folder: Where; it is made if it is not there.
        behaviour: What it says; the usual words by default.
        seed: Of all that is not wired.

    Returns:
        The folder.
    """
    write_checkpoint(folder, TALKING, seed=seed, behaviour=behaviour or Behaviour())
    write_voice_models(folder / "assets" / "token2wav", codes=TALKING.talker.codes - 1)
    soundfile.write(folder / "assets" / VOICE, _hum(), _RATE, subtype="PCM_16")
    return folder


def _hum() -> NDArray[np.float32]:
    """Give two seconds of something with a pitch, harmonics and syllables: float32 [n].

    It is so soft that it counts as quiet: a session would begin with an answer to it otherwise.
    """
    times = np.arange(int(_RATE * _SECONDS)) / _RATE
    pitch = 2 * np.pi * np.cumsum(140 + 20 * np.sin(2 * np.pi * 0.7 * times)) / _RATE
    harmonics = sum(np.sin(number * pitch) / number for number in range(1, 12))
    syllables = 0.55 - 0.45 * np.cos(2 * np.pi * 3.0 * times)
    return (0.0015 * harmonics * syllables).astype(np.float32)
