"""What is told of a growing transcript: a pure rule that turns whole hypotheses into deltas that never take anything back."""

from __future__ import annotations

import msgspec

from duplex_core.errors import ErrorInfo


class TranscriptState(msgspec.Struct, frozen=True, kw_only=True):
    """``told`` has been sent as deltas; ``last`` is the newest whole hypothesis.

    After ``final`` nothing more comes; ``error`` then says why there is no transcript, if there is none.
    """

    told: str = ""
    last: str = ""
    final: bool = False
    error: ErrorInfo | None = None


def agreed_prefix(first: str, second: str) -> str:
    """The whole words on which two hypotheses agree, as the second writes them."""
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    if same < len(second) and not second[same].isspace():
        same = second.rfind(" ", 0, same) + 1
    return second[:same].rstrip()


def follow_transcript(state: TranscriptState, text: str, *, final: bool) -> tuple[TranscriptState, str]:
    """The state after a new hypothesis, and the delta to tell (perhaps empty).

    A partial word is told once two hypotheses in a row agree on it; a final hypothesis is told to its end unless it
    contradicts what was told, which the completed transcript then corrects.
    """
    settled = text if final else agreed_prefix(state.last, text)
    delta = settled[len(state.told) :] if settled.startswith(state.told) else ""
    return TranscriptState(told=state.told + delta, last=text, final=final), delta
