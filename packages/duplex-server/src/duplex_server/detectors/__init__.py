"""Speech detectors, and the service that runs one of them for all sessions at once.

Owns: which frames of a session's input hold speech. Called by the session runner (a feed per session) and,
for the detectors themselves, by the service's worker thread. Never decides about turns: silence durations,
padding and interruptions belong to the session machine, which gets frames with a probability from here and no
more.
"""

from duplex_server.detectors.energy import EnergyDetector
from duplex_server.detectors.reports import (
    DetectorClosed,
    DetectorFailed,
    DetectorOverrun,
    DetectorStats,
    UnjudgedAudio,
)
from duplex_server.detectors.service import DetectorFeed, DetectorService
from duplex_server.detectors.silero import DetectorUnavailable, SileroBatch, SileroState

__all__ = [
    "DetectorClosed",
    "DetectorFailed",
    "DetectorFeed",
    "DetectorOverrun",
    "DetectorService",
    "DetectorStats",
    "DetectorUnavailable",
    "EnergyDetector",
    "SileroBatch",
    "SileroState",
    "UnjudgedAudio",
]
