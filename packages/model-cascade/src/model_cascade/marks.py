"""Where the words of a clause lie in its sound: an estimate, since the voices tell no timing.

Pure; called by the cascade's session for each clause that it speaks. Words are placed in proportion to their characters
over the voiced part of the clause, so that an interruption cuts the history between words.
"""

from __future__ import annotations

import re

from duplex_core.ledger import TextMark

_WORD_END = re.compile(r"\S+\s*")


def clause_marks(text: str, voiced_ms: float, *, chars_before: int, ms_before: float) -> tuple[TextMark, ...]:
    """A mark at the end of each word, counted from the answer's beginning.

    Args:
        text: the clause with its white space.
        voiced_ms: how long its speech lasts, without the pause behind it.
        chars_before: characters of the answer before this clause.
        ms_before: milliseconds of the answer before this clause.
    """
    total = max(1, len(text.rstrip()))
    return tuple(
        TextMark(
            chars=chars_before + match.end(),
            ms=ms_before + voiced_ms * min(1.0, (match.start() + len(match.group().rstrip())) / total),
        )
        for match in _WORD_END.finditer(text)
    )
