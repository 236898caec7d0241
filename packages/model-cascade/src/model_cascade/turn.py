"""When the cascade recognises: pure rules over how much of an utterance has been heard.

Called by the cascade's session with each piece of the user's audio. Recognition re-decodes the whole utterance each time,
so it is done seldom while the user speaks, and at once when the user falls silent.
"""

from __future__ import annotations

FIRST_PARTIAL_MS = 640.0
"""Speech that must be there before the first partial transcript."""
PARTIAL_EVERY_MS = 560.0
"""New speech between two partial transcripts; more for a long utterance, whose recognition takes longer."""
SHARE = 0.15
"""A partial transcript waits for at least this share of the utterance to be new, so that re-decoding stays linear."""


def partial_due(spoken_ms: float, recognized_ms: float, *, busy: bool) -> bool:
    """Whether to recognise the utterance so far.

    Args:
        spoken_ms: how much has been heard of it.
        recognized_ms: how much of it the last recognition had.
        busy: whether a recognition of this session is still running.
    """
    if busy or spoken_ms < FIRST_PARTIAL_MS:
        return False
    return spoken_ms - recognized_ms >= max(PARTIAL_EVERY_MS, SHARE * spoken_ms)
