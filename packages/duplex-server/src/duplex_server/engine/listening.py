"""One session's ear: the user's audio to the detectors, and their verdicts on the session's own time line.

Owns the detector feed of one session, the resampler before it, and the offset between the feed's clock and the session's.
Called by the session runner with the machine's ``Detect``, ``ResetDetector`` and ``JudgeEndOfTurn`` effects. Must never judge
anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from duplex_core.detection import SpeechFrame
from duplex_core.machine.io import Detect, EndOfTurnVerdict, JudgeEndOfTurn, ResetDetector, SpeechFrames
from duplex_core.machine.semantic import FINISHED
from duplex_server.audio import StreamResampler, samples_of
from duplex_server.detectors import DetectorFeed, Detectors, UnjudgedAudio
from duplex_server.engine.weakly import weakly_told


def outcome_of(verdict: EndOfTurnVerdict, *, lasts: bool) -> str:
    """How a verdict on a pause is counted; ``lasts`` says that the pause does."""
    if not lasts:
        return "late"
    return "finished" if verdict.probability >= FINISHED else "unfinished"


class Listening:
    """The detectors as one session sees them. The feed is opened with the first audio and closed by :meth:`close`."""

    def __init__(
        self,
        detectors: Detectors,
        session_id: str,
        rate_hz: int,
        *,
        on_verdict: Callable[[SpeechFrames | EndOfTurnVerdict], None],
        on_unjudged: Callable[[UnjudgedAudio], None],
    ) -> None:
        """Make it for a model that hears ``rate_hz``; both callbacks are called on the event loop."""
        self._service = detectors.speech
        self._end_of_turn = detectors.end_of_turn
        self._session_id = session_id
        self._rate_hz = rate_hz
        self._stream = StreamResampler(rate_hz, self._service.detector.rate_hz)
        self._on_verdict = on_verdict
        self._on_unjudged = on_unjudged
        self._feed: DetectorFeed | None = None
        self._generation = 0
        self._offset_ms = 0.0

    def detect(self, effect: Detect) -> None:
        """Judge more audio."""
        self._generation = effect.generation
        self._opened().push(self._stream.push(samples_of(effect.pcm)))

    def reset(self, effect: ResetDetector) -> None:
        """Forget what has no verdict yet; what comes next starts at ``effect.start_ms`` of the session."""
        self._generation = effect.generation
        self._stream.reset()
        feed = self._opened()
        feed.reset()
        self._offset_ms = effect.start_ms - feed.position_ms

    def judge(self, effect: JudgeEndOfTurn) -> None:
        """Have an utterance judged that fell silent, if there is a detector for it."""
        service = self._end_of_turn
        if service is None:
            return
        stream = StreamResampler(self._rate_hz, service.detector.rate_hz)
        samples = np.concatenate((stream.push(samples_of(effect.pcm)), stream.flush()))

        def tell(probability: float) -> None:
            self._on_verdict(EndOfTurnVerdict(item_id=effect.item_id, serial=effect.serial, probability=probability))

        service.judge(self._session_id, samples, tell)

    def close(self) -> None:
        """Judge nothing more. Idempotent."""
        if self._end_of_turn is not None:
            self._end_of_turn.forget(self._session_id)
        if self._feed is not None:
            self._feed.close()

    def _opened(self) -> DetectorFeed:
        if self._feed is None:
            self._feed = self._service.attach(self._session_id, weakly_told(self._judged), self._on_unjudged)
        return self._feed

    def _judged(self, frames: Sequence[SpeechFrame]) -> None:
        offset_ms = self._offset_ms
        placed = frames if not offset_ms else [_later(frame, offset_ms) for frame in frames]
        self._on_verdict(SpeechFrames(frames=tuple(placed), generation=self._generation))


def _later(frame: SpeechFrame, by_ms: float) -> SpeechFrame:
    return SpeechFrame(start_ms=frame.start_ms + by_ms, duration_ms=frame.duration_ms, probability=frame.probability)
