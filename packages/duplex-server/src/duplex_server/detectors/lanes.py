"""The queues of the detector service, and the loop over a batch that runs on its worker thread.

Owns how audio is cut into frames and in which order frames are judged. Called by the service only: a
:class:`Lane` on the event loop, :func:`judge` on the worker. They share nothing but the :class:`Entry`
objects of the batch that is in the worker. Must never call back, lock or wait.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from duplex_core.detection import RunDetector, SpeechDetector, SpeechFrame
from duplex_server.detectors.reports import UnjudgedAudio

Samples: TypeAlias = npt.NDArray[np.int16]
Frame: TypeAlias = tuple[int, bytes]
"""Position of the first sample, counted from the session's first, and the samples, as int16 in this machine's order."""
OnFrames: TypeAlias = Callable[[Sequence[SpeechFrame]], None]
OnUnjudged: TypeAlias = Callable[[UnjudgedAudio], None]

SAMPLE_BYTES: Final = 2
_FULL_SCALE: Final = np.float32(1 / 32768)


@dataclasses.dataclass(slots=True, eq=False)
class Lane:
    """What one session has waiting for the detector.

    Attributes:
        key: The session's name.
        frame_samples: Samples of one frame.
        on_frames: Who is told the verdicts.
        on_unjudged: Who is told of audio without a verdict.
        state: The detector's state of this session.
        generation: Grows at every reset; whatever began under an older one is dropped.
        pushed: Samples pushed so far.
        rest: The last samples, too few for a frame.
        pending: Whole frames, oldest first.
        queued: Whether the lane stands in the service's queue.
        closed: Whether it takes no more audio.
    """

    key: str
    frame_samples: int
    on_frames: OnFrames
    on_unjudged: OnUnjudged
    state: Any
    generation: int = 0
    pushed: int = 0
    rest: bytes = b""
    pending: deque[Frame] = dataclasses.field(default_factory=deque)
    queued: bool = False
    closed: bool = False

    def add(self, pcm: Samples) -> bool:
        """Cut new samples into frames; they are copied. Returns whether a frame was completed."""
        joined = self.rest + pcm.tobytes()
        start = self.pushed - len(self.rest) // SAMPLE_BYTES
        self.pushed += pcm.size
        size = self.frame_samples * SAMPLE_BYTES
        whole = len(joined) // size * size
        for at in range(0, whole, size):
            self.pending.append((start + at // SAMPLE_BYTES, joined[at : at + size]))
        self.rest = joined[whole:]
        return whole > 0

    def drop(self) -> None:
        """Forget all audio without a verdict, also what is in the worker."""
        self.generation += 1
        self.pending.clear()
        self.rest = b""

    def take(self, most: int) -> "Entry":
        """Move the oldest frames, ``most`` of them at most, into an entry of a batch."""
        count = min(most, len(self.pending))
        return Entry(self, self.generation, self.state, [self.pending.popleft() for _ in range(count)])

    def give_back(self, frames: Sequence[Frame]) -> None:
        """Put frames that were taken back to the front."""
        self.pending.extendleft(reversed(frames))


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """One session's share of a batch. The worker fills ``probabilities``: one for each frame, in order."""

    lane: Lane
    generation: int
    state: Any
    frames: list[Frame]
    probabilities: list[float] = dataclasses.field(default_factory=list)

    @property
    def stale(self) -> bool:
        """Whether the session was reset or closed since the frames were taken."""
        return self.generation != self.lane.generation

    @property
    def unjudged(self) -> Sequence[Frame]:
        """The frames that have no probability."""
        return self.frames[len(self.probabilities) :]


def judge(detector: SpeechDetector, entries: Sequence[Entry]) -> None:
    """Judge all frames of a batch, one of each session at a time; runs on the worker thread.

    When the detector raises, the error passes and every entry keeps the probabilities that it has got by
    then.

    Raises:
        ValueError: The detector returned something else than one probability a frame.
    """
    todo = list(entries)
    while todo:
        samples = _samples(entry.frames[len(entry.probabilities)] for entry in todo)
        result = detector.probabilities(samples, [entry.state for entry in todo])
        for entry, probability in zip(todo, _checked(result, len(todo)), strict=True):
            entry.probabilities.append(probability)
        todo = [entry for entry in todo if len(entry.probabilities) < len(entry.frames)]


def judge_runs(detector: RunDetector, entries: Sequence[Entry]) -> None:
    """Judge all frames of a batch in one call; runs on the worker thread. When the detector raises, none of them is judged.

    Raises:
        ValueError: The detector returned something else than one probability a frame.
    """
    counts = [len(entry.frames) for entry in entries]
    samples = _samples(frame for entry in entries for frame in entry.frames)
    result = detector.run_probabilities(samples, counts, [entry.state for entry in entries])
    found = iter(_checked(result, sum(counts)))
    for entry in entries:
        entry.probabilities.extend(islice(found, len(entry.frames)))


def _samples(frames: Iterable[Frame]) -> npt.NDArray[np.float32]:
    """float32[N, frame_samples], full scale 1.0."""
    rows = [pcm for _, pcm in frames]
    return np.frombuffer(b"".join(rows), np.int16).reshape(len(rows), -1) * _FULL_SCALE


def _checked(result: Iterable[float], count: int) -> list[float]:
    """The detector's answer as floats, if it is one probability a frame."""
    probabilities = [float(value) for value in result]
    if len(probabilities) != count or not all(0.0 <= value <= 1.0 for value in probabilities):
        raise ValueError(f"the detector must return {count} probabilities in 0..1, got {probabilities[:8]}")
    return probabilities
