"""Speech over the assistant's speech, while it is not clear what it is.

Owned by the input side of the session machine. Holds the open question, tells the client that the answer is held and goes on,
and tells the verdict; :mod:`duplex_core.machine.overlap` makes it. Interrupts nothing itself.
"""

from __future__ import annotations

import msgspec

from duplex_core.config import OverlapMode, ServerVad
from duplex_core.events import OverlapDecision, OverlapVerdict, TurnEvent, TurnEventKind
from duplex_core.machine.core import Core
from duplex_core.machine.output import OutputSide
from duplex_core.machine.overlap import OverlapView, judge
from duplex_core.machine.recognition import Understood
from duplex_core.machine.table import Answer


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Speech that has not been judged: since when, over which answer, under which epoch."""

    onset_ms: float
    response_id: str | None
    epoch: int


class Overlapping:
    """The overlap of one session's speakers."""

    def __init__(self, core: Core, output: OutputSide) -> None:
        """Begin with no overlap."""
        self._core = core
        self._output = output
        self.question: Question | None = None
        """What is being judged, if anything is."""

    def concerns(self, vad: ServerVad) -> bool:
        """Whether speech that begins now is over an answer that it may interrupt."""
        return vad.interrupt_response and self._output.audible

    def ask(self, at_ms: float) -> bool:
        """Speech over the answer begins at ``at_ms``: hold the answer until it is judged; whether it is to be."""
        core = self._core
        if core.config.overlap.mode is OverlapMode.IMMEDIATE:
            return False
        core.playback.hold()
        self._output.sounding.drain()
        self.question = Question(onset_ms=at_ms, response_id=self._output.audible_id, epoch=core.fence.epoch)
        core.emit(TurnEvent(kind=TurnEventKind.HELD, epoch=core.fence.epoch, turn_id=core.fence.turn))
        return True

    @property
    def late(self) -> bool:
        """Whether, by the clock, the answer has been made and heard; a client that has paused may still have some of it."""
        core = self._core
        return core.lanes.answer is Answer.NONE and core.playback.over_by(core.now_ms)

    @property
    def early(self) -> bool:
        """Whether what is judged was spoken before the answer was begun, by the audio's own time."""
        return self.question is not None and self.question.onset_ms < self._output.since_ms

    @property
    def answered_by_others(self) -> bool:
        """Whether the answer was stopped meanwhile, by the client: what is being said is a turn then."""
        return self.question is not None and self.question.epoch != self._core.fence.epoch

    def judge(
        self, spoken_until_ms: float, silent_ms: float, words: Understood, *, ended: bool
    ) -> OverlapVerdict | None:
        """The verdict on the open question, if there can be one."""
        question = self.question
        assert question is not None
        view = OverlapView(
            spoken_ms=spoken_until_ms - question.onset_ms,
            silent_ms=silent_ms,
            transcript=words.text,
            whole=words.whole,
            ended=ended,
        )
        return judge(view, self._core.config.overlap)

    def tell(self, verdict: OverlapVerdict, at_ms: float, response_id: str | None) -> None:
        """Tell the client what the speech was taken for."""
        self._core.emit(
            OverlapDecision(
                decision=verdict, audio_ms=int(at_ms), epoch=self._core.fence.epoch, response_id=response_id
            )
        )

    def close(self, *, resume: bool) -> Question | None:
        """The question is answered, or will not be; with ``resume`` the answer goes on."""
        question, self.question = self.question, None
        if question is not None:
            self._core.playback.go_on(self._core.now_ms)
            self._output.sounding.drain()
        if question is not None and resume:
            core = self._core
            core.emit(TurnEvent(kind=TurnEventKind.RESUMED, epoch=core.fence.epoch, turn_id=core.fence.turn))
        return question
