"""Adding up what stages did: the rule by which several pieces of a stage's work become one entry of its metrics.

Pure. Used where a request's parts come together (the server's flows) and where an answer's requests do (the exchange).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from duplex_core.stages import StageMetrics


def merged(metrics: Iterable[StageMetrics]) -> tuple[StageMetrics, ...]:
    """One entry for each stage, the one that began first in front.

    Args:
        metrics: pieces of work whose ``begun_ms`` count from one common moment.
    """
    by_stage: dict[str, list[StageMetrics]] = {}
    for each in metrics:
        by_stage.setdefault(each.stage, []).append(each)
    return tuple(sorted(map(_joined, by_stage.values()), key=lambda each: each.begun_ms))


def moved(metrics: Iterable[StageMetrics], by_ms: float) -> tuple[StageMetrics, ...]:
    """The same work, counted from a moment that lies ``by_ms`` earlier."""
    return tuple(msgspec.structs.replace(each, begun_ms=each.begun_ms + by_ms) for each in metrics)


def _joined(pieces: list[StageMetrics]) -> StageMetrics:
    """The pieces of one stage as if they were one: from the first one's beginning to the last one's end."""
    if len(pieces) == 1:
        return pieces[0]
    begun_ms = min(each.begun_ms for each in pieces)
    firsts = [each.begun_ms + each.first_ms for each in pieces if each.first_ms is not None]
    counts = {name: sum(getattr(each, name) for each in pieces) for name in _COUNTS}
    return StageMetrics(
        stage=pieces[0].stage,
        begun_ms=begun_ms,
        queue_ms=min(each.begun_ms + each.queue_ms for each in pieces) - begun_ms,
        first_ms=min(firsts) - begun_ms if firsts else None,
        total_ms=max(each.begun_ms + each.total_ms for each in pieces) - begun_ms,
        ms_per_token=_pace(pieces),
        whole=all(each.whole for each in pieces),
        **counts,
    )


_COUNTS = ("input_tokens", "output_tokens", "steps", "deadline_misses", "preemptions")


def _pace(pieces: list[StageMetrics]) -> float | None:
    """The mean time between two tokens of the same piece; those between pieces are no measure of the stage."""
    paced = [(each.output_tokens - 1, each.ms_per_token) for each in pieces if each.ms_per_token is not None]
    gaps = sum(count for count, _ in paced)
    return sum(count * ms for count, ms in paced) / gaps if gaps > 0 else None
