"""Where an utterance begins and ends: a pure rule over the detector's frames.

Called by the input side of the session machine, once a frame. Holds no audio and no clock; times are milliseconds on the
session's audio time line.
"""

from __future__ import annotations

import enum

import msgspec

from duplex_core.detection import SpeechFrame

ONSET_MS = 64.0
"""Speech shorter than this is not a beginning: two frames of the 32 ms detector keep single clicks out."""
PAUSE_MS = 96.0
"""Silence after which a pause is told, so that work for a finished turn can begin during the hangover."""
HYSTERESIS = 0.15
"""While speaking, a frame counts as speech down to this much below the threshold, so that a wavering probability does not
chop an utterance."""


class Verdict(enum.Enum):
    """What a frame decided."""

    STARTED = "started"
    PAUSED = "paused"
    RESUMED = "resumed"
    STOPPED = "stopped"


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``threshold`` is a probability; ``silence_ms`` of silence end an utterance."""

    threshold: float
    silence_ms: float


class EndpointState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rule stands between two frames.

    ``onset_ms`` is the start of a run of speech frames that is not yet long enough; ``spoken_until_ms`` the end of the
    last speech frame of the current utterance.
    """

    speaking: bool = False
    paused: bool = False
    onset_ms: float | None = None
    spoken_until_ms: float = 0.0


_QUIET = EndpointState()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict and the time that it is about: the first speech sample, or the end of the last."""

    verdict: Verdict
    at_ms: float


def follow(
    state: EndpointState, frame: SpeechFrame, settings: EndpointSettings
) -> tuple[EndpointState, Endpoint | None]:
    """The state after ``frame`` and what it decided, if anything."""
    floor = settings.threshold - HYSTERESIS if state.speaking else settings.threshold
    end_ms = frame.start_ms + frame.duration_ms
    if frame.probability >= max(floor, 0.01):
        return _speech(state, frame.start_ms, end_ms)
    return _silence(state, end_ms, settings)


def _speech(state: EndpointState, start_ms: float, end_ms: float) -> tuple[EndpointState, Endpoint | None]:
    if state.speaking:
        found = Endpoint(verdict=Verdict.RESUMED, at_ms=start_ms) if state.paused else None
        return EndpointState(speaking=True, spoken_until_ms=end_ms), found
    onset = start_ms if state.onset_ms is None else state.onset_ms
    if end_ms - onset < ONSET_MS - 0.5:
        return EndpointState(onset_ms=onset), None
    return EndpointState(speaking=True, spoken_until_ms=end_ms), Endpoint(verdict=Verdict.STARTED, at_ms=onset)


def _silence(state: EndpointState, end_ms: float, settings: EndpointSettings) -> tuple[EndpointState, Endpoint | None]:
    if not state.speaking:
        return _QUIET, None
    silent_ms = end_ms - state.spoken_until_ms
    if silent_ms >= settings.silence_ms - 0.5:
        return EndpointState(), Endpoint(verdict=Verdict.STOPPED, at_ms=state.spoken_until_ms)
    if not state.paused and silent_ms >= PAUSE_MS - 0.5:
        after = msgspec.structs.replace(state, paused=True)
        return after, Endpoint(verdict=Verdict.PAUSED, at_ms=state.spoken_until_ms)
    return state, None
