"""Speech detection as the contracts know it: frames with a probability. Detectors themselves live in the server or in plugins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec


class SpeechFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A detector's verdict on one frame of input: the probability that it holds speech.

    ``start_ms`` counts from the session's first audio, as everywhere.
    """

    start_ms: float
    duration_ms: float
    probability: float


class SpeechDetector(Protocol):
    """Judges frames of many sessions in one call. Lives on a worker thread; construction may load weights."""

    rate_hz: int
    frame_samples: int

    def new_state(self) -> Any:
        """Fresh per-session state."""

    def probabilities(self, frames: Any, states: Sequence[Any]) -> Sequence[float]:
        """Probability of speech for each row of ``frames`` (float32 [N, frame_samples]); updates ``states`` in place."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TurnDetectorSpec:
    """A named voice-activity detector that a package offers. ``create`` is called off the event loop."""

    id: str
    summary: str
    create: Callable[[], SpeechDetector]
