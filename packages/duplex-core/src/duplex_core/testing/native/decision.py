"""The decision rule: listen or speak, for each unit. Pure; called by the thinker.

It stands in for a language model whose cache grows by each unit, so everything that it knows of the past is a :class:`Mind`.
"""

from __future__ import annotations

import msgspec

from duplex_core.testing.native.options import NativeOptions
from duplex_core.testing.native.unit import Sound


class Mind(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's cache holds after some units.

    Attributes:
        units: how many units it has taken in.
        unanswered_ms: how much the user has spoken since the last answer began.
        silent_ms: how long the user has been silent by now.
        left: how many units of the answer that is being spoken are still to come.
        length: how many units it has in all.
    """

    units: int = 0
    unanswered_ms: float = 0.0
    silent_ms: float = 0.0
    left: int = 0
    length: int = 0


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What the session says about a unit.

    Attributes:
        forced: listen, whatever is in it; an answer that is being spoken ends.
        asked: an answer is waited for, so silence is not.
        forgets: what the user said before this unit is answered no more.
    """

    forced: bool = False
    asked: bool = False
    forgets: bool = False


class Thought(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided on a unit: ``text`` is what is said in it, ``None`` is to listen; ``last`` ends the answer."""

    mind: Mind
    text: str | None = None
    last: bool = False


def decide(mind: Mind, sound: Sound, orders: Orders, script: NativeOptions) -> Thought:
    """Take in the next unit and decide.

    An answer goes on to its end whatever the user says meanwhile: it is the engine that interrupts. One begins when the user
    has spoken, and is silent for long enough or waits for it.
    """
    left, length = mind.left, mind.length
    unanswered_ms = (0.0 if orders.forgets else mind.unanswered_ms) + sound.loud_ms
    silent_ms = sound.silent_ms if sound.loud_ms else mind.silent_ms + sound.ms
    speaks = not orders.forced
    if speaks and left == 0:
        speaks = unanswered_ms > 0 and (orders.asked or silent_ms >= script.silence_ms)
        if speaks:
            left = length = script.turn_units
            unanswered_ms = 0.0
    after = Mind(
        units=mind.units + 1,
        unanswered_ms=unanswered_ms,
        silent_ms=silent_ms,
        left=left - 1 if speaks else 0,
        length=length if speaks else 0,
    )
    if not speaks:
        return Thought(mind=after)
    said = f"{length - after.left} of {length}."
    return Thought(mind=after, text=said if after.left == 0 else said + " ", last=after.left == 0)
