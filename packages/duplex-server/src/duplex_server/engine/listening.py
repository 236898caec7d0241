"""One session's ear: the user's audio to the speech detector, and the detector's verdicts on the session's own time line.

Owns the detector feed of one session, the resampler before it, and the offset between the feed's clock and the session's.
Called by the session runner with the machine's ``Detect`` and ``ResetDetector`` effects. Must never judge anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from duplex_core.detection import SpeechFrame
from duplex_core.machine.io import Detect, ResetDetector, SpeechFrames
from duplex_server.audio import StreamResampler
from duplex_server.detectors import DetectorFeed, DetectorService, UnjudgedAudio


class Listening:
    """The detector as one session sees it. The feed is opened with the first audio and closed by :meth:`close`."""

    def __init__(
        self,
        service: DetectorService,
        session_id: str,
        rate_hz: int,
        *,
        on_frames: Callable[[SpeechFrames], None],
        on_unjudged: Callable[[UnjudgedAudio], None],
    ) -> None:
        """Make it for a model that hears ``rate_hz``; both callbacks are called on the event loop."""
        self._service = service
        self._session_id = session_id
        self._stream = StreamResampler(rate_hz, service.detector.rate_hz)
        self._on_frames = on_frames
        self._on_unjudged = on_unjudged
        self._feed: DetectorFeed | None = None
        self._generation = 0
        self._offset_ms = 0.0

    def detect(self, effect: Detect) -> None:
        """Judge more audio."""
        self._generation = effect.generation
        samples = np.frombuffer(effect.pcm, "<i2").astype(np.int16, copy=False)
        self._opened().push(self._stream.push(samples))

    def reset(self, effect: ResetDetector) -> None:
        """Forget what has no verdict yet; what comes next starts at ``effect.start_ms`` of the session."""
        self._generation = effect.generation
        self._stream.reset()
        feed = self._opened()
        feed.reset()
        self._offset_ms = effect.start_ms - feed.position_ms

    def close(self) -> None:
        """Judge nothing more. Idempotent."""
        if self._feed is not None:
            self._feed.close()

    def _opened(self) -> DetectorFeed:
        if self._feed is None:
            self._feed = self._service.attach(self._session_id, self._judged, self._on_unjudged)
        return self._feed

    def _judged(self, frames: Sequence[SpeechFrame]) -> None:
        placed = tuple(msgspec.structs.replace(frame, start_ms=frame.start_ms + self._offset_ms) for frame in frames)
        self._on_frames(SpeechFrames(frames=placed, generation=self._generation))
