"""A session runner in virtual time: it performs what the machine and the model ask for, with no task, thread or clock.

The half of :class:`~duplex_core.testing.driver.ConversationDriver` that stands for the server. It does what the server's own
runner does, through the same :class:`~duplex_core.machine.exchange.Exchange`; only time is different.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import pydantic

from duplex_core.audio import PCM_RATES_HZ, AudioEncoding, AudioFormat
from duplex_core.commands import Command
from duplex_core.config import SessionConfig
from duplex_core.detection import SpeechFrame
from duplex_core.errors import ErrorCode, refuse
from duplex_core.events import Event
from duplex_core.machine.exchange import Action, Exchange
from duplex_core.machine.io import (
    AbortOutput,
    Detect,
    EndOfTurnVerdict,
    JudgeEndOfTurn,
    MachineInput,
    ReleaseSlot,
    ResetDetector,
    SetTimer,
    SlotReleased,
    SpeechFrames,
    TimerFired,
)
from duplex_core.machine.session import SessionMachine
from duplex_core.model import Abort, Decision, ModelInput, ModelOutput, ModelSession, Speak, Submit, WakeAt
from duplex_core.spec import Checkpoint, ModelSpec, SessionContext
from duplex_core.stages import StageMetrics, StageReply, StageRequest
from duplex_core.testing.speech import LinearResampler, LoudnessDetector
from duplex_core.testing.stages import StageHost

MS_PER_PIECE = 10.0
"""How long a stage takes for each piece, unless told otherwise."""
MS_TO_JUDGE = 60.0
"""How long an end-of-turn detector takes, if there is one."""


class FrameDetector(Protocol):
    """A speech detector of one session: a frame is judged as soon as its audio is there."""

    def reset(self, start_ms: float) -> None:
        """Forget the audio kept; what follows begins at ``start_ms``."""

    def judge(self, pcm: bytes) -> tuple[SpeechFrame, ...]:
        """Verdicts on the frames that ``pcm``, at the model's input rate, completes."""


Charge = Callable[[StageRequest], float]
"""How many milliseconds of virtual time a stage takes for a request, all in all; asked after the work was done."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the model session heard and answered, and when."""

    at_ms: float
    event: ModelInput
    outputs: tuple[ModelOutput, ...]


class _Recorder:
    """Stands between the exchange and the model session and writes down what passes."""

    def __init__(self, model: ModelSession, told: list[Told]) -> None:
        self._model = model
        self._told = told

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        outputs = tuple(self._model.handle(event, now_ms))
        self._told.append(Told(at_ms=now_ms, event=event, outputs=outputs))
        return outputs


