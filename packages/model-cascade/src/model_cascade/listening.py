"""What the user is saying: one utterance at a time, recognised while it is spoken and when it ends.

Owned by :class:`~model_cascade.session.CascadeSession`. Builds recognition requests and reads their results; performs
nothing, and knows nothing of answers.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from duplex_core.audio import pcm16_bytes, pcm16_ms
from duplex_core.fence import Fence
from duplex_core.model import Abort, Lane, ModelOutput, StageRequest, Submit
from model_cascade.payloads import Recognize
from model_cascade.turn import partial_due

RECOGNIZER = "recognizer"
RATE_HZ = 16000
"""What the recogniser hears."""
PAUSE_TAIL_MS = 64.0
"""Audio after the last speech frame that a recognition at a pause still gets."""


class Utterance(msgspec.Struct, kw_only=True):
    """What is being said. ``candidate`` is its recognition as it stood at the last pause, if that is still all of it."""

    item_id: str
    start_ms: float
    pcm: bytearray
    recognized_ms: float = 0.0
    running: str | None = None
    at_pause: bool = False
    candidate: str | None = None


class Listening:
    """Recognition of one session. ``new_id`` gives request ids that are unique in the session."""

    def __init__(self, new_id: Callable[[str], str]) -> None:
        self._new_id = new_id
        self._current: Utterance | None = None
        self._finals: dict[str, str] = {}
        self.transcripts: dict[str, str] = {}

    @property
    def current(self) -> Utterance | None:
        """The utterance that is being spoken."""
        return self._current

    def began(self, item_id: str, start_ms: float, pcm: bytes) -> None:
        """The user begins."""
        self._current = Utterance(item_id=item_id, start_ms=start_ms, pcm=bytearray(pcm))

    def heard(self, pcm: bytes, fence: Fence) -> list[ModelOutput]:
        """More audio; from time to time a recognition for a partial transcript."""
        spoken = self._current
        if spoken is None:
            return []
        spoken.pcm += pcm
        spoken_ms = pcm16_ms(len(spoken.pcm), RATE_HZ)
        busy = spoken.running is not None or spoken.at_pause
        if not partial_due(spoken_ms, spoken.recognized_ms, busy=busy):
            return []
        return self._recognize_current(spoken, len(spoken.pcm), fence)

    def paused(self, at_ms: float, fence: Fence) -> list[ModelOutput]:
        """The user fell silent: recognise all of it now, instead of any partial recognition that is still running."""
        spoken = self._current
        if spoken is None:
            return []
        outputs = self._withdraw(spoken)
        spoken.at_pause = True
        size = min(len(spoken.pcm), max(0, pcm16_bytes(at_ms + PAUSE_TAIL_MS - spoken.start_ms, RATE_HZ)))
        return outputs + self._recognize_current(spoken, size, fence)

    def resumed(self) -> list[ModelOutput]:
        """The user goes on: what was recognised at the pause is not all of it."""
        spoken = self._current
        if spoken is None:
            return []
        outputs = self._withdraw(spoken) if spoken.at_pause else []
        spoken.at_pause = False
        spoken.candidate = None
        return outputs

    def dropped(self, item_id: str) -> list[ModelOutput]:
        """The utterance will not become an item."""
        spoken = self._current
        if spoken is None or spoken.item_id != item_id:
            return []
        self._current = None
        return self._withdraw(spoken)

    def committed(self, item_id: str, pcm: bytes, fence: Fence) -> list[ModelOutput]:
        """The utterance became an item: its words are those of the last pause, known or on their way, or are sought now."""
        spoken, self._current = self._current, None
        outputs: list[ModelOutput] = []
        if spoken is not None and spoken.item_id == item_id:
            if spoken.at_pause and spoken.candidate is not None:
                self.transcripts[item_id] = spoken.candidate
                return []
            if spoken.at_pause and spoken.running is not None:
                self._finals[spoken.running] = item_id
                return []
            outputs = self._withdraw(spoken)
        return outputs + self.recognize_item(item_id, pcm, fence)

    def recognize_item(self, item_id: str, pcm: bytes, fence: Fence) -> list[ModelOutput]:
        """Seek the words of an item, unless they are known or being sought."""
        if item_id in self.transcripts or item_id in self._finals.values():
            return []
        request_id = self._new_id("hear")
        self._finals[request_id] = item_id
        return [self._submit(request_id, pcm, fence)]

    def is_final(self, request_id: str) -> str | None:
        """The item whose final words this recognition brings."""
        return self._finals.get(request_id)

    def result(self, request_id: str, text: str) -> tuple[str, bool] | None:
        """A recognition is done: the item that it is about and whether it is final; ``None`` when nobody waits for it."""
        item_id = self._finals.pop(request_id, None)
        if item_id is not None:
            self.transcripts[item_id] = text
            return item_id, True
        spoken = self._current
        if spoken is None or spoken.running != request_id:
            return None
        spoken.running = None
        if spoken.at_pause:
            spoken.candidate = text
        return spoken.item_id, False

    def failed(self, request_id: str) -> str | None:
        """A recognition failed: the item that now stays without words, if its final words were sought."""
        spoken = self._current
        if spoken is not None and spoken.running == request_id:
            spoken.running = None
            spoken.at_pause = False
        return self._finals.pop(request_id, None)

    def waits_for(self, item_id: str) -> bool:
        """Whether the words of this item are being sought."""
        return item_id in self._finals.values()

    def _recognize_current(self, spoken: Utterance, size: int, fence: Fence) -> list[ModelOutput]:
        spoken.running = self._new_id("hear")
        spoken.recognized_ms = pcm16_ms(size, RATE_HZ)
        spoken.candidate = None
        return [self._submit(spoken.running, bytes(spoken.pcm[:size]), fence)]

    def _submit(self, request_id: str, pcm: bytes, fence: Fence) -> Submit:
        request = StageRequest(
            stage=RECOGNIZER, request_id=request_id, fence=fence, lane=Lane.INPUT, payload=Recognize(pcm=pcm)
        )
        return Submit(request=request)

    def _withdraw(self, spoken: Utterance) -> list[ModelOutput]:
        running, spoken.running = spoken.running, None
        return [] if running is None else [Abort(stage=RECOGNIZER, request_id=running)]
