"""The turn rules: what a unit's decision means for the turn, and what is ordered of the units after an interruption. Pure.

Owns: when a turn begins and ends, and what an interruption demands. Called by: the session. Never: looks at sound or words.

The model opens its turns itself and is never relied upon to yield: the engine's overlap rules interrupt, and what the model
would go on saying is cut off by a forced unit that closes its turn, unless the session has chosen one of the vendor's ways.
"""

from __future__ import annotations

import enum

import msgspec


class Interruption(enum.StrEnum):
    """What an interruption does to the model's turn: the values of the option ``interruption``.

    Source: `goldens/minicpmo`; the vendor's two programs differ from each other.
    """

    CLOSE = "close"
    """The next unit is made to listen and closes the turn; talker and voice forget it."""
    KEEP_TALKER = "keep_talker"
    """The same, but the talker remembers: the next turn is spoken as if it went on with this one. The vendor's demo."""
    DROP_UNIT = "drop_unit"
    """The next unit is not taken in at all, and the turn stays open in the model, which goes on with it in the unit after
    that. The vendor's published class."""


def talker_forgets(interruption: str) -> bool:
    """Say whether the talker forgets a turn that was closed from outside."""
    return interruption != Interruption.KEEP_TALKER


class TurnStep(enum.Enum):
    """What a decision does to the turn."""

    NONE = "none"
    """The decision is about something that was given up, and means nothing."""
    LISTEN = "listen"
    """The model keeps listening, outside a turn."""
    BEGIN = "begin"
    """A turn begins with this unit."""
    GO_ON = "go_on"
    """The turn goes on."""


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a unit is decided.

    Attributes:
        void: the unit was cut before the last interruption.
        open: a turn is being spoken.
        listens: the model decided to listen.
    """

    void: bool
    open: bool
    listens: bool


def at_decision(view: TurnView) -> TurnStep:
    """Say what a unit's decision does to the turn.

    A model that listens within a turn cannot be: there its listening is turned into speaking, or was forced on a void unit.
    """
    if view.void:
        return TurnStep.NONE
    if view.listens:
        return TurnStep.LISTEN
    return TurnStep.GO_ON if view.open else TurnStep.BEGIN


class UnitView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a unit is given to the stages.

    Attributes:
        taken_in: how many units were given before.
        forced_listen: how many at the beginning are listened to.
        interrupted: an interruption has come since the last unit.
        asked: an answer is waited for with this unit.
        listened: it is the beginning of what was given at once, and is only to be listened to.
        interruption: what an interruption does.
    """

    taken_in: int
    forced_listen: int
    interrupted: bool
    asked: bool
    listened: bool = False
    interruption: Interruption = Interruption.CLOSE


class UnitOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is ordered of a unit: to listen, to close the turn, to answer; or that it is not taken in (``dropped``)."""

    forced: bool
    ends_turn: bool
    asked: bool
    dropped: bool = False


def for_unit(view: UnitView) -> UnitOrder:
    """Say what is ordered of the next unit.

    After an interruption it is made to listen and to close the turn, or is dropped. Listening at the beginning wins over an
    answer that is waited for, which then ends in listening.
    """
    if view.interrupted:
        dropped = view.interruption is Interruption.DROP_UNIT
        return UnitOrder(forced=not dropped, ends_turn=not dropped, asked=False, dropped=dropped)
    forced = view.listened or view.taken_in < view.forced_listen
    return UnitOrder(forced=forced, ends_turn=False, asked=view.asked and not forced)
