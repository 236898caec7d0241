"""The silence rule: what to do when a unit is due and no audio has come for it. Pure; called by the session."""

from __future__ import annotations

import enum

import msgspec

from duplex_core.testing.native.options import NativeOptions


class Continuation(enum.Enum):
    """What follows from a deadline."""

    FILL = "fill"
    """Go on with silence."""
    WAIT = "wait"
    """There are units enough: look again later."""
    STOP = "stop"
    """Nobody waits for anything: go on when audio comes again."""


class SilenceView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at the deadline.

    ``speaking`` says that an answer has units to come, ``asked`` that one is waited for, ``behind`` that there are units which
    the thinker has not answered. ``filled_ms`` is the silence that was put in since the last audio.
    """

    speaking: bool
    asked: bool
    behind: bool
    filled_ms: float


def at_deadline(view: SilenceView, script: NativeOptions) -> Continuation:
    """Whether to go on with silence."""
    if view.behind:
        return Continuation.WAIT
    if view.speaking or view.asked or view.filled_ms < script.patience_ms:
        return Continuation.FILL
    return Continuation.STOP
