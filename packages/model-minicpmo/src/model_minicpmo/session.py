"""One conversation with MiniCPM-o: the model's side of a session, sans-I/O.

Made by the plugin for each session. Cuts what it hears into units, sends them through the stages one decision at a time, and
tells the engine what was decided and said. It decides nothing itself: the rules are in `rules/`, the model's decisions come from
the thinker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from duplex_core import model as m
from duplex_core.audio import pcm16_ms
from duplex_core.errors import ErrorCode, ErrorInfo, ErrorType, error
from duplex_core.fence import Fence
from duplex_core.ledger import TextMark
from duplex_core.spec import SessionContext
from duplex_core.stages import Lane, StageFailed, StageOutput, StageRequest
from duplex_core.tensors import Tensor
from model_minicpmo.given import Given, GivenItems, own_instructions
from model_minicpmo.line import Cut, UnitLine
from model_minicpmo.options import SessionOptions, for_stages
from model_minicpmo.payloads import SENSES, VOICE, Decided, Open, Orders, Sound, Unit, Voice
from model_minicpmo.rules.limit import tokens_left
from model_minicpmo.rules.silence import Continuation, SilenceView, at_deadline
from model_minicpmo.rules.turn import Interruption, TurnStep, TurnView, UnitView, at_decision, for_unit
from model_minicpmo.rules.units import UNIT_MS, silence
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.sound import file_bytes, float32

OUTPUT_HZ = 24000
UNIT = "unit"
"""Key of the timer that is due when a unit should have come and has not."""
OPEN_ID = "open"
VOICE_ID = "voice"
MOST_WAITING = 90
"""Units of the microphone's that may wait to be decided: seconds of sound that came faster than it was taken in."""
MOST_GIVEN = 300
"""Units that may wait when a question is asked, with those that its recordings and pictures take."""


