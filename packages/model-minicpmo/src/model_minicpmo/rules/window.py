"""The window rule: what of the context is kept when it has grown, before it is full.

Owns: which units go, what is remembered of them as text, and whether a unit can ever fit. Called by: the thinker's program before
each unit, whose length it knows by then.
Never: touches a cache.

Source: `goldens/minicpmo` (`duplex_window_basic`, `duplex_window_context`), recorded from the vendor's demo server. `basic`
drops the oldest units once the context has more than `high_tokens` positions, until it has no more than `low_tokens`. `context`
keeps the newest `context_units` units and puts the words of those that went into the prompt, after `previous: `. Beyond the
recordings, both make room for the unit that comes, whatever else they would keep: the engine's context has an end.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class WindowPolicy(enum.Enum):
    """How the context is kept from growing."""

    OFF = "off"
    """Not at all: a full context ends the session."""
    BASIC = "basic"
    """Old units are forgotten."""
    CONTEXT = "context"
    """Old units are forgotten, but for the words that the model said in them."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One unit as it stands in the context: its first position, how many it has, and the words that were said in it."""

    number: int
    start: int
    length: int
    words: tuple[int, ...] = ()


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy goes by.

    Attributes:
        policy: the policy.
        high_tokens: with `basic`, more positions than this are too many.
        low_tokens: with `basic`, how many may be left then.
        context_units: with `context`, how many units stay.
        previous_tokens: with `context`, how many ids of words are remembered at most.
        previous: the ids of words that are remembered now.
        limit: positions that the engine's context has at most.
        room: positions that the unit that comes needs at most, with its words and what ends it.
        fixed: positions that no move frees: the prompt and the reference voice.
        header: positions that stand before the words that are remembered.
    """

    policy: WindowPolicy
    high_tokens: int
    low_tokens: int
    context_units: int
    previous_tokens: int
    previous: tuple[int, ...] = ()
    limit: int
    room: int
    fixed: int
    header: int = 0

    @property
    def ceiling(self) -> int:
        """How many positions may be in the context before the unit that comes."""
        return self.limit - self.room


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done: so many of the oldest units go, and these are the words that are remembered from then on."""

    drop: int
    previous: tuple[int, ...]


def fits(window: Window) -> bool:
    """Say whether the unit that comes fits into a context from which everything else has gone."""
    return window.fixed <= window.ceiling


def move(units: Sequence[Span], context: int, window: Window) -> Move | None:
    """Say which units go, before the next one comes.

    Args:
        units: those in the context, oldest first.
        context: positions in it.
        window: the policy and its numbers.

    Returns:
        what to do, or None when everything stays. The newest unit stays, unless the one that comes leaves no room for it.
    """
    if window.policy is WindowPolicy.OFF:
        return None
    if window.policy is WindowPolicy.BASIC:
        drop = _too_many_positions(units, context, window)
        return Move(drop=drop, previous=()) if drop else None
    drop = max(0, len(units) - window.context_units)
    step = Move(drop=drop, previous=_remembered(units[:drop], window))
    if drop == 0 and context <= window.ceiling:
        return None
    while drop < len(units) and _after(units, step, window) > window.ceiling:
        drop += 1
        step = Move(drop=drop, previous=_remembered(units[:drop], window))
    return step


def _too_many_positions(units: Sequence[Span], context: int, window: Window) -> int:
    high = min(window.high_tokens, window.ceiling)
    if context <= high:
        return 0
    low = min(window.low_tokens, high * window.low_tokens // window.high_tokens)
    drop = 0
    while drop < len(units) and context > (low if drop < len(units) - 1 else window.ceiling):
        context -= units[drop].length
        drop += 1
    return drop


def _remembered(gone: Sequence[Span], window: Window) -> tuple[int, ...]:
    """The words that are remembered when these units go; they take no more than half of what the prompt and the unit leave."""
    words = window.previous + tuple(word for unit in gone for word in unit.words)
    most = min(window.previous_tokens, max(0, window.ceiling - window.fixed - window.header) // 2)
    return words[max(0, len(words) - most) :]


def _after(units: Sequence[Span], step: Move, window: Window) -> int:
    """Positions in the context after a move."""
    remembered = window.header + len(step.previous) if step.previous else 0
    return window.fixed + remembered + sum(unit.length for unit in units[step.drop :])
