"""What one request to a stage cost, measured while it is worked on.

Owns the figures of :class:`~duplex_core.stages.StageMetrics` for one request. Called by :mod:`.session` with the time of each
event, in seconds of one monotonic clock. Must never read a clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from duplex_core.stages import StageMetrics


class Meter:
    """One request's figures."""

    __slots__ = (
        "_begun",
        "_first",
        "_gaps",
        "_submitted",
        "_waits",
        "input_tokens",
        "output_tokens",
        "preemptions",
        "steps",
    )

    def __init__(self, submitted: float, now: float) -> None:
        """The request was submitted at ``submitted``, and is worked on from ``now``."""
        self._submitted = submitted
        self._begun = now
        self._first: float | None = None
        self._waits = 0.0
        self._gaps = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.preemptions = 0
        self.steps = 0

    def segment(self, fed: int, arrivals: Sequence[tuple[float, int]]) -> None:
        """An append of ``fed`` positions gave tokens: when they came, and how many each time."""
        chosen = sum(count for _, count in arrivals)
        self.input_tokens += fed
        self.output_tokens += chosen
        self.steps += chosen
        if len(arrivals) > 1:
            (first, together), (last, _) = arrivals[0], arrivals[-1]
            self._waits += last - first
            self._gaps += chosen - together

    def emitted(self, now: float) -> None:
        """Something was given out."""
        if self._first is None:
            self._first = now

    def metrics(self, stage: str, now: float) -> StageMetrics:
        """The figures, if the request ends ``now``."""
        return StageMetrics(
            stage=stage,
            queue_ms=(self._begun - self._submitted) * 1e3,
            first_ms=None if self._first is None else (self._first - self._submitted) * 1e3,
            total_ms=(now - self._submitted) * 1e3,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            ms_per_token=self._waits * 1e3 / self._gaps if self._gaps else None,
            steps=self.steps,
            preemptions=self.preemptions,
        )
