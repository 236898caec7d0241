"""What is told of audio that the speech detector did not judge: once when that begins, and not again for each piece.

Held by the session runner, one for each session. A detector that is too far behind, or fails on every frame, gives up audio
many times a second, and a client can do no more about the hundredth piece than about the first. Goes by the audio's own time.
"""

from __future__ import annotations

from duplex_server.detectors import UnjudgedAudio

CALM_MS = 10_000.0
"""So much audio must have been judged in a row before losing some again is news."""


class Unjudged:
    """The stretches of one session's audio in which some stayed without a verdict."""

    def __init__(self) -> None:
        """Begin with all judged."""
        self._until_ms: float | None = None

    def begins(self, report: UnjudgedAudio) -> bool:
        """Take a report; whether a new stretch begins with it, so that it is to be told."""
        before = self._until_ms
        until_ms = report.start_ms + report.duration_ms
        self._until_ms = until_ms if before is None else max(before, until_ms)
        return before is None or report.start_ms - before >= CALM_MS


def told_of(report: UnjudgedAudio) -> str:
    """What to tell of the first report of a stretch."""
    return (
        f"speech detection missed some of the audio: {report}. Nothing more is said of it until {CALM_MS / 1000:g} s in a row "
        "were judged; send audio no faster than it sounds, or commit your turns yourself"
    )
