"""What the detector service says besides verdicts: audio that got none, and counts.

Owns these value types only. Made by the service, read by the session runner and by metrics. Never holds
audio.
"""

import dataclasses


class UnjudgedAudio(Exception):
    """Audio of a session that has got no verdict and will get none.

    Attributes:
        start_ms: Where it begins, counted from the session's first audio.
        duration_ms: How long it lasts.
    """

    def __init__(self, reason: str, start_ms: float, duration_ms: float) -> None:
        super().__init__(f"{reason}: {duration_ms:.0f} ms of audio from {start_ms:.0f} ms on were not judged")
        self.start_ms = start_ms
        self.duration_ms = duration_ms


class DetectorFailed(UnjudgedAudio):
    """The detector raised on this session's frame (the cause is chained); it goes on with a fresh state."""


class DetectorOverrun(UnjudgedAudio):
    """More audio waited than the backlog holds, so the oldest was given up; the rest is judged."""


class DetectorClosed(UnjudgedAudio):
    """The service was closed while this audio was waiting."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DetectorStats:
    """Counts since the service began.

    Attributes:
        frames: Frames judged.
        batches: Batches that the worker was given.
        failed: Frames that the detector raised on.
        overrun: Frames given up because a backlog was full.
        waiting: Frames that wait now.
    """

    frames: int
    batches: int
    failed: int
    overrun: int
    waiting: int
