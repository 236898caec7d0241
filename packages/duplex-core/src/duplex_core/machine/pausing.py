"""The pauses of one session's user, under ``semantic_vad``: has the end-of-turn detector asked, and keeps what becomes known.

Owned by the input side of the session machine. What follows from what is known is :mod:`duplex_core.machine.semantic`'s to say.
"""

from __future__ import annotations

import msgspec

from duplex_core.config import SemanticVad
from duplex_core.machine.core import Core
from duplex_core.machine.io import EndOfTurnVerdict, JudgeEndOfTurn
from duplex_core.machine.semantic import Pause

JUDGED_MS = 8000.0
"""The most of an utterance that an end-of-turn detector is given, its end."""


class Pausing:
    """Looks into pauses. The pause that lasts is the core's, where the detector's settings are made from it."""

    def __init__(self, core: Core) -> None:
        """Begin with no pause seen."""
        self._core = core
        self._serial = 0

    def began(self, item_id: str, pcm: bytes) -> None:
        """The user fell silent. ``pcm`` is the end of what was said, with the silence after it."""
        core = self._core
        if not isinstance(core.config.turn_detection, SemanticVad):
            return
        self._serial += 1
        core.pause = Pause(serial=self._serial, item_id=item_id)
        if not core.streams:
            core.perform(JudgeEndOfTurn(item_id=item_id, serial=self._serial, pcm=pcm))

    def judged(self, verdict: EndOfTurnVerdict) -> bool:
        """The end-of-turn detector has answered; whether it is about the pause that lasts."""
        pause = self._core.open_pause
        if pause is None or (pause.serial, pause.item_id) != (verdict.serial, verdict.item_id):
            return False
        self._core.pause = msgspec.structs.replace(pause, probability=verdict.probability)
        return True

    def heard(self, item_id: str, words: str) -> bool:
        """A transcript came; whether it is about the utterance that pauses, and so about all of it."""
        pause = self._core.open_pause
        if pause is None or pause.item_id != item_id:
            return False
        self._core.pause = msgspec.structs.replace(pause, words=words)
        return True
