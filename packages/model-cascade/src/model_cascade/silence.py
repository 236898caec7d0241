"""What counts as silence: a pure rule over what was recognised.

Called by the cascade's session when the words of an utterance are known. The detector has heard voice; whether there were
words in it only the recogniser can tell.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]")


def says_nothing(text: str) -> bool:
    """Whether an utterance holds no word: breath, a cough, a door. It gets no answer."""
    return _WORD.search(text) is None
