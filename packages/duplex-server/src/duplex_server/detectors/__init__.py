"""Speech and end-of-turn detectors, and the services that run one of each for all sessions at once.

Owns: which frames of a session's input hold speech, and how finished an utterance sounds at a pause. Called by the session
runner (a feed per session) and, for the detectors themselves, by the services' worker threads. Never decides about turns:
silence durations, padding and interruptions belong to the session machine, which gets probabilities from here and no more.
"""

from duplex_server.detectors.both import Detectors
from duplex_server.detectors.end_of_turn import EndOfTurnService, EndOfTurnStats, Lost
from duplex_server.detectors.energy import EnergyDetector
from duplex_server.detectors.onnx import DetectorUnavailable
from duplex_server.detectors.reports import (
    DetectorClosed,
    DetectorFailed,
    DetectorOverrun,
    DetectorStats,
    UnjudgedAudio,
)
from duplex_server.detectors.service import DetectorFeed, DetectorService
from duplex_server.detectors.silero import SileroBatch, SileroState
from duplex_server.detectors.smart_turn import SmartTurn

__all__ = [
    "DetectorClosed",
    "DetectorFailed",
    "DetectorFeed",
    "DetectorOverrun",
    "DetectorService",
    "DetectorStats",
    "DetectorUnavailable",
    "Detectors",
    "EndOfTurnService",
    "EndOfTurnStats",
    "EnergyDetector",
    "Lost",
    "SileroBatch",
    "SileroState",
    "SmartTurn",
    "UnjudgedAudio",
]
