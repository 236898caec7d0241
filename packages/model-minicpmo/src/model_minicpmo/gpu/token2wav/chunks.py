"""When audio codes become a chunk of sound: the rule, as a pure function of a turn's codes so far.

Owns: the waiting codes of one turn, and how an answer in chat is cut. Called by: the worker of the stage that gives
answers their voice. Never: makes sound, holds a tensor, or knows a clock.

A chunk of 28 codes says 25 and looks at 3. At a turn's beginning three silent codes stand before the first, so that
something can be looked at early. The published demo makes a chunk of fewer codes as soon as 8 wait; the published
class does so at a turn's beginning alone and otherwise waits for 28.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK_CODES = 25
LOOKAHEAD_CODES = 3
FULL = CHUNK_CODES + LOOKAHEAD_CODES
SILENT_CODE = 4218
"""The code of silence: it stands before a turn's first codes, and is what a voice's prompt sees ahead of itself."""
FEWEST = 8
UNIT_SAMPLES = 24_000
"""A unit of 1 s at 24 kHz."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A chunk that is due: its codes, look-ahead included, and whether the turn's sound ends with it."""

    codes: tuple[int, ...]
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCodes:
    """The codes of a turn that no chunk has said yet.

    Attributes:
        codes: in order; those that the last chunk only looked at are among them.
        begun: whether the turn has had a chunk.
        fewest: a chunk is made of fewer than 28 codes when at least so many wait.
        fewest_later: the same once the turn has begun: 8 as the demo, 28 as the published class.
    """

    codes: tuple[int, ...] = (SILENT_CODE,) * LOOKAHEAD_CODES
    begun: bool = False
    fewest: int = FEWEST
    fewest_later: int = FEWEST

    def __post_init__(self) -> None:
        if min(self.fewest, self.fewest_later) <= LOOKAHEAD_CODES:
            message = f"fewest and fewest_later have to be above {LOOKAHEAD_CODES}, the codes that are only looked at"
            raise ValueError(message)

    def add(self, codes: Sequence[int], *, closes_turn: bool) -> tuple[list[Due], WaitingCodes]:
        """Add a unit's codes.

        Args:
            codes: of the unit; may be empty.
            closes_turn: whether the turn ends with them.

        Returns:
            The chunks that are due, in order, and what waits then; after a turn has ended that is the next one's
            beginning.
        """
        waiting, begun, due = self.codes + tuple(codes), self.begun, list[Due]()
        while len(waiting) >= (self.fewest_later if begun else self.fewest):
            taken = waiting[:FULL]
            due.append(Due(codes=taken, last=False))
            waiting, begun = waiting[len(taken) - LOOKAHEAD_CODES :], True
        if closes_turn:
            due.append(Due(codes=waiting, last=True))
            return due, replace(self, codes=WaitingCodes().codes, begun=False)
        return due, replace(self, codes=waiting, begun=begun)


def chat_chunks(codes: Sequence[int]) -> list[Due]:
    """Cut all codes of an answer in chat: no silence before them, 25 said a chunk, the last chunk all that is left."""
    due, start = list[Due](), 0
    while start + FULL < len(codes):
        due.append(Due(codes=tuple(codes[start : start + FULL]), last=False))
        start += CHUNK_CODES
    return [*due, Due(codes=tuple(codes[start:]), last=True)] if codes else due


def silence_before(samples: int, *, closes_turn: bool) -> int:
    """Say how many samples of silence go before a unit's sound.

    A unit within a turn lasts 1 s: what its codes gave stands at its end, so that the next unit's sound joins. The
    unit that closes a turn is as long as its sound; so is a unit without any.
    """
    return 0 if closes_turn or not samples else max(0, UNIT_SAMPLES - samples)
