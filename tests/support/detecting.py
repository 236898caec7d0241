"""A session as the detector service sees it: what it was told, and a way to wait for that. Used by the detectors' tests."""

import asyncio
from collections.abc import Sequence

from duplex_core.detection import SpeechFrame
from duplex_server.detectors import DetectorService, UnjudgedAudio

PATIENCE_S = 20


class Session:
    """What one session is told, with a way to wait for it."""

    def __init__(self, service: DetectorService, key: str = "s") -> None:
        self.frames: list[SpeechFrame] = []
        self.told: list[int] = []
        self.unjudged: list[UnjudgedAudio] = []
        self._news = asyncio.Event()
        self.feed = service.attach(key, self.on_frames, self.on_unjudged)

    def on_frames(self, frames: Sequence[SpeechFrame]) -> None:
        self.frames.extend(frames)
        self.told.append(len(frames))
        self._news.set()

    def on_unjudged(self, report: UnjudgedAudio) -> None:
        self.unjudged.append(report)
        self._news.set()

    async def until(self, frames: int, unjudged: int = 0) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.frames) < frames or len(self.unjudged) < unjudged:
                self._news.clear()
                await self._news.wait()

    @property
    def starts(self) -> list[float]:
        return [frame.start_ms for frame in self.frames]

    @property
    def probabilities(self) -> list[float]:
        return [frame.probability for frame in self.frames]
