"""How long an answer took, from the moment at which it was opened: its first output, its first sound, its end.

Held by each :class:`~duplex_core.machine.response.Response`; fed with the machine's own time by the output side. Knows no
clock, so what it measures is what passed between two inputs of the machine; decides nothing.
"""

from __future__ import annotations

from duplex_core.events import ResponseMetrics, Usage


class Timing:
    """The times of one answer, in milliseconds of the machine's clock."""

    def __init__(self, begun_ms: float) -> None:
        """The answer was opened at ``begun_ms``."""
        self._begun_ms = begun_ms
        self._first_output_ms: float | None = None
        self._first_audio_ms: float | None = None

    def output(self, now_ms: float, *, audio: bool = False) -> None:
        """The model gave more of the answer; with ``audio``, sound too."""
        if self._first_output_ms is None:
            self._first_output_ms = now_ms
        if audio and self._first_audio_ms is None:
            self._first_audio_ms = now_ms

    def metrics(self, now_ms: float, usage: Usage | None) -> ResponseMetrics:
        """The figures of an answer that ends at ``now_ms``; ``usage`` is ``None`` when the model did not get to tell it."""
        tokens = usage.output_tokens if usage is not None else None
        per_token: float | None = None
        if self._first_output_ms is not None and tokens is not None and tokens > 1:
            per_token = _rounded((now_ms - self._first_output_ms) / (tokens - 1))
        return ResponseMetrics(
            first_output_ms=self._since_begun(self._first_output_ms),
            first_audio_ms=self._since_begun(self._first_audio_ms),
            total_ms=_rounded(now_ms - self._begun_ms),
            output_tokens=tokens,
            ms_per_output_token=per_token,
        )

    def _since_begun(self, at_ms: float | None) -> float | None:
        return None if at_ms is None else _rounded(at_ms - self._begun_ms)


def _rounded(ms: float) -> float:
    """To the microsecond: the clock's own noise says nothing."""
    return round(ms, 3)
