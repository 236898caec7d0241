"""From the text of a language model, as it comes, to clauses that a voice can speak.

Owns: where a text may be cut. Called by: the cascade's session, with each piece of text that its language model gives.
Never: loses, repeats, moves or changes a character: the clauses, put together, are the text. Where it cuts does not
depend on how the text was divided on its way here.

The first clause is short, because the user waits for it; each later one may be longer, because longer ones sound
better, and the one before is being played while the next is made.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENDS = ".!?\u2026"
_BREATHS = frozenset(",;:\u2014\u2013")
_OPENERS = "\"'([*_\u201c\u2018"
_CLOSERS = "\"')]*_\u201d\u2019"
_ALWAYS_SHORT = _words("mr mrs ms dr drs prof rev mt gen col capt lt sgt hon eg ie e.g i.e vs fig approx est st no vol")
_OFTEN_SHORT = _words(
    "sr jr ave pres gov sen rep etc a.m p.m dept inc ltd co corp u.s u.k jan feb mar apr jun jul aug sep sept oct nov dec"
)
_JOINERS = _words(
    "and but or so because that which who when while where if than as to in on at for with from of by about into"
)
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseLength:
    """How long one clause may be, in words.

    Attributes:
        least: It is not cut at a comma before it has this many.
        most: It is cut after this many where nothing else ends it.
    """

    least: int
    most: int


DEFAULT_LENGTHS = (
    ClauseLength(least=1, most=7),
    ClauseLength(least=4, most=14),
    ClauseLength(least=6, most=28),
)
"""For the first clause of an answer, the second, and all others."""


class ClauseSplitter:
    """Cuts one answer into clauses. Feed it the text as it comes, then :meth:`finish`; use a new one for each answer.

    Args:
        lengths: The bounds of the first clause, the second and so on; the last holds for all that follow.
    """

    def __init__(self, lengths: tuple[ClauseLength, ...] = DEFAULT_LENGTHS) -> None:
        self._lengths = lengths
        self._text = ""
        self._given = 0

    def feed(self, delta: str) -> list[str]:
        """Take more text and give the clauses that it completes, white space included.

        A clause is complete when the word after it has begun: ``3.`` may go on as ``3.5``, and ``etc.`` ends a
        sentence only before a capital.
        """
        self._text += delta
        found = []
        while (at := self._boundary()) is not None:
            found.append(self._text[:at])
            self._text = self._text[at:]
            self._given += 1
        return found

    def finish(self) -> list[str]:
        """Give what is left: a last clause, or nothing. It is white space alone when the text was."""
        rest, self._text = self._text, ""
        return [rest] if rest else []

    def _boundary(self) -> int | None:
        """Tell where the next clause ends; ``None`` while that is not certain."""
        length = self._lengths[min(self._given, len(self._lengths) - 1)]
        words = list(_WORD.finditer(self._text))
        spoken = 0
        for place, (word, following) in enumerate(itertools.pairwise(words)):
            spoken += any(one.isalnum() for one in word.group())
            if spoken == 0:
                continue
            if following is words[-1] and not following.group().strip(_OPENERS):
                return None
            if "\n" in self._text[word.end() : following.start()]:
                return following.start()
            if _ends_sentence(word.group(), following.group(), opens_clause=place == 0):
                return following.start()
            if spoken >= length.least and word.group().rstrip(_CLOSERS)[-1:] in _BREATHS:
                return following.start()
            if spoken >= length.most:
                return words[_before_joiner(words, place)].start()
        return None


def _ends_sentence(word: str, following: str, *, opens_clause: bool) -> bool:
    """Tell whether a sentence ends with ``word``; after an abbreviation the next word decides."""
    bare = word.rstrip(_CLOSERS)
    if not bare or bare[-1] not in _ENDS:
        return False
    if bare[-1] != "." or bare.endswith(".."):
        return True
    stem = bare[:-1].lstrip(_OPENERS).lower()
    starts_anew = following.lstrip(_OPENERS)[:1].isupper()
    if stem in _ALWAYS_SHORT:
        return False
    if stem in _OFTEN_SHORT:
        return starts_anew
    if len(stem) == 1 and stem.isalpha():
        return stem == "i" and starts_anew  # "J. Smith" goes on, "so did I. Then" does not
    is_list_number = opens_clause and stem.isdigit() and len(stem) <= 2
    return not is_list_number


def _before_joiner(words: list[re.Match[str]], place: int) -> int:
    """Tell which word the next clause begins with: a joining one not far back, or the one after ``place``."""
    for at in range(place, max(place * 2 // 3, 1), -1):
        if words[at].group().lower() in _JOINERS:
            return at
    return place + 1
