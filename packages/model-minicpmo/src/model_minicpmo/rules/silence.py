"""The silence rule: what to do when a unit is due and no sound has come for it. Pure; called by the session.

The model goes on by the second, also when its user's microphone is off: an answer that is being spoken needs units to go on.
"""

from __future__ import annotations

import enum

import msgspec


class Continuation(enum.Enum):
    """What follows from a deadline."""

    FILL = "fill"
    """Go on with silence."""
    WAIT = "wait"
    """There are units enough: look again later."""
    STOP = "stop"
    """Nobody waits for anything: go on when sound comes again."""


class SilenceView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at the deadline.

    Attributes:
        speaking: an answer has units to come.
        asked: an answer is waited for.
        behind: units wait that the thinker has not decided on.
        filled_ms: silence that was put in since the last sound.
        patience_ms: how much of it is put in when nobody waits.
    """

    speaking: bool
    asked: bool
    behind: bool
    filled_ms: float
    patience_ms: float


def at_deadline(view: SilenceView) -> Continuation:
    """Say whether to go on with silence."""
    if view.behind:
        return Continuation.WAIT
    if view.speaking or view.asked or view.filled_ms < view.patience_ms:
        return Continuation.FILL
    return Continuation.STOP
