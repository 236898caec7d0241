"""Loads the detectors that an engine's settings name.

Called by the duplex half when it starts. Loads on a worker thread, since weights may be read; decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from duplex_core.detection import EndOfTurnSpec, TurnDetectorSpec
from duplex_core.plugins import PluginHost
from duplex_server.detectors import Detectors, DetectorService, EndOfTurnService, Lost
from duplex_server.engine.metrics import EngineMetrics
from duplex_server.engine.served import ModelUnavailable

Spec = TypeVar("Spec", TurnDetectorSpec, EndOfTurnSpec)
Loaded = TypeVar("Loaded")


async def load_detectors(
    plugins: PluginHost, *, speech: str, end_of_turn: str | None, metrics: EngineMetrics
) -> Detectors:
    """The detectors with these ids, loaded and in service, counting in ``metrics``. Who calls this closes them.

    Raises:
        ModelUnavailable: one of them is not installed, or does not load.
    """
    speech_spec = _chosen("speech detector", plugins.detectors, speech)
    turn_spec = None
    if end_of_turn is not None:
        turn_spec = _chosen("end-of-turn detector", plugins.end_of_turn_detectors, end_of_turn)
    speech_detector = await _load("speech detector", speech, speech_spec.create)
    if turn_spec is None:
        return Detectors(speech=DetectorService(speech_detector))
    turn_detector = await _load("end-of-turn detector", turn_spec.id, turn_spec.create)

    def count(lost: Lost) -> None:
        metrics.end_of_turn.labels(outcome=lost.value).inc()

    judge = EndOfTurnService(turn_detector, on_lost=count)
    return Detectors(speech=DetectorService(speech_detector), end_of_turn=judge)


def _chosen(kind: str, installed: Mapping[str, Spec], wanted: str) -> Spec:
    spec = installed.get(wanted)
    if spec is None:
        known = ", ".join(sorted(installed)) or "none"
        raise ModelUnavailable(f"there is no {kind} {wanted!r}; installed are: {known}")
    return spec


async def _load(kind: str, name: str, create: Callable[[], Loaded]) -> Loaded:
    try:
        return await asyncio.to_thread(create)
    except Exception as exc:
        raise ModelUnavailable(f"the {kind} {name} did not load: {exc}") from exc
