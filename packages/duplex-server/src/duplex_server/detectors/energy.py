"""A detector that hears loudness only: no weights, a few microseconds a frame, the same answer everywhere.

Owns a running estimate of the background noise per session. Called by the detector service, on its worker
thread, when it was chosen by name. Must never be the silent stand-in for a network that failed to load: it
takes any loud sound for speech, which a user has to know.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

FLOOR_DB: Final = -70.0
"""The quietest background, in dB of full scale, that is ever assumed."""
START_DB: Final = -55.0
"""The background that is assumed before anything was heard."""
RISE_DB: Final = 0.05
"""How much the background may rise per frame; it falls at once."""
MARGIN_DB: Final = 12.0
"""How far above the background a sound has probability one half."""
SOFTNESS_DB: Final = 2.0
"""How much louder multiplies the odds by e."""


@dataclasses.dataclass(slots=True, eq=False)
class EnergyState:
    """What is known of one session's background: its level in dB of full scale."""

    background_db: float = START_DB


class EnergyDetector:
    """Speech is what is clearly louder than the background.

    Attributes:
        rate_hz: 16000.
        frame_samples: 512, as of the networks, so that nothing else changes when one is swapped for it.
    """

    rate_hz: int = 16000
    frame_samples: int = 512

    def new_state(self) -> EnergyState:
        """State of a session that has not been heard yet."""
        return EnergyState()

    def probabilities(self, frames: npt.NDArray[np.float32], states: Sequence[EnergyState]) -> list[float]:
        """Judge one frame of each of N sessions.

        Args:
            frames: float32[N, 512], full scale 1.0, one row a session.
            states: The N sessions' states; each steps on by one frame.

        Returns:
            N probabilities of speech: the logistic function of the level above the background.

        Raises:
            ValueError: The shapes do not fit together.
        """
        if frames.shape != (len(states), self.frame_samples):
            raise ValueError(f"frames must be [{len(states)}, {self.frame_samples}], got {list(frames.shape)}")
        power = np.einsum("ij,ij->i", frames, frames, dtype=np.float64) / self.frame_samples
        levels = 10 * np.log10(np.maximum(power, 10 ** (FLOOR_DB / 10)))
        background = np.array([state.background_db for state in states])
        background = np.minimum(levels, background + RISE_DB)
        for state, level in zip(states, background.tolist(), strict=True):
            state.background_db = level
        logits = (levels - background - MARGIN_DB) / SOFTNESS_DB
        probabilities: list[float] = (1 / (1 + np.exp(-logits))).tolist()
        return probabilities
