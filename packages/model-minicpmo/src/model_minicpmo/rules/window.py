"""The window rule: what of the context is kept when it has grown, before it is full.

Owns: which units go, and what is remembered of them as text. Called by: the thinker's program after each unit.
Never: touches a cache.

Source: `goldens/minicpmo` (`duplex_window_basic`, `duplex_window_context`), recorded from the vendor's demo server. `basic`
drops the oldest units once the context has more than `high_tokens` positions, until it has no more than `low_tokens`. `context`
keeps the newest `context_units` units and puts the words of those that went into the prompt, after `previous: `.
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
    """

    policy: WindowPolicy
    high_tokens: int
    low_tokens: int
    context_units: int
    previous_tokens: int
    previous: tuple[int, ...] = ()


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done: so many of the oldest units go, and these are the words that are remembered from then on."""

    drop: int
    previous: tuple[int, ...]


def move(units: Sequence[Span], context: int, window: Window) -> Move | None:
    """Say which units go, now that a unit is over.

    Args:
        units: those in the context, oldest first.
        context: positions in it.
        window: the policy and its numbers.

    Returns:
        what to do, or None when everything stays. The newest unit always stays.
    """
    if window.policy is WindowPolicy.OFF:
        return None
    if window.policy is WindowPolicy.BASIC:
        drop = _too_many_positions(units, context, window)
        return Move(drop=drop, previous=()) if drop else None
    drop = max(0, len(units) - window.context_units)
    if not drop:
        return None
    words = (*window.previous, *(word for unit in units[:drop] for word in unit.words))
    return Move(drop=drop, previous=words[max(0, len(words) - window.previous_tokens) :])


def _too_many_positions(units: Sequence[Span], context: int, window: Window) -> int:
    if context <= window.high_tokens:
        return 0
    drop = 0
    while drop < len(units) - 1 and context > window.low_tokens:
        context -= units[drop].length
        drop += 1
    return drop
