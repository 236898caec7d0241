"""The turn rules: what a unit's decision means for the turn, and what is ordered of the units after an interruption. Pure.

Owns: when a turn begins and ends, and what an interruption demands. Called by: the session. Never: looks at sound or words.

The model opens its turns itself and is never relied upon to yield: the engine's overlap rules interrupt, and what the model
would go on saying is cut off by a forced unit that closes its turn.
"""

from __future__ import annotations

import enum

import msgspec


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
    """

    taken_in: int
    forced_listen: int
    interrupted: bool
    asked: bool


class UnitOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is ordered of a unit: to listen, to close the turn, to answer."""

    forced: bool
    ends_turn: bool
    asked: bool


def for_unit(view: UnitView) -> UnitOrder:
    """Say what is ordered of the next unit.

    After an interruption it is made to listen and to close the turn. Listening at the beginning wins over an answer that is
    waited for, which then ends in listening.
    """
    if view.interrupted:
        return UnitOrder(forced=True, ends_turn=True, asked=False)
    forced = view.taken_in < view.forced_listen
    return UnitOrder(forced=forced, ends_turn=False, asked=view.asked and not forced)
