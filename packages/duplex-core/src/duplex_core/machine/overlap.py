"""What speech over the assistant's speech is: a short acknowledgement, an interruption, or noise. One pure rule.

Called by the input side of the session machine with everything that is known so far, each time that more is. It may leave
the question open while the speech goes on, never when it has ended.
"""

from __future__ import annotations

import re

import msgspec

from duplex_core.config import OverlapSettings
from duplex_core.events import OverlapVerdict

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


class OverlapView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the speech.

    ``spoken_ms`` reaches from its first speech frame to its last; ``transcript`` is ``None`` while nothing has been
    recognised and empty when recognition found no words; ``paused`` says that it is silent now, ``ended`` that it is over.
    """

    spoken_ms: float
    transcript: str | None
    paused: bool
    ended: bool


def judge(view: OverlapView, settings: OverlapSettings) -> OverlapVerdict | None:
    """The verdict, or ``None`` while it cannot be known.

    Words decide where there are any: nothing but acknowledgements is talked through once the speaker has stopped, anything
    else interrupts, a lone word only when it stands or goes on. Without words length decides.
    """
    silent = view.paused or view.ended
    words = words_of(view.transcript or "")
    if words:
        return _by_words(view, words, silent, settings)
    if silent and (view.transcript == "" or view.spoken_ms < settings.noise_ms):
        return OverlapVerdict.NOISE
    if view.spoken_ms > settings.long_ms:
        return OverlapVerdict.INTERRUPTION
    if not view.ended:
        return None
    short = view.spoken_ms <= settings.short_ms
    return OverlapVerdict.BACKCHANNEL if short else OverlapVerdict.INTERRUPTION


def _by_words(view: OverlapView, words: list[str], silent: bool, settings: OverlapSettings) -> OverlapVerdict | None:
    if only_acknowledges(words, settings.backchannels):
        if view.spoken_ms > settings.longest_backchannel_ms:
            return OverlapVerdict.INTERRUPTION
        return OverlapVerdict.BACKCHANNEL if silent else None
    settled = silent or len(words) > 1 or view.spoken_ms > settings.short_ms
    return OverlapVerdict.INTERRUPTION if settled else None


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


def only_acknowledges(words: list[str], phrases: tuple[str, ...]) -> bool:
    """Whether ``words`` are nothing but ``phrases``, one after the other."""
    known = {tuple(words_of(phrase)) for phrase in phrases} - {()}
    longest = max(map(len, known), default=0)
    at = 0
    while at < len(words):
        size = next((n for n in range(longest, 0, -1) if tuple(words[at : at + n]) in known), 0)
        if size == 0:
            return False
        at += size
    return bool(words)