class VirtualRunner:
    """One session, its model and its stages, in virtual time."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        deploy: pydantic.BaseModel | None = None,
        config: SessionConfig | None = None,
        checkpoint: Checkpoint | None = None,
        host: StageHost | None = None,
        session_id: str = "sess_1",
        ms_per_piece: float = MS_PER_PIECE,
        charge: Charge | None = None,
        detector: FrameDetector | None = None,
        ms_to_hear: float = 0.0,
    ) -> None:
        """Open a session.

        Args:
            spec: the model package.
            deploy: its deploy settings; the defaults when left out.
            config: the session's first configuration; the package's own when left out. Formats are set to the model's
                rates, so that audio passes through unchanged wherever the wire has that rate.
            checkpoint: what the server would have been pointed at.
            host: running stages to share with other drivers; own ones when left out.
            session_id: the id of the session; two drivers that share a host need different ones.
            ms_per_piece: virtual time that a stage takes for each piece of its answer.
            charge: the virtual time that a stage takes for a whole request, in place of ``ms_per_piece``; its replies then come
                together when that is over.
            detector: hears speech, at the model's input rate; one that goes by loudness when left out.
            ms_to_hear: virtual time from a frame's last sample to its verdict.
        """
        self.spec = spec
        self.deploy = deploy if deploy is not None else spec.deploy_model()
        self.checkpoint = checkpoint or Checkpoint(name=spec.id)
        self.capabilities = spec.capabilities(self.deploy)
        self.host = host or StageHost(spec.stage_plan(self.checkpoint, self.deploy))
        self.host.release(session_id)  # a driver of this id may have been left without being closed
        self.events: list[Event] = []
        self.told: list[Told] = []
        self.now_ms = 0.0
        self.released = False
        self.watch: Callable[[Event], None] | None = None
        self.heed: Callable[[SpeechFrames | StageReply], None] | None = None
        self.end_of_turn: Callable[[bytes], float] | None = None
        self._own_host = host is None
        self._session_id = session_id
        self._charge = charge
        self._ms_per_piece = ms_per_piece
        self._detector = detector or LoudnessDetector(self.capabilities.input_rate_hz)
        self._ms_to_hear = ms_to_hear
        self._resamplers: dict[int, LinearResampler] = {}
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._busy_until: dict[str, float] = {}
        self._given: dict[tuple[str, str], tuple[float, float | None]] = {}
        self._inbox: list[Command] = []
        self._inside = False
        begun = self._first_config(config or spec.session_config(self.deploy))
        machine = SessionMachine(
            session_id=session_id,
            config=begun,
            capabilities=self.capabilities,
            check_options=checker_of(spec.options_model),
            attachment_generation=1,
        )
        context = SessionContext(
            session_id=session_id, config=begun, deploy=self.deploy, checkpoint=self.checkpoint, chat=False
        )
        recorder = _Recorder(spec.create_session(context), self.told)
        self.exchange = Exchange(machine, recorder, self._perform, adapt=self._adapt, known=self._known)
        self._run(lambda: self.exchange.open(self.now_ms))

    def send(self, *commands: Command) -> None:
        """The client sends commands. Audio is already 16-bit PCM at the model's input rate."""
        self._inbox.extend(commands)
        if not self._inside:
            self._read_inbox()

    def give(self, given: MachineInput) -> None:
        """Give the machine any input, for instance a request to close."""
        self._run(lambda: self.exchange.take(given, self.now_ms))

    def reply(self, reply: StageReply) -> None:
        """Give the model a stage's reply that no worker made, for instance a failure."""
        self._run(lambda: self.exchange.reply(reply, self.now_ms))

    def step(self) -> None:
        """Do the next thing that is due, whenever that is: a stage's reply, a timer, a verdict of the detector.

        Raises:
            IndexError: nothing is left that could happen.
        """
        at_ms, _, action = heapq.heappop(self._agenda)
        self.now_ms = max(self.now_ms, at_ms)
        self._run(action)

    def _first_config(self, config: SessionConfig) -> SessionConfig:
        can = self.capabilities
        return msgspec.structs.replace(
            config, input_format=_wire_pcm(can.input_rate_hz), output_format=_wire_pcm(can.output_rate_hz)
        )

    def _run(self, action: Callable[[], None]) -> None:
        assert not self._inside, (
            "the driver is already at work: send commands from `watch`, everything else from outside"
        )
        self._inside = True
        try:
            action()
        finally:
            self._inside = False
        self._read_inbox()

    def _read_inbox(self) -> None:
        while self._inbox:
            command = self._inbox.pop(0)
            self._run(lambda given=command: self.exchange.take(given, self.now_ms))  # type: ignore[misc]

    def _at(self, at_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (max(at_ms, self.now_ms), next(self._order), action))

    def _perform(self, action: Action) -> None:
        match action:
            case SetTimer(key=key, at_ms=at_ms):
                if at_ms is not None:
                    self._at(at_ms, lambda: self.exchange.take(TimerFired(key=key), self.now_ms))
            case WakeAt(key=key, at_ms=at_ms):
                if at_ms is not None:
                    self._at(at_ms, lambda: self.exchange.wake(key, self.now_ms))
            case Detect():
                self._detect(action)
            case ResetDetector(start_ms=start_ms):
                self._detector.reset(start_ms)
            case JudgeEndOfTurn():
                self._judge(action)
            case ReleaseSlot():
                self._at(self.now_ms, self._release)
            case Submit(request=request):
                self._start(request)
            case Abort() | AbortOutput():
                # The exchange drops the replies; what is left is that the stages are free again.
                working = {request.stage for request in self.exchange.open_requests}
                self._busy_until = {stage: ms for stage, ms in self._busy_until.items() if stage in working}
            case _:
                self.events.append(action)
                if self.watch is not None:
                    self.watch(action)

    def _detect(self, asked: Detect) -> None:
        frames = self._detector.judge(asked.pcm)
        if frames:
            verdicts = SpeechFrames(frames=frames, generation=asked.generation)
            self._at(self.now_ms + self._ms_to_hear, lambda: self._hear(verdicts))

    def _hear(self, verdicts: SpeechFrames) -> None:
        if self.heed is not None:
            self.heed(verdicts)
        self.exchange.take(verdicts, self.now_ms)

    def _judge(self, asked: JudgeEndOfTurn) -> None:
        if self.end_of_turn is not None:
            verdict = EndOfTurnVerdict(
                item_id=asked.item_id, serial=asked.serial, probability=self.end_of_turn(asked.pcm)
            )
            self._at(self.now_ms + MS_TO_JUDGE, lambda: self.exchange.take(verdict, self.now_ms))

    def _release(self) -> None:
        self.released = True
        self.host.release(self._session_id)
        self.exchange.take(SlotReleased(), self.now_ms)

    def _start(self, request: StageRequest) -> None:
        """Queue a request behind the earlier ones of this session at its stage."""
        starts = max(self.now_ms, self._busy_until.get(request.stage, 0.0))
        replies = list(self.host.work(request))
        due_ms = [starts + ms for ms in self._times_of(request, len(replies))]
        first_ms = due_ms[0] if len(replies) > 1 else None
        self._given[request.stage, request.request_id] = (self.now_ms, first_ms)
        replies[-1] = msgspec.structs.replace(replies[-1], metrics=self._spent(request, due_ms[-1], whole=True))
        for reply, at_ms in zip(replies, due_ms, strict=True):
            self._at(at_ms, lambda given=reply: self._answer(given))  # type: ignore[misc]
            self._busy_until[request.stage] = at_ms

    def _times_of(self, request: StageRequest, replies: int) -> list[float]:
        """When the replies to a request come, from its beginning on."""
        if self._charge is not None:
            return [self._charge(request)] * replies
        return [self._ms_per_piece * min(number, max(1, replies - 1)) for number in range(1, replies + 1)]

    def _answer(self, reply: StageReply) -> None:
        if self.heed is not None:
            self.heed(reply)
        self.exchange.reply(reply, self.now_ms)

    def _known(self, request: StageRequest) -> tuple[StageMetrics, ...]:
        return self._spent(request, self.now_ms, whole=False)

    def _spent(self, request: StageRequest, now_ms: float, *, whole: bool) -> tuple[StageMetrics, ...]:
        """What a request has taken at ``now_ms``, in virtual time."""
        begun_ms, first_ms = self._given[request.stage, request.request_id]
        told = first_ms is not None and first_ms <= now_ms
        return (
            StageMetrics(
                stage=request.stage,
                first_ms=first_ms - begun_ms if told and first_ms is not None else None,
                total_ms=now_ms - begun_ms,
                whole=whole,
            ),
        )

    def _adapt(self, decision: Decision) -> Sequence[Decision]:
        if not isinstance(decision, Speak) or not decision.pcm:
            return (decision,)
        model_hz = self.capabilities.output_rate_hz
        wire_hz = _wire_pcm(model_hz).rate_hz
        resampler = self._resamplers.setdefault(decision.fence.turn, LinearResampler(model_hz, wire_hz))
        return (msgspec.structs.replace(decision, pcm=resampler.convert(decision.pcm)),)


def checker_of(model: type[pydantic.BaseModel]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What checks a session's options, as the server has it: refuses by name, else gives the options back."""

    def check(options: dict[str, Any]) -> dict[str, Any]:
        try:
            model.model_validate(options)
        except pydantic.ValidationError as invalid:
            first = invalid.errors()[0]
            path = ".".join(str(part) for part in ("session", "options", *first["loc"]))
            raise refuse(ErrorCode.INVALID_VALUE, f"{path}: {first['msg']}", param=path) from None
        return options

    return check


def _wire_pcm(rate_hz: int) -> AudioFormat:
    """PCM at the model's rate where the wire has it, else at the next rate above."""
    rate = next((each for each in PCM_RATES_HZ if each >= rate_hz), PCM_RATES_HZ[-1])
    return AudioFormat(encoding=AudioEncoding.PCM16, rate_hz=rate)
