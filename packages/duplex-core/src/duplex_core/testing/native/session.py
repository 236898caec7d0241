"""One conversation with native: the model's side of a session, sans-I/O.

Made by the plugin for each session. Cuts what it hears into units, has the thinker decide on each, one at a time, and the voice
say what is to be said. Decides nothing itself but what to do when no audio comes, and that by the silence rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from duplex_core.fence import Fence
from duplex_core.model import (
    AudioArrived,
    BeginTurn,
    Configured,
    Deadline,
    EndTurn,
    Failed,
    InputCommitted,
    Interrupted,
    Listen,
    ModelInput,
    ModelOutput,
    Respond,
    Speak,
    Submit,
    TokenUsage,
    WakeAt,
)
from duplex_core.spec import SessionContext
from duplex_core.stages import Lane, StageFailed, StageOutput, StageRequest
from duplex_core.testing.native.decision import Mind, Orders, Thought
from duplex_core.testing.native.options import NativeOptions, NativeSettings
from duplex_core.testing.native.silence import Continuation, SilenceView, at_deadline
from duplex_core.testing.native.stage import THINKER, VOICE, Piece, Unit, Utterance
from duplex_core.testing.native.unit import UnitBuffer

UNIT = "unit"
"""Key of the timer that is due when a unit should have come and has not."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that was cut and waits for the thinker. ``fence`` is what its decision will be about."""

    serial: int
    pcm: bytes
    fence: Fence
    asked: bool
    forced: bool
    forgets: bool


class Turn:
    """The answer that is being spoken: what has been said, what the voice is at, and whether more will follow."""

    def __init__(self, fence: Fence) -> None:
        """Begin with nothing said."""
        self.fence = fence
        self.units = 0
        self.chars = 0
        self.ms = 0.0
        self.voicing: set[str] = set()
        self.last = False


