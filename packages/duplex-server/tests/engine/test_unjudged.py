"""Audio that the speech detector did not judge is told once, not piece by piece, and all of it is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from duplex_core.detection import TurnDetectorSpec
from duplex_core.hookspecs import hookimpl
from duplex_core.testing.speech import burst, silence
from duplex_server.detectors import DetectorFailed, DetectorOverrun
from duplex_server.engine.unjudged import CALM_MS, Unjudged

RATE = 24_000


def overrun(start_ms: float, duration_ms: float = 32.0) -> DetectorOverrun:
    return DetectorOverrun("The detector is too far behind", start_ms, duration_ms)


def test_a_stretch_begins_once_and_again_after_a_calm() -> None:
    missed = Unjudged()
    assert missed.begins(overrun(0.0))
    assert not any(missed.begins(overrun(at * 100.0)) for at in range(1, 1000))
    end_ms = 999 * 100.0 + 32.0
    assert not missed.begins(overrun(end_ms + CALM_MS - 1.0))
    assert missed.begins(overrun(end_ms + CALM_MS - 1.0 + 32.0 + CALM_MS))


def test_every_kind_of_miss_belongs_to_the_stretch() -> None:
    missed = Unjudged()
    assert missed.begins(DetectorFailed("The detector failed", 0.0, 32.0))
    assert not missed.begins(overrun(64.0, 5000.0))
    assert not missed.begins(DetectorFailed("The detector failed", 96.0, 32.0)), "and what is told late is in it"
    assert not missed.begins(overrun(5064.0))


class Stuck:
    """A speech detector that stands still until it is let go, or fails on every frame."""

    rate_hz = 8000
    frame_samples = 256

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.broken = False

    def new_state(self) -> None:
        return None

    def probabilities(self, frames: Any, states: Sequence[Any]) -> list[float]:
        assert self.let_go.wait(30)
        if self.broken:
            raise RuntimeError("no more memory")
        return [float(abs(row).max() > 0.01) for row in frames]

    @hookimpl
    def duplex_register_turn_detectors(self) -> list[TurnDetectorSpec]:
        return [TurnDetectorSpec(id="stuck", summary="stands still", create=lambda: self)]


async def told(caller: Any) -> list[str]:
    """The errors so far."""
    await caller.say("session.heartbeat")
    await caller.until("session.heartbeat_ack")
    return [event["error"]["message"] for event in caller.seen if event["type"] == "error"]


async def test_a_flood_beyond_the_backlog_is_told_once_and_the_session_goes_on(serving: Any) -> None:
    stuck = Stuck()
    async with serving(extra=(stuck,), detector="stuck") as served, served.session() as caller:
        try:
            for _ in range(140):
                await caller.append(silence(500, RATE))
            (message,) = await told(caller)
            assert "The detector is too far behind" in message
            assert "send audio no faster than it sounds" in message
            missed = served.engine.metrics.registry.get_sample_value("duplex_unjudged_audio_seconds_total")
            assert missed == pytest.approx(10.0, abs=0.5), "every piece is counted"
        finally:
            stuck.let_go.set()
        await caller.append(burst(600, RATE) + silence(1000, RATE))
        await caller.until("input_audio_buffer.committed")
        assert len(await told(caller)) == 1


async def test_a_detector_that_fails_on_every_frame_is_told_once(serving: Any) -> None:
    stuck = Stuck()
    stuck.let_go.set()
    stuck.broken = True
    async with serving(extra=(stuck,), detector="stuck") as served, served.session() as caller:
        await caller.append(silence(3200, RATE))
        registry = served.engine.metrics.registry
        while (registry.get_sample_value("duplex_unjudged_audio_seconds_total") or 0.0) < 3.0:
            await told(caller)
        (message,) = await told(caller)
        assert "no more memory" in message
        stuck.broken = False
        await caller.append(burst(600, RATE) + silence(1000, RATE))
        await caller.until("input_audio_buffer.committed")