class Turn:
    """The answer that is being spoken: what was said, which sound is still to come, and whether more words will follow."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence
        self.chars = 0
        self.ms = 0.0
        self.tokens = 0
        self.units = 0
        self.sounding: dict[str, int] = {}
        self.last = False
        self.reason = m.StopReason.DONE


class MiniCPMOSession:
    """See the module's docstring."""

    def __init__(self, context: SessionContext) -> None:
        """Begin a conversation in which nothing was heard."""
        self._options = SessionOptions.model_validate(context.config.options)
        digest = hashlib.sha256(context.session_id.encode()).digest()
        self._seed = int.from_bytes(digest[:8], "little") >> 1
        self._fence = Fence(session_id=context.session_id)
        assert isinstance(context.deploy, MiniCPMOSettings)
        self._most_units = context.deploy.turn_units
        self._opened = self._full = False
        self._line = UnitLine()
        self._taken_in = 0
        self._asked = False
        self._config = self._answers_config = context.config
        self._given = GivenItems()
        self._turn: Turn | None = None
        self._filled_ms = 0.0

    def handle(self, event: m.ModelInput, now_ms: float) -> Sequence[m.ModelOutput]:
        """Take one input; see :class:`~duplex_core.model.ModelSession`."""
        match event:
            case m.Configured():
                self._fence, self._config = event.fence, event.config
                if not self._opened:
                    self._options = SessionOptions.model_validate(event.config.options)
            case m.AudioArrived():
                return self._hear(event.pcm, now_ms)
            case m.ImageArrived():
                self._line.buffer.see(event.data, most=self._options.pictures_per_unit)
            case m.InputDropped():
                self._line.withdraw()
            case m.InputCommitted(item_id=item_id):
                self._given.heard(item_id)
                return self._flush(now_ms)
            case m.Respond():
                return self._ask(event, now_ms)
            case m.Deadline():
                return self._continue(now_ms)
            case m.Interrupted():
                self._fence = event.fence
                self._give_up()
            case StageOutput():
                return self._stage_output(event)
            case StageFailed():
                return self._stage_failed(event)
            case _:
                pass  # all sound was heard as it came: what a detector or a commit makes of it is nothing new
        return ()

    # -- the opening --------------------------------------------------------------------------------------------------

    def _open(self) -> Sequence[m.ModelOutput]:
        """At the first need, give the prompt to the thinker and the voice to the voice; units are in line behind them."""
        if self._opened:
            return ()
        self._opened = True
        chosen = self._options
        reference = file_bytes(chosen.reference_audio)
        prompt = self._config.instructions if chosen.system_prompt is None else chosen.system_prompt
        stages = for_stages(chosen, seed=self._seed)
        return (
            submit(SENSES, OPEN_ID, self._fence, Open(prompt=prompt, options=stages, reference=reference)),
            submit(VOICE, VOICE_ID, self._fence, Voice(reference=reference, seed=stages.seed)),
        )

    # -- what is heard ------------------------------------------------------------------------------------------------

    def _hear(self, pcm: bytes, now_ms: float) -> Sequence[m.ModelOutput]:
        self._filled_ms = 0.0
        was_full = self._full
        for unit in self._line.buffer.take(pcm):
            self._full = self._line.waiting >= MOST_WAITING
            if not self._full:
                self._line.cut(unit, self._fence)
        told = self._think_and_wait(now_ms)
        if not self._full or was_full:
            return told
        message = (
            f"{MOST_WAITING} s of sound wait to be heard; what comes beyond them is lost. Send it as fast as it sounds"
        )
        return (m.InputRefused(error=error(ErrorCode.RESOURCE_EXHAUSTED, message, param="audio")), *told)

    def _flush(self, now_ms: float) -> Sequence[m.ModelOutput]:
        """Sound was committed: use its tail now. A unit that is under way answers it, if there is no tail."""
        tail = self._line.buffer.pad()
        if tail is None and self._line.hopeful:
            return ()
        self._line.cut(tail or silence(), self._fence)
        return self._think_and_wait(now_ms)

    def _ask(self, respond: m.Respond, now_ms: float) -> Sequence[m.ModelOutput]:
        """An answer is waited for: the newest unit decides, since it holds the end of the question, spoken or written."""
        if self._turn is not None:
            return ()  # it has just begun by itself, and the two are one
        if self._line.interrupted:
            # The next unit is made to listen; that is no answer to the question, so it is not the question's unit.
            self._line.cut(silence(), self._fence, seen=False)
        given = self._given.take(respond.history)
        own = own_instructions(respond.config.instructions, self._config.instructions)
        text = "\n".join(filter(None, (own, given.text)))
        if self._line.waiting + len(given.units(self._options.pictures_per_unit)) > MOST_GIVEN:
            self._fence = respond.fence
            message = f"what is asked about takes more than {MOST_GIVEN} s to take in; give shorter recordings"
            return (m.Failed(fence=respond.fence, error=error(ErrorCode.INVALID_VALUE, message)),)
        sound = self._take_in(given) or self._line.buffer.pad()
        self._fence, self._asked = respond.fence, True
        self._answers_config = respond.config
        if sound is not None or text or given.pictures or not self._line.ask_newest(respond.fence):
            said = bool(text or given.pictures or given.seconds)
            self._line.cut(sound or silence(), respond.fence, asked=True, given=said, text=text, written=given.text)
        return self._think_and_wait(now_ms)

    def _take_in(self, given: Given) -> bytes:
        """Put in line what was given and does not fit into the unit that answers; that unit's own sound, if there is any."""
        most = self._options.pictures_per_unit
        *before, last = given.units(most)
        tail = self._line.buffer.pad() if before or last.pcm else None
        if tail is not None:
            self._line.cut(tail, self._fence, seen=False)
        for unit in (*before, last):
            for picture in unit.pictures:
                self._line.buffer.see(picture, most=most)
            if unit is not last:
                self._line.cut(unit.pcm or silence(), self._fence, listened=True, given=True, seen=bool(unit.pictures))
        return last.pcm

    def _continue(self, now_ms: float) -> Sequence[m.ModelOutput]:
        view = SilenceView(
            speaking=self._turn is not None and not self._turn.last,
            asked=self._asked,
            behind=self._line.behind,
            filled_ms=self._filled_ms,
            patience_ms=self._options.patience_ms,
        )
        match at_deadline(view):
            case Continuation.STOP:
                return ()
            case Continuation.FILL:
                self._filled_ms += UNIT_MS
                self._line.cut(self._line.buffer.pad() or silence(), self._fence)
            case Continuation.WAIT:
                pass
        return self._think_and_wait(now_ms)

    def _think_and_wait(self, now_ms: float) -> Sequence[m.ModelOutput]:
        return (*self._open(), *self._think(), m.WakeAt(key=UNIT, at_ms=now_ms + UNIT_MS))

    def _think(self) -> Sequence[m.ModelOutput]:
        """Give the stages the next unit, unless one is being decided, or the answer that has ended is still being voiced."""
        if self._turn is not None and self._turn.last:
            return ()
        cut = self._line.next()
        if cut is None:
            return ()
        order = for_unit(
            UnitView(
                taken_in=self._taken_in,
                forced_listen=self._options.forced_listen,
                interrupted=cut.interrupted,
                asked=cut.asked and self._asked and not self._line.is_void(cut),
                listened=cut.listened,
                interruption=Interruption(self._options.interruption),
            )
        )
        if order.dropped:
            self._line.deciding = None
            return (m.Listen(fence=cut.fence), *self._think())
        own = self._turn is None and not self._asked
        config = self._config if own else self._answers_config
        said, units = (0, 0) if self._turn is None else (self._turn.tokens, self._turn.units)
        orders = Orders(
            number=self._taken_in,
            forced=order.forced,
            ends_turn=order.ends_turn,
            text=cut.text,
            asked=order.asked,
            waited_for=cut.given,
            temperature=config.temperature,
            most_tokens=tokens_left(config.max_output_tokens, said, units=units, most_units=self._most_units),
        )
        self._taken_in += 1
        samples = Tensor(dtype="float32", shape=(len(cut.pcm) // 2,), data=float32(cut.pcm))
        unit = Unit(orders=orders, samples=samples, pictures=cut.pictures, max_slices=self._options.max_slices)
        return (submit(SENSES, f"unit-{cut.serial}", cut.fence, unit),)

    def _give_up(self) -> None:
        """The answer is over from outside: no unit cut so far means anything, and the next one closes the turn, as a rule."""
        self._line.void()
        self._asked, self._turn = False, None

    # -- what came of a unit ------------------------------------------------------------------------------------------

    def _stage_output(self, output: StageOutput) -> Sequence[m.ModelOutput]:
        told: list[m.ModelOutput] = []
        match output.payload:
            case Decided() as decided:
                told += self._decided(decided, output.request_id)
            case Sound(pcm=pcm):
                told += self._sounds(output.request_id, pcm)
            case _:
                pass
        if output.final:
            told += self._over(output.request_id)
        return told

    def _decided(self, decided: Decided, request_id: str) -> Sequence[m.ModelOutput]:
        cut, self._line.deciding = self._line.deciding, None
        assert cut is not None, "the stages answer what they were given"
        view = TurnView(void=self._line.is_void(cut), open=self._turn is not None, listens=decided.listens)
        told: Sequence[m.ModelOutput]
        match at_decision(view):
            case TurnStep.NONE:
                told = ()
            case TurnStep.LISTEN:
                told = self._listen(cut)
            case TurnStep.BEGIN:
                told = (*self._begin(), *self._say(decided, request_id))
            case TurnStep.GO_ON:
                told = self._say(decided, request_id)
        # Pictures that came with a question are an item's; all others are a camera's.
        param = None if cut.asked or cut.listened else "video_frames"
        refused = (m.InputRefused(error=msgspec.structs.replace(fault, param=param)) for fault in decided.faults)
        return (*refused, *told, *self._think())

    def _listen(self, cut: Cut) -> Sequence[m.ModelOutput]:
        self._asked = self._asked and not cut.asked
        return (m.Listen(fence=cut.fence),)

    def _begin(self) -> Sequence[m.ModelOutput]:
        begun: list[m.ModelOutput] = []
        if not self._asked:
            self._answers_config = self._config
            self._fence = self._fence.next_turn()
            begun.append(m.BeginTurn(fence=self._fence))
        self._asked, self._turn = False, Turn(self._fence)
        return begun

    def _say(self, decided: Decided, request_id: str) -> Sequence[m.ModelOutput]:
        """The words of a unit; its sound follows, and ends where these words end."""
        turn = self._turn
        assert turn is not None
        turn.chars += len(decided.text)
        turn.tokens += decided.tokens
        turn.units += 1
        turn.sounding[request_id] = turn.chars
        turn.last = decided.ends_turn
        turn.reason = m.StopReason.MAX_TOKENS if decided.cut else m.StopReason.DONE
        return (m.Speak(fence=turn.fence, text=decided.text),) if decided.text else ()

    def _sounds(self, request_id: str, pcm: bytes) -> Sequence[m.ModelOutput]:
        turn = self._turn
        if turn is None or request_id not in turn.sounding or not pcm:
            return ()
        turn.ms += pcm16_ms(len(pcm), OUTPUT_HZ)
        mark = TextMark(chars=turn.sounding[request_id], ms=turn.ms)
        return (m.Speak(fence=turn.fence, pcm=pcm, marks=(mark,)),)

    def _over(self, request_id: str) -> Sequence[m.ModelOutput]:
        """All of a unit has come. The answer ends when its last unit has sounded; the model goes on hearing then."""
        turn = self._turn
        if turn is None or turn.sounding.pop(request_id, None) is None or turn.sounding or not turn.last:
            return ()
        self._turn = None
        usage = m.TokenUsage(input_tokens=self._taken_in, output_tokens=turn.tokens)
        return (m.EndTurn(fence=turn.fence, reason=turn.reason, usage=usage), *self._think())

    def _stage_failed(self, failure: StageFailed) -> Sequence[m.ModelOutput]:
        """A unit, or the opening, was not to be had: without an opening, or with a full context, there is no going on."""
        if failure.request_id in (OPEN_ID, VOICE_ID) or failure.error.code is ErrorCode.CONTEXT_FULL:
            return (m.Fatal(error=failure.error),)
        cut, turn = self._line.deciding, self._turn
        told: list[m.ModelOutput] = []
        unit = cut if cut is not None and failure.request_id == f"unit-{cut.serial}" else None
        if unit is not None:
            self._line.failed()
            if unit.given and not _at_fault(failure.error):
                self._given.owe(unit.written, unit.pictures)
        if turn is not None and (unit is not None or failure.request_id in turn.sounding):
            self._give_up()
            told.append(m.Failed(fence=turn.fence, error=failure.error))
        elif unit is not None and unit.for_answer and self._asked and not self._line.is_void(unit):
            self._asked = False
            told.append(m.Failed(fence=self._fence, error=failure.error))
        return (*told, *self._think())


def submit(stage: str, request_id: str, fence: Fence, payload: object) -> m.Submit:
    """Give work of the input's lane: the model goes on taking in what it hears, whatever becomes of an answer."""
    return m.Submit(
        request=StageRequest(stage=stage, request_id=request_id, fence=fence, lane=Lane.INPUT, payload=payload)
    )


def _at_fault(info: ErrorInfo) -> bool:
    """Whether what was given is itself what cannot be taken in, so that it is not worth another attempt."""
    return info.type is ErrorType.INVALID_REQUEST
