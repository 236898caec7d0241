"""What speech over the assistant's speech is: a short acknowledgement, an interruption, or noise. One pure rule.

Called by the input side of the session machine with everything that is known so far, each time that more is. It may leave
the question open while the speech goes on, never when it has ended. Its figures are those of
:class:`~duplex_core.config.OverlapSettings`; how well it does with them is measured in ``benchmarks/overlap``.
"""

from __future__ import annotations

import functools
import re

import msgspec

from duplex_core.config import OverlapSettings
from duplex_core.events import OverlapVerdict

SEVERAL = 2
"""So many different words are more than one that was misheard."""
QUICK_MS = 400.0
"""Shorter speech has no room for two words: if two were recognised, it was misheard."""
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


class OverlapView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the speech.

    ``spoken_ms`` reaches from its first speech frame to its last, ``silent_ms`` from there to now, and is 0 unless the speaker
    has paused; ``ended`` says that the speech is over. ``transcript`` is ``None`` while nothing has been recognised and empty
    when recognition found no words; ``whole`` says that it was made at the pause, of everything.
    """

    spoken_ms: float
    silent_ms: float
    transcript: str | None
    whole: bool
    ended: bool


def judge(view: OverlapView, settings: OverlapSettings) -> OverlapVerdict | None:
    """The verdict, or ``None`` while it cannot be known.

    What is recognised in mid-word is often wrong, so words are believed when they are those of all that was said, or when there
    are several in speech that is too long for an acknowledgement. Acknowledgements and nothing else are talked through, and so
    is a word of short speech that the rule does not know: most are misheard acknowledgements. Without words length decides.
    """
    over = view.ended or view.silent_ms >= settings.settle_ms
    final = over or (view.silent_ms > 0 and view.whole)
    words = words_of(view.transcript or "")
    if words:
        return _by_words(view, _unbroken(words), final, settings)
    if view.transcript is None:
        return _by_length(view, over, settings)
    if view.spoken_ms > (settings.short_ms if final else settings.long_ms):
        return OverlapVerdict.INTERRUPTION
    return OverlapVerdict.NOISE if final else None


def _by_words(view: OverlapView, words: list[str], final: bool, settings: OverlapSettings) -> OverlapVerdict | None:
    short = view.spoken_ms <= settings.short_ms
    if only_acknowledges(words, settings.backchannels):
        if view.spoken_ms > settings.longest_backchannel_ms:
            return OverlapVerdict.INTERRUPTION
        return OverlapVerdict.BACKCHANNEL if final else None
    if final:
        fit = SEVERAL if view.spoken_ms <= QUICK_MS else SEVERAL - 1
        misheard = short and len(set(words)) <= fit and not contains(words, settings.interruptions)
        return OverlapVerdict.BACKCHANNEL if misheard else OverlapVerdict.INTERRUPTION
    certain = view.spoken_ms > settings.long_ms or (not short and len(set(words)) >= SEVERAL)
    return OverlapVerdict.INTERRUPTION if certain else None


def _by_length(view: OverlapView, over: bool, settings: OverlapSettings) -> OverlapVerdict | None:
    if view.spoken_ms > settings.short_ms:
        return OverlapVerdict.INTERRUPTION
    if view.spoken_ms < settings.noise_ms and (over or view.silent_ms > 0):
        return OverlapVerdict.NOISE
    return OverlapVerdict.BACKCHANNEL if over else None


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


def _unbroken(words: list[str]) -> list[str]:
    """Without a last word that only begins an earlier one: a recogniser that repeats itself is cut off in mid-word."""
    return words[:-1] if any(word.startswith(words[-1]) for word in words[:-1]) else words


def only_acknowledges(words: list[str], phrases: tuple[str, ...]) -> bool:
    """Whether ``words`` are nothing but ``phrases``, one after the other."""
    at = 0
    while at < len(words):
        size = _starts_with(words[at:], phrases)
        if size == 0:
            return False
        at += size
    return bool(words)


def contains(words: list[str], phrases: tuple[str, ...]) -> bool:
    """Whether any of ``phrases`` stands among ``words``."""
    return any(_starts_with(words[at:], phrases) for at in range(len(words)))


def _starts_with(words: list[str], phrases: tuple[str, ...]) -> int:
    """How many words the longest phrase has with which ``words`` begin; 0 when they begin with none."""
    known, longest = _phrases(phrases)
    return next((size for size in range(min(longest, len(words)), 0, -1) if tuple(words[:size]) in known), 0)


@functools.lru_cache(maxsize=64)
def _phrases(phrases: tuple[str, ...]) -> tuple[frozenset[tuple[str, ...]], int]:
    known = frozenset(tuple(words_of(phrase)) for phrase in phrases) - {()}
    return known, max(map(len, known), default=0)