class NativeSession:
    """See the module's docstring."""

    def __init__(self, context: SessionContext) -> None:
        """Begin a conversation in which nothing was heard."""
        assert isinstance(context.deploy, NativeSettings)
        self._unit_ms = context.deploy.unit_ms
        self._options = NativeOptions.model_validate(context.config.options)
        self._fence = Fence(session_id=context.session_id)
        self._buffer = UnitBuffer(self._unit_ms)
        self._waiting: deque[Cut] = deque()
        self._thinking: Cut | None = None
        self._mind = Mind()
        self._serial = 0
        self._taken_in = 0
        self._void_to = 0
        self._stopped = False
        self._forgets = False
        self._asked = False
        self._turn: Turn | None = None
        self._filled_ms = 0.0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        """Take one input; see :class:`~duplex_core.model.ModelSession`."""
        match event:
            case Configured():
                self._options = NativeOptions.model_validate(event.config.options)
                self._fence = event.fence
            case AudioArrived():
                return self._hear(event.pcm, now_ms)
            case InputCommitted():
                return self._flush(now_ms)
            case Respond():
                return self._ask(event.fence, now_ms)
            case Deadline():
                return self._continue(now_ms)
            case Interrupted():
                self._fence = event.fence
                self._give_up()
            case StageOutput(stage=stage):
                return self._understand(event) if stage == THINKER else self._speak(event)
            case StageFailed(stage=stage):
                return self._not_understood(event) if stage == THINKER else self._not_spoken(event)
            case _:
                pass  # native has heard all audio as it came: what a detector or a commit makes of it is nothing new
        return ()

    # -- what is heard ------------------------------------------------------------------------------------------------

    def _hear(self, pcm: bytes, now_ms: float) -> Sequence[ModelOutput]:
        self._filled_ms = 0.0
        for unit in self._buffer.take(pcm):
            self._cut(unit)
        return self._think_and_wait(now_ms)

    def _flush(self, now_ms: float) -> Sequence[ModelOutput]:
        """Audio was committed: use its tail now. A unit that is under way answers it, if there is no tail."""
        tail = self._buffer.pad()
        under_way = [cut for cut in (self._thinking, *self._waiting) if cut is not None and not self._void(cut)]
        if tail is None and under_way:
            return ()
        self._cut(tail or self._buffer.silence())
        return self._think_and_wait(now_ms)

    def _ask(self, fence: Fence, now_ms: float) -> Sequence[ModelOutput]:
        """An answer is waited for: the newest unit decides, since it holds the end of the question."""
        if self._turn is not None:
            return ()  # it has just begun by itself, and the two are one
        if self._stopped:
            # The next unit is made to listen; that is no answer to the question, so it is not the question's unit.
            self._cut(self._buffer.silence())
        self._fence, self._asked = fence, True
        tail = self._buffer.pad()
        if tail is None and self._waiting and not (self._void(self._waiting[-1]) or self._waiting[-1].forced):
            newest = self._waiting.pop()
            self._waiting.append(msgspec.structs.replace(newest, fence=fence, asked=True))
        else:
            self._cut(tail or self._buffer.silence(), asked=True)
        return self._think_and_wait(now_ms)

    def _continue(self, now_ms: float) -> Sequence[ModelOutput]:
        view = SilenceView(
            speaking=self._turn is not None and not self._turn.last,
            asked=self._asked,
            behind=self._thinking is not None or bool(self._waiting),
            filled_ms=self._filled_ms,
        )
        next_step = at_deadline(view, self._options)
        if next_step is Continuation.STOP:
            return ()
        if next_step is Continuation.FILL:
            self._filled_ms += self._unit_ms
            self._cut(self._buffer.pad() or self._buffer.silence())
        return self._think_and_wait(now_ms)

    def _cut(self, pcm: bytes, *, asked: bool = False) -> None:
        self._serial += 1
        self._waiting.append(
            Cut(
                serial=self._serial,
                pcm=pcm,
                fence=self._fence,
                asked=asked,
                forced=self._stopped,
                forgets=self._forgets,
            )
        )
        self._stopped = self._forgets = False

    def _think_and_wait(self, now_ms: float) -> Sequence[ModelOutput]:
        return (*self._think(), WakeAt(key=UNIT, at_ms=now_ms + self._unit_ms))

    def _think(self) -> Sequence[ModelOutput]:
        """Give the thinker its next unit, unless it has one, or the answer that it has ended is still being voiced."""
        if self._thinking is not None or not self._waiting or (self._turn is not None and self._turn.last):
            return ()
        cut = self._thinking = self._waiting.popleft()
        self._taken_in += 1
        forced = cut.forced or self._taken_in <= self._options.forced_listen
        unit = Unit(
            number=self._taken_in,
            pcm=cut.pcm,
            mind=self._mind,
            orders=Orders(forced=forced, asked=cut.asked, forgets=cut.forgets),
            script=self._options,
        )
        request = StageRequest(
            stage=THINKER, request_id=f"{THINKER}-{cut.serial}", fence=cut.fence, lane=Lane.INPUT, payload=unit
        )
        return (Submit(request=request),)

    def _void(self, cut: Cut) -> bool:
        """Whether a unit belongs to what was given up: it is taken in, and nothing is decided on it."""
        return cut.serial <= self._void_to

    def _give_up(self) -> None:
        """The answer is over from outside: no unit cut so far decides anything, and the next one is made to listen.

        A question that waited for its answer is not to be answered any more.
        """
        self._void_to = self._serial
        self._stopped, self._forgets = True, self._forgets or self._asked
        self._asked, self._turn = False, None

    # -- what the thinker decided -------------------------------------------------------------------------------------

    def _understand(self, output: StageOutput) -> Sequence[ModelOutput]:
        cut = self._thinking
        assert cut is not None, "the thinker answers what it was given"
        decided: Sequence[ModelOutput] = ()
        if isinstance(output.payload, Thought):
            self._mind = output.payload.mind
            if not self._void(cut):
                decided = self._listen(cut) if output.payload.text is None else self._say(output.payload, cut)
        if not output.final:
            return decided
        self._thinking = None
        return (*decided, *self._think())

    def _listen(self, cut: Cut) -> Sequence[ModelOutput]:
        if self._turn is not None:
            self._turn.last = True
            return self._end_when_spoken(self._turn)
        self._asked = self._asked and not cut.asked
        return (Listen(fence=cut.fence),)

    def _say(self, thought: Thought, cut: Cut) -> Sequence[ModelOutput]:
        begun: list[ModelOutput] = []
        if self._turn is None:
            if not self._asked:
                self._fence = self._fence.next_turn()
                begun.append(BeginTurn(fence=self._fence))
            self._asked, self._turn = False, Turn(self._fence)
        turn, text = self._turn, thought.text or ""
        request = StageRequest(
            stage=VOICE,
            request_id=f"{VOICE}-{cut.serial}",
            fence=turn.fence,
            lane=Lane.OUTPUT,
            payload=Utterance(text=text, ms=self._unit_ms, chars_before=turn.chars, ms_before=turn.ms),
        )
        turn.voicing.add(request.request_id)
        turn.units, turn.chars, turn.ms = turn.units + 1, turn.chars + len(text), turn.ms + self._unit_ms
        turn.last = thought.last
        return (*begun, Submit(request=request))

    def _not_understood(self, failure: StageFailed) -> Sequence[ModelOutput]:
        """The unit is lost and the mind as it was: go on with the next, and tell who waited for this one."""
        cut, self._thinking = self._thinking, None
        self._taken_in -= 1
        failed: list[ModelOutput] = []
        if cut is not None and cut.asked and self._asked and not self._void(cut):
            self._asked = False
            failed.append(Failed(fence=cut.fence, error=failure.error))
        return (*failed, *self._think())

    # -- what the voice made ------------------------------------------------------------------------------------------

    def _speak(self, output: StageOutput) -> Sequence[ModelOutput]:
        turn = self._turn
        if turn is None or output.fence != turn.fence:
            return ()
        spoken: list[ModelOutput] = []
        if isinstance(output.payload, Piece):
            piece = output.payload
            spoken.append(Speak(fence=turn.fence, pcm=piece.pcm, text=piece.text, marks=piece.marks))
        if output.final:
            turn.voicing.discard(output.request_id)
            spoken.extend(self._end_when_spoken(turn))
        return spoken

    def _end_when_spoken(self, turn: Turn) -> Sequence[ModelOutput]:
        """The answer ends when its last unit has been voiced; the thinker goes on then. Usage is counted in units."""
        if not turn.last or turn.voicing:
            return ()
        self._turn = None
        usage = TokenUsage(input_tokens=self._mind.units, output_tokens=turn.units)
        return (EndTurn(fence=turn.fence, usage=usage), *self._think())

    def _not_spoken(self, failure: StageFailed) -> Sequence[ModelOutput]:
        if self._turn is None or failure.fence != self._turn.fence:
            return ()
        self._give_up()
        return (Failed(fence=failure.fence, error=failure.error), *self._think())
