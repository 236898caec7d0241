"""How long a pause may last before the turn is over, under ``semantic_vad``: pure rules over what is known of the pause.

Called by the session machine with each frame of a pause and whenever more is known. Two witnesses may speak: an end-of-turn
detector, which has heard how the utterance sounds, and a recogniser, whose words look finished or do not. Neither need be there:
without the first the words and the silence decide, without both the silence alone. Holds nothing and no clock.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from duplex_core.config import Eagerness, SemanticVad, ServerVad, TurnDetection

THRESHOLD = 0.5
"""The speech detector's threshold under ``semantic_vad``, which has no field for it: the default of ``server_vad``."""
PREFIX_MS = 300
"""The padding before an utterance, likewise."""
FINISHED = 0.5
"""Probability from which an end-of-turn detector says that the turn is finished."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Silence that ends a turn, in ms.

    When it is finished by all that is known, when nothing is known, when there is doubt, and when the speaker clearly has more
    to say.
    """

    finished: int
    unknown: int
    doubtful: int
    unfinished: int


_MIDDLING = Patience(finished=500, unknown=900, doubtful=2000, unfinished=4000)
PATIENCE: Mapping[Eagerness, Patience] = MappingProxyType(
    {
        Eagerness.HIGH: Patience(finished=400, unknown=600, doubtful=1000, unfinished=2000),
        Eagerness.MEDIUM: _MIDDLING,
        Eagerness.AUTO: _MIDDLING,
        Eagerness.LOW: Patience(finished=1200, unknown=2000, doubtful=4000, unfinished=8000),
    }
)
"""The whole table. The longest times are those that OpenAI's page gives for each eagerness."""


class Ending(enum.Enum):
    """How the words of an utterance end."""

    FINISHED = "finished"
    """Like a sentence."""
    UNKNOWN = "unknown"
    """No words, or words without a hint."""
    DOUBTFUL = "doubtful"
    """With a word that ends few sentences."""
    OPEN = "open"
    """With a word, or a mark, that ends none."""


def _set(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


_OPEN = _set(
    # articles and owners
    "a an the my your our their every",
    # what joins
    "and or but nor because if unless whether although than",
    # who is about to be told of
    "i i'm i'll i've we're we'll we've you're you'll they're they'll it's he's she's that's there's what's who's let's",
    # prepositions that ask for their noun at once
    "of into onto between during",
    # sounds of thinking
    "um umm uh uhm er erm",
)
_DOUBTFUL = _set(
    # prepositions that a question or a verb may end with
    "to for with at in on by from about as like without until after before over under through",
    # helping verbs: "so am I", "he might have"
    "is are was were am be been will would can could should shall may might must do does did have has had",
    "don't doesn't didn't can't couldn't won't wouldn't isn't aren't wasn't haven't hasn't",
    # who, whose, what, when
    "we he she they his who whose which what when where why how",
    # what wants more to come, as a rule
    "then very just",
)
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_CURLY = "\u2019"
"""The apostrophe as typesetters write it; it also closes a quotation."""
_CLOSING = " \"')\u201d" + _CURLY
_BREAKS = ("...", "\u2026", "-", "\u2013", "\u2014")
"""Three dots and the dashes."""
_STOPS = (".", "?", "!", "\u3002", "\uff1f", "\uff01")
"""Full stop, question mark and exclamation mark, the Chinese and Japanese ones too."""


def ending(text: str | None) -> Ending:
    """How an utterance's words end. The words that it knows are English; marks are everybody's.

    Args:
        text: the newest transcript of all that was said; ``None`` when there is none.
    """
    words = _WORD.findall((text or "").lower().replace(_CURLY, "'"))
    if text is None or not words:
        return Ending.UNKNOWN
    tail = text.rstrip(_CLOSING)
    if words[-1] in _OPEN or tail.endswith(_BREAKS):
        return Ending.OPEN
    if words[-1] in _DOUBTFUL:
        return Ending.DOUBTFUL
    return Ending.FINISHED if tail.endswith(_STOPS) else Ending.UNKNOWN


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pause: which it is, in which utterance, how finished that sounds, and what was said.

    ``probability`` is ``None`` until an end-of-turn detector has judged, ``words`` until something was recognised since the
    pause began.
    """

    serial: int
    item_id: str
    probability: float | None = None
    words: str | None = None


def patience_ms(eagerness: Eagerness, pause: Pause | None) -> int:
    """Silence that ends the turn, as far as is known now; ``None`` is a pause of which nothing is.

    Where the witnesses agree, or one is silent, that decides. Words that cannot end a sentence are the better witness; a
    sound that is not finished outweighs words that look so only in part, since recognisers like to put a full stop.
    """
    table = PATIENCE[eagerness]
    end = ending(pause.words if pause is not None else None)
    probability = pause.probability if pause is not None else None
    if probability is None:
        return {
            Ending.FINISHED: table.finished,
            Ending.UNKNOWN: table.unknown,
            Ending.DOUBTFUL: table.doubtful,
            Ending.OPEN: table.unfinished,
        }[end]
    if probability >= FINISHED:
        return {
            Ending.FINISHED: table.finished,
            Ending.UNKNOWN: table.finished,
            Ending.DOUBTFUL: table.doubtful,
            Ending.OPEN: table.unfinished,
        }[end]
    return {
        Ending.FINISHED: table.doubtful,
        Ending.UNKNOWN: table.unfinished,
        Ending.DOUBTFUL: table.unfinished,
        Ending.OPEN: table.unfinished,
    }[end]


def detector_settings(detection: TurnDetection | None, pause: Pause | None) -> ServerVad | None:
    """How the speech detector is to be followed, whatever the kind of turn detection; ``None`` when no detector listens.

    Under ``semantic_vad`` the silence that ends a turn is what ``pause``, the pause under way, allows.
    """
    if not isinstance(detection, SemanticVad):
        return detection
    return ServerVad(
        threshold=THRESHOLD,
        prefix_padding_ms=PREFIX_MS,
        silence_duration_ms=patience_ms(detection.eagerness, pause),
        create_response=detection.create_response,
        interrupt_response=detection.interrupt_response,
    )
