"""Native's two stages: the thinker takes in units and decides, the voice makes sound of what is said. Both on ``thread``.

Neither worker keeps anything between requests, so one of each serves all sessions: the mind travels with the unit. (A real
model's cache stays in its stage; the session then holds only how long it is.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import msgspec

from duplex_core.audio import pcm16_bytes, pcm16_ms
from duplex_core.ledger import TextMark
from duplex_core.testing.native.decision import Mind, Orders, Thought, decide
from duplex_core.testing.native.options import NativeOptions
from duplex_core.testing.native.unit import sound_of
from duplex_core.testing.speech import burst

THINKER = "thinker"
"""Name of the stage that understands: its work is on the input lane."""
VOICE = "voice"
"""Name of the stage that speaks: its work is on the output lane."""
OUTPUT_HZ = 24000
"""The rate of what native says."""
PIECE_MS = 100.0
"""How long the pieces are in which a unit is spoken."""


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Payload for the thinker: 16-bit mono PCM, and the place in the cache at which it belongs; the first is 1."""

    number: int
    pcm: bytes
    mind: Mind
    orders: Orders
    script: NativeOptions


class Utterance(msgspec.Struct, frozen=True, kw_only=True):
    """Payload for the voice: what is said in a unit of ``ms``, and how much of the answer comes before it."""

    text: str
    ms: float
    chars_before: int
    ms_before: float


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The voice's output: 16-bit mono PCM at :data:`OUTPUT_HZ`, and the marks of the words that end in it."""

    pcm: bytes
    text: str = ""
    marks: tuple[TextMark, ...] = ()


class Thinker:
    """The worker that listens."""

    def run(self, payload: Unit, emit: Callable[[Thought], None], cancelled: Callable[[], bool]) -> None:
        """Decide on one unit.

        Raises:
            ValueError: the unit does not follow on what the mind has taken in: the session lost count.
        """
        if payload.number != payload.mind.units + 1:
            raise ValueError(
                f"unit {payload.number} cannot follow on {payload.mind.units} units: one was lost on the way"
            )
        emit(decide(payload.mind, sound_of(payload.pcm), payload.orders, payload.script))

    def close(self) -> None:
        """Nothing is held."""


class Voice:
    """The worker that speaks."""

    def run(self, payload: Utterance, emit: Callable[[Piece], None], cancelled: Callable[[], bool]) -> None:
        """Say one unit, piece by piece."""
        for piece in pieces(payload):
            if cancelled():
                return
            emit(piece)

    def close(self) -> None:
        """Nothing is held."""


def pieces(said: Utterance) -> Iterator[Piece]:
    """The pieces of a unit: its text with the first, each mark where its word ends."""
    sound = _hum(said.ms)
    size = pcm16_bytes(PIECE_MS, OUTPUT_HZ)
    marks = list(_marks(said))
    for start in range(0, len(sound), size):
        pcm = sound[start : start + size]
        until_ms = said.ms_before + pcm16_ms(start + len(pcm), OUTPUT_HZ) + 0.001
        ended = tuple(mark for mark in marks if mark.ms <= until_ms)
        marks = marks[len(ended) :]
        yield Piece(pcm=pcm, text="" if start else said.text, marks=ended)


def _marks(said: Utterance) -> Iterator[TextMark]:
    """A mark at the end of each word, as if all characters took equally long."""
    text = said.text.rstrip()
    for end in [*(index for index, char in enumerate(text) if char == " "), len(text)]:
        yield TextMark(chars=said.chars_before + end, ms=round(said.ms_before + said.ms * end / len(text), 3))


@functools.lru_cache(maxsize=4)
def _hum(ms: float) -> bytes:
    return burst(ms, OUTPUT_HZ, hz=220.0)
