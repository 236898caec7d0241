"""What the speech detector was given and what it has judged: verdicts frame by frame, and how far they reach.

Owned by the input side of the session machine. Knows no turns, no items and no client.
"""

from __future__ import annotations

from duplex_core.config import ServerVad
from duplex_core.detection import SpeechFrame
from duplex_core.machine.core import Core
from duplex_core.machine.endpoint import Endpoint, EndpointSettings, EndpointState, Verdict, follow
from duplex_core.machine.io import Detect, ResetDetector

FRAME_SLACK_MS = 64.0
"""Audio that a detector may not have judged yet although it is through: an unfinished frame and its successor."""


class Ear:
    """The detector of one session, as the machine sees it."""

    def __init__(self, core: Core) -> None:
        """Begin with nothing judged."""
        self._core = core
        self._state = EndpointState()
        self.generation = 0
        self.judged_ms = 0.0
        self.spoken_until_ms = 0.0
        """Where the last utterance's speech ends, also after the utterance has."""

    def has_judged(self, until_ms: float) -> bool:
        """Whether there is a verdict on the audio up to ``until_ms``."""
        return self.judged_ms >= until_ms - FRAME_SLACK_MS

    def listen(self, pcm: bytes) -> None:
        """Have more audio judged."""
        self._core.perform(Detect(pcm=pcm, generation=self.generation))

    def judge(self, frame: SpeechFrame, vad: ServerVad) -> Endpoint | None:
        """Take a verdict; what it decides, if anything."""
        self.judged_ms = frame.start_ms + frame.duration_ms
        settings = EndpointSettings(threshold=vad.threshold, silence_ms=vad.silence_duration_ms)
        self._state, found = follow(self._state, frame, settings)
        if self._state.speaking:
            self.spoken_until_ms = self._state.spoken_until_ms
        return found

    def overdue(self, vad: ServerVad) -> Endpoint | None:
        """Whether the silence that was judged already ends the utterance, now that less of it is enough."""
        if not self._state.speaking or self.judged_ms - self._state.spoken_until_ms < vad.silence_duration_ms:
            return None
        self._state, at_ms = EndpointState(), self._state.spoken_until_ms
        return Endpoint(verdict=Verdict.STOPPED, at_ms=at_ms)

    def restart(self, at_ms: float, rest: bytes) -> None:
        """Forget everything before ``at_ms``, also verdicts that are on their way, and judge ``rest``, what comes after it."""
        self.generation += 1
        self._state = EndpointState()
        self.judged_ms = at_ms
        if self._core.server_vad is None:
            return
        self._core.perform(ResetDetector(generation=self.generation, start_ms=at_ms))
        if rest:
            self.listen(rest)
