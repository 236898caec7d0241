"""Speech and turns as detectors hear them: frames with a probability of speech, pauses with a probability of a finished turn.

Read by the session machine, which decides; the detectors themselves live in the server or in plugins and decide nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

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


@runtime_checkable
class RunDetector(SpeechDetector, Protocol):
    """One that judges several frames of each session in one call, which costs it less than as many calls.

    Attributes:
        few_frames: so many frames in one call take less than a way to the worker thread and back, a fraction of a
            millisecond: they may be judged on the event loop. 0 if none may.
    """

    few_frames: int

    def run_probabilities(self, frames: Any, counts: Sequence[int], states: Sequence[Any]) -> Sequence[float]:
        """Probability of speech for each row of ``frames``, of which ``counts[i]``, at least one, are session ``i``'s.

        They stand one session after the other, each one's from old to new. Updates ``states`` in place, or none when it raises.
        """


class EndOfTurnDetector(Protocol):
    """Judges, at a pause, whether the speaker has finished. Lives on a worker thread; construction may load weights.

    Attributes:
        rate_hz: the rate at which it hears.
        window_ms: how much of the end of an utterance it hears; it is given no more.
    """

    rate_hz: int
    window_ms: int

    def probability(self, samples: Any) -> float:
        """Probability that the turn is finished, of ``samples`` (float32 [n], full scale 1.0).

        They hold one utterance, or its end, with the first tenth of a second of the silence after it.
        """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TurnDetectorSpec:
    """A named voice-activity detector that a package offers. ``create`` is called off the event loop."""

    id: str
    summary: str
    create: Callable[[], SpeechDetector]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EndOfTurnSpec:
    """A named end-of-turn detector that a package offers. ``create`` is called off the event loop."""

    id: str
    summary: str
    create: Callable[[], EndOfTurnDetector]
