"""The session runner: one session's task, mailbox and everything that it holds.

Owns one session: its machine, its model session, its timers, its stage work, its ear and its outbox. Started by the session
manager; fed by serving or an in-process client (commands), the orchestrator (stage replies), the detector and the clock.
It performs what the machine and the model ask for and decides nothing. It is also the session's supervisor: an unexpected
exception ends this session with ``internal_error``, frees what it held, and touches no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

import msgspec

from duplex_core.authentication import Principal
from duplex_core.commands import (
    ClientCommand,
    Command,
    InputAudioBufferAppend,
    InputAudioBufferClear,
    InputAudioBufferCommit,
    InputCancel,
    PlaybackAck,
    SessionClose,
    SessionEventAck,
    SessionHeartbeat,
    SessionUpdate,
)
from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error
from duplex_core.events import (
    CloseReason,
    ErrorEvent,
    Event,
    OverlapDecision,
    ResponseDone,
    ServerEvent,
    SessionClosed,
)
from duplex_core.machine.exchange import Action, Exchange
from duplex_core.machine.io import (
    AbortOutput,
    CloseRequested,
    Detect,
    EndOfTurnVerdict,
    JudgeEndOfTurn,
    ReleaseSlot,
    ResetDetector,
    SetTimer,
    SlotReleased,
    SpeechFrames,
    TimerFired,
)
from duplex_core.machine.session import SessionMachine, internal_error
from duplex_core.machine.table import Hearing as UserLane
from duplex_core.machine.table import Life
from duplex_core.model import Abort, Deadline, Decision, EndTurn, ModelSession, Speak, Submit, ToolCall, WakeAt
from duplex_core.observers import ObservedSession
from duplex_core.patch import SessionPatch
from duplex_core.stages import Lane, StageFailed, StageLost, StageOutput, StageReply
from duplex_server.detectors import Detectors, UnjudgedAudio
from duplex_server.engine.attachment import Attachments
from duplex_server.engine.hearing import Hearing
from duplex_server.engine.holdings import Due, Holdings
from duplex_server.engine.journal import Journal
from duplex_server.engine.lease import Lifetime
from duplex_server.engine.listening import Listening, outcome_of
from duplex_server.engine.mailbox import Mailbox
from duplex_server.engine.metrics import EngineMetrics
from duplex_server.engine.outbox import Outbox, weight
from duplex_server.engine.reaper import LeaseOver
from duplex_server.engine.speaking import Speaking
from duplex_server.engine.stages.host import StageHost
from duplex_server.engine.tenure import Tenure
from duplex_server.engine.ticks import Ticks
from duplex_server.engine.timers import Rung
from duplex_server.engine.unjudged import Unjudged, told_of
from duplex_server.engine.watching import Watch
from duplex_server.engine.weakly import weakly, weakly_told
from duplex_server.logs import SESSION

log = logging.getLogger(__name__)

MAX_COMMANDS = 1024
"""Most commands of one client that wait."""
MAX_COMMAND_BYTES = 48 * 1024 * 1024
"""Most bytes of audio and pictures in commands that wait: three of the largest events."""


class _Opening(msgspec.Struct, frozen=True):
    """First entry: the session begins."""


class _Rejected(msgspec.Struct, frozen=True):
    """In the place of a command: what the client sent was none, and why."""

    info: ErrorInfo


class Draining(msgspec.Struct, frozen=True):
    """The server will stop: end as soon as no answer is being made."""


_Told = StageReply | StageLost | SpeechFrames | EndOfTurnVerdict | CloseRequested | Draining | LeaseOver
Own = _Told | Rung[Due]
"""What the engine itself puts into a mailbox."""
_Seldom = _Told | SlotReleased | _Opening | _Rejected
Entry = Command | Own | _Seldom

_SPOKEN = (Speak, ToolCall, EndTurn)
_OFTEN = (InputAudioBufferAppend, Rung, SpeechFrames, PlaybackAck, SessionHeartbeat, SessionEventAck)
"""What comes many times a second, each for a little work, is taken at once if it can be."""
_COUNTED = (ResponseDone, OverlapDecision, SessionClosed)
_ENDS_INPUT = (InputAudioBufferCommit, InputAudioBufferClear, InputCancel)


class SessionRunner:
    """One session from admission to ``session.closed``."""

    def __init__(
        self,
        *,
        session_id: str,
        machine: SessionMachine,
        model: ModelSession,
        input_rate_hz: int,
        output_rate_hz: int,
        stages: StageHost,
        ticks: Ticks,
        detectors: Detectors,
        watch: Watch,
        metrics: EngineMetrics,
        free_slot: Callable[[], None],
        own_name: Callable[[SessionPatch], SessionPatch],
        lifetime: Lifetime,
        on_lease: Callable[[float], None],
        principal: Principal | None = None,
    ) -> None:
        """Join the parts of a session.

        Args:
            session_id: its id.
            machine: its rules.
            model: the model's side.
            input_rate_hz: at which the model hears.
            output_rate_hz: at which it speaks.
            stages: where its work is done.
            ticks: rings its timers.
            detectors: who hears speech, and the end of turns.
            watch: who looks on.
            metrics: what is counted.
            free_slot: gives the slot back; may be called more than once.
            own_name: puts the model's own name into a patch that has another of its names.
            lifetime: how long the session, and what it told, are kept.
            on_lease: is told when the lease ends, in seconds of the loop's clock, each time that this may be sooner than before.
            principal: who has opened the session, for those who watch; ``None`` where nobody was asked.
        """
        self.session_id = session_id
        self._principal = principal
        self._loop = asyncio.get_running_loop()
        self._machine = machine
        self._speaking = Speaking(output_rate_hz)
        self._hearing = Hearing(input_rate_hz)
        # No part of the session holds the session: once it has ended its memory is free at once.
        post = weakly_told(self.post)
        listening = Listening(
            detectors, session_id, input_rate_hz, on_verdict=post, on_unjudged=weakly_told(self._unjudged)
        )
        self._holdings = Holdings(stages=stages, ticks=ticks, listening=listening, ring=post, free_slot=free_slot)
        self._exchange = Exchange(
            machine,
            model,
            weakly_told(self._perform),
            adapt=partial(_speak, machine, self._speaking),
            known=self._holdings.known,
        )
        self._own_name = own_name
        self._watch = watch
        self._metrics = metrics
        self.mailbox: Mailbox[Entry] = Mailbox(max_entries=MAX_COMMANDS, max_bytes=MAX_COMMAND_BYTES)
        """What waits for the session's turn. Others look at it, and wait for room; what goes in goes through the methods."""
        journal = Journal(max_events=lifetime.journal_events, max_bytes=lifetime.journal_bytes)
        self.outbox = Outbox(journal, on_slow=weakly(self._slow))
        self.tenure = Tenure(
            Attachments(session_id, self.outbox, machine.attach),
            terms=lifetime,
            metrics=metrics,
            now=self._loop.time,
            on_lease=on_lease,
        )
        self._missed = Unjudged()
        self._draining = False
        self._fault: Exception | None = None
        self.ended = asyncio.Event()

    # -- what others say to the session -------------------------------------------------------------------------------

    def offer(self, command: Command) -> bool:
        """Take a client's command if there is room for it; never waits. Whether it was taken.

        Raises:
            DuplexError: the session has ended.
        """
        if self._holdings.released:
            raise DuplexError(error(ErrorCode.SESSION_CLOSED, f"session {self.session_id} has ended"))
        self.tenure.heard()
        often = isinstance(command, _OFTEN)
        taken = (often and self.mailbox.hand(command)) or self.mailbox.offer(command, _size(command))
        if taken and isinstance(command, SessionClose):
            self.tenure.closing = True
        return taken

    def post(self, entry: Own) -> None:
        """Take something of the engine's own: a stage's reply, a verdict, a timer, the wish to end. Never refused."""
        if not (isinstance(entry, _OFTEN) and self.mailbox.hand(entry)) and not self.ended.is_set():
            self.mailbox.put(entry)

    def reject(self, info: ErrorInfo) -> None:
        """Tell the client of an error that kept something from becoming a command, after all that came before it."""
        if not self.ended.is_set():
            self.mailbox.note(_Rejected(info), weight(info))

    def close(self, reason: CloseReason, info: ErrorInfo | None = None) -> None:
        """Ask the session to end. Idempotent; :attr:`ended` tells when it has."""
        self.tenure.closing = True
        self.post(CloseRequested(reason=reason, error=info))

    # -- the task -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the session to its end. Cancelling it frees everything and tells the client ``session.closed``."""
        SESSION.set(self.session_id)
        try:
            if not self._supervise(_Opening()):
                await self.mailbox.serve(self._supervise)
        except asyncio.CancelledError:
            self._take(CloseRequested(reason=CloseReason.SHUTDOWN))
            raise
        finally:
            self.finish()

    def _supervise(self, entry: Entry) -> bool:
        """Take an entry; whether it was the last. The one place where an unexpected exception of this session ends."""
        try:
            self._take(entry)
        except Exception as exc:  # the session supervisor
            log.exception("session %s failed and ends", self.session_id)
            if self._fault is not None and self._holdings.released:
                return True
            return self._supervise(self._after_fault(exc))
        return self._machine.closed

    def _after_fault(self, exc: Exception) -> Entry:
        """How the session goes on to its end after ``exc``: in good order once, by force after that."""
        again = self._fault is not None
        self._fault = exc
        if again or self._holdings.released:
            self._holdings.release()
            return SlotReleased()
        return CloseRequested(reason=CloseReason.ERROR, error=internal_error("the session failed"))

    def _take(self, entry: Entry) -> None:
        now_ms = self._loop.time() * 1000.0
        if isinstance(entry, ClientCommand):
            self._command(entry, now_ms)
        elif isinstance(entry, Rung):
            self._rung(entry, now_ms)
        else:
            self._take_own(entry, now_ms)
        self._follow_up(now_ms)

    def _rung(self, rung: Rung[Due], now_ms: float) -> None:
        due, due_ms = rung.due, rung.time_ms(now_ms)
        if isinstance(due, Deadline):
            self._exchange.wake(due.key, due_ms)
        else:
            self._exchange.take(due, due_ms)

    def _take_own(self, entry: _Seldom, now_ms: float) -> None:
        match entry:
            case SpeechFrames():
                self._exchange.take(entry, now_ms)
            case _Opening():
                config = self._machine.config
                self._watch.opened(
                    ObservedSession(session_id=self.session_id, config=config, principal=self._principal)
                )
                self._exchange.open(now_ms)
            case _Rejected(info=info):
                self._send(ErrorEvent(error=info))
            case Draining():
                self._draining = True
            case LeaseOver():
                self._judge_lease(now_ms)
            case StageOutput() | StageFailed():
                self._holdings.settle(entry)
                self._exchange.reply(entry, now_ms)
            case StageLost(error=info):
                self._exchange.take(CloseRequested(reason=CloseReason.ERROR, error=info), now_ms)
            case EndOfTurnVerdict():
                lasts = self._machine.lanes.hearing is UserLane.PAUSED
                self._metrics.end_of_turn.labels(outcome=outcome_of(entry, lasts=lasts)).inc()
                self._exchange.take(entry, now_ms)
            case CloseRequested() | SlotReleased():
                self._exchange.take(entry, now_ms)
            case _:
                assert_never(entry)

    def _follow_up(self, now_ms: float) -> None:
        """What follows from the state that the session is in now, whatever has brought it there."""
        if self._draining and self._machine.response_config is None and not self._holdings.released:
            info = error(ErrorCode.SHUTDOWN, "the server stops; connect again later")
            self._exchange.take(CloseRequested(reason=CloseReason.SHUTDOWN, error=info), now_ms)
        if self._holdings.released and not self._machine.closed:
            self._exchange.take(SlotReleased(), now_ms)

    def _judge_lease(self, now_ms: float) -> None:
        """End the session if its lease is over still: the client may have come back since the reaper looked."""
        tenure = self.tenure
        tenure.lapsing = False
        why = tenure.lapsed()
        if why is None:
            tenure.begin_lease()
            return
        tenure.closing = True
        self._exchange.take(CloseRequested(reason=CloseReason.EXPIRED, detail=why.value), now_ms)

    def _command(self, command: Command, now_ms: float) -> None:
        try:
            if isinstance(command, SessionEventAck):
                self.outbox.journal.acknowledge(command.server_event_seq)
            heard = self._hearing.convert(command, self._machine.config.input_format)
        except DuplexError as exc:
            self._send(ErrorEvent(error=msgspec.structs.replace(exc.info, event_id=command.event_id)))
            return
        if isinstance(heard, InputAudioBufferAppend):
            if heard.audio or heard.video_frames:  # else all of it waits in the resampler for what comes next
                self._exchange.take(heard, now_ms)
            return
        if isinstance(heard, SessionUpdate):
            heard = msgspec.structs.replace(heard, session=self._own_name(heard.session))
        if isinstance(heard, _ENDS_INPUT) and (tail := self._hearing.flush()):
            self._exchange.take(InputAudioBufferAppend(audio=tail), now_ms)
        if isinstance(heard, PlaybackAck) and not self._machine.sounds(heard.response_id, heard.item_id):
            named = heard.response_id or heard.item_id or "any answer"
            log.info(
                "session %s: an acknowledgement of %s, which does not sound any more, is ignored",
                self.session_id,
                named,
            )
        self._exchange.take(heard, now_ms)

    # -- what the machine and the model ask for -----------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case ServerEvent():
                self._send(action)
            case WakeAt(key=key, at_ms=at_ms):
                self._holdings.timers.set(Deadline(key=key), at_ms)
            case Detect():
                self._holdings.listening.detect(action)
            case SetTimer(key=key, at_ms=at_ms):
                self._holdings.timers.set(TimerFired(key=key), at_ms)
            case Submit(request=request):
                self._holdings.submit(request)
            case Abort(stage=stage, request_id=request_id):
                self._holdings.abort(stage, request_id)
            case ResetDetector():
                self._holdings.listening.reset(action)
            case JudgeEndOfTurn():
                self._holdings.listening.judge(action)
            case AbortOutput(fence=fence):
                self._speaking.reset()
                self._metrics.purged.inc(self.outbox.purge(fence.epoch))
                if self._machine.lanes.life is Life.OPEN:
                    self._metrics.interruptions.inc()
                self._holdings.abort_lane(Lane.OUTPUT)
            case ReleaseSlot():
                self._holdings.release()
            case _:
                assert_never(action)

    def _send(self, event: Event) -> None:
        if self.outbox.finished:
            return
        self.outbox.put(event)
        self._watch.event(self.session_id, event)
        if isinstance(event, _COUNTED):
            self._count(event)

    def _count(self, event: ResponseDone | OverlapDecision | SessionClosed) -> None:
        if isinstance(event, ResponseDone):
            self._metrics.responses.labels(status=event.response.status.value).inc()
        elif isinstance(event, OverlapDecision):
            self._metrics.overlaps.labels(decision=event.decision.value).inc()
        else:
            self._metrics.closed.labels(reason=event.reason.value).inc()
            self.tenure.told(self.outbox.journal.numbered(event, self.outbox.last_seq))
            self._watch.closed(self.session_id, event.reason)

    def _slow(self) -> None:
        self._metrics.slow_readers.inc()
        info = error(ErrorCode.SLOW_READER, "events were read too slowly")
        self.close(CloseReason.ERROR, info)

    def _unjudged(self, report: UnjudgedAudio) -> None:
        """Part of the user's audio got no verdict: a turn may be missed, so the client is told when that begins."""
        self._metrics.unjudged.inc(report.duration_ms / 1000.0)
        if self._missed.begins(report):
            log.warning("session %s: %s", self.session_id, report)
            self._send(ErrorEvent(error=error(ErrorCode.ENGINE_ERROR, told_of(report))))

    def finish(self) -> None:
        """The task has ended, in whatever way: nothing stays held, and the client's last event is out. Idempotent."""
        try:
            self._holdings.release()
        finally:
            reason = CloseReason.SHUTDOWN if self._fault is None else CloseReason.ERROR
            info = None if self._fault is None else internal_error("the session failed")
            self._send(SessionClosed(session_id=self.session_id, reason=reason, error=info))
            self.mailbox.clear()
            self.tenure.end()
            self.ended.set()


def _speak(machine: SessionMachine, speaking: Speaking, decision: Decision) -> Sequence[Decision]:
    """What the model speaks, in the response's output format."""
    config = machine.response_config
    if config is None or not isinstance(decision, _SPOKEN):
        return (decision,)
    if not machine.fence.admits(decision.fence):
        return (decision,)  # stale: the machine drops it, and the stream that runs now must not hear it
    return speaking.convert(decision, config.output_format)


def _size(command: Command) -> int:
    """Bytes that a waiting command holds, near enough."""
    if isinstance(command, InputAudioBufferAppend):
        return len(command.audio) + sum(len(picture.data) for picture in command.video_frames)
    return weight(command)
