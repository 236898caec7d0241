"""The session machine: one conversation's rules, without a clock, a socket or a task.

Driven by the session runner (and, in tests, by the conformance kit) through :class:`duplex_core.machine.exchange.Exchange`,
which also drives the model session. A command that cannot be carried out becomes an ``error`` event and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.capabilities import Capabilities
from duplex_core.config import SessionConfig
from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error, refuse
from duplex_core.events import (
    CloseReason,
    ErrorEvent,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionHeartbeatAck,
    SessionUpdated,
    SessionView,
)
from duplex_core.fence import Fence
from duplex_core.items import Item
from duplex_core.machine.asking import Asking
from duplex_core.machine.core import Core
from duplex_core.machine.editing import Editing
from duplex_core.machine.input import COMMIT_TIMER, STALL_TIMER, InputSide
from duplex_core.machine.io import (
    NOTHING,
    CloseRequested,
    EndOfTurnVerdict,
    MachineInput,
    ReleaseSlot,
    SlotReleased,
    SpeechFrames,
    Step,
    TimerFired,
)
from duplex_core.machine.output import OutputSide
from duplex_core.machine.sounding import IDLE_TIMER, PLAYBACK_TIMER
from duplex_core.machine.table import Lanes, Life, Trigger
from duplex_core.patch import ResponseParams, apply_session_patch

KEEPS_DEFERRED = (c.InputAudioBufferAppend, c.SessionHeartbeat, c.SessionEventAck, c.PlaybackAck)
"""Commands that may overtake a commit that waits for the detector."""


class SessionMachine:
    """State of one session and its only way to change: :meth:`handle`.

    Args:
        session_id: allocated by the session manager.
        config: the session's configuration to begin with.
        capabilities: what the served model can do; the rest is refused by name.
        check_options: validates (and completes) the model's own ``options``; raises ``DuplexError`` to refuse.
        attachment_generation: number of the attachment that opened the session.
    """

    def __init__(
        self,
        *,
        session_id: str,
        config: SessionConfig,
        capabilities: Capabilities,
        check_options: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        attachment_generation: int = 1,
    ) -> None:
        """Begin open, with nothing said."""
        self._core = Core(
            session_id=session_id,
            config=config,
            capabilities=capabilities,
            check_options=check_options,
            attachment_generation=attachment_generation,
        )
        self._output = OutputSide(self._core)
        self._input = InputSide(self._core, self._output)
        self._editing = Editing(self._core, self._input, self._output)
        self._asking = Asking(self._core, self._output, self._editing, self._input)
        self._ending: tuple[CloseReason, ErrorInfo | None] | None = None

    # -- what the runner may look at -----------------------------------------------------------------------------------

    @property
    def config(self) -> SessionConfig:
        """The configuration in force."""
        return self._core.config

    @property
    def response_config(self) -> SessionConfig | None:
        """The configuration of the response that is being made."""
        response = self._output.response
        return response.config if response is not None else None

    @property
    def fence(self) -> Fence:
        """The fence in force."""
        return self._core.fence

    @property
    def lanes(self) -> Lanes:
        """The states; read only."""
        return self._core.lanes

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self._core.lanes.life is Life.CLOSED

    @property
    def history(self) -> tuple[Item, ...]:
        """The conversation as a model would be told it now: answers only as far as they were heard."""
        return self._output.sounding.heard_history()

    def sounds(self, response_id: str | None, item_id: str | None) -> bool:
        """Whether the answer named, or any when none is, may still be acknowledged as heard: it was not superseded."""
        return self._core.playback.find(response_id, item_id) is not None

    def attach(self, generation: int) -> SessionView:
        """The session belongs to its attachment number ``generation`` from here on; it as that attachment sees it.

        No input and no step: who reads the events is nothing to the conversation, but it stands in the session that they show.
        """
        self._core.attachment_generation = generation
        return self._core.view()

    # -- driving ------------------------------------------------------------------------------------------------------

    def open(self, now_ms: float) -> Step:
        """The first step: ``session.created``."""
        self._core.now_ms = now_ms
        self._core.emit(SessionCreated(session=self._core.view()))
        return self._core.take_step()

    def handle(self, event: MachineInput, now_ms: float) -> Step:
        """Take one input. ``now_ms`` never goes back.

        Raises:
            IllegalMove, ModelFault: a fault of the machine or of the model session, never a client's mistake.
        """
        core = self._core
        core.now_ms = max(core.now_ms, now_ms)
        life = core.lanes.life
        if life is Life.CLOSED:
            return NOTHING
        if life is Life.OPEN:
            self._output.sounding.drain()
        if isinstance(event, c.ClientCommand):
            self._command(event)
        elif isinstance(event, SlotReleased):
            self._released()
        elif isinstance(event, CloseRequested):
            self._close(event.reason, event.error, event.detail)
        elif life is Life.OPEN:
            self._inside(event)
            self._settle()
        return core.take_step()

    def _settle(self) -> None:
        """What waited may be decided by what has just happened."""
        if self._core.lanes.life is Life.OPEN:
            self._input.reconsider()
            self._asking.settle()

    def _command(self, command: c.Command) -> None:
        core = self._core
        if core.lanes.life is Life.OPEN and not isinstance(command, KEEPS_DEFERRED):
            self._input.settle_commit()
        before = core.gathered()
        try:
            if core.lanes.life is not Life.OPEN and not isinstance(command, c.SessionClose):
                raise refuse(ErrorCode.SESSION_CLOSED, "the session is closing; nothing more is taken")
            self._dispatch(command)
            self._settle()
        except DuplexError as refusal:
            core.withdraw(before)
            core.emit(ErrorEvent(error=msgspec.structs.replace(refusal.info, event_id=command.event_id)))

    def _inside(self, event: m.Decision | SpeechFrames | EndOfTurnVerdict | TimerFired) -> None:
        """What comes from the engine's own side: decisions, verdicts, timers."""
        match event:
            case SpeechFrames():
                self._input.frames(event)
            case EndOfTurnVerdict():
                self._input.learn(event)
            case TimerFired():
                _timer_due(event.key, self._input, self._output)
            case m.Speak():
                self._output.speak(event)
            case m.ToolCall():
                self._output.tool_call(event)
            case m.EndTurn():
                self._output.end_turn(event)
            case m.BeginTurn():
                self._output.begin_turn(event)
            case m.Listen():
                self._output.listen(event)
            case m.UserTranscript():
                self._input.recognition.heard(event, self._input.pending_id)
                self._input.learn(event)
            case m.TranscriptFailed():
                self._input.recognition.failed(event, self._input.pending_id)
            case m.InputRefused():
                self._core.emit(ErrorEvent(error=event.error))
            case m.Failed():
                self._output.fail(event)
            case m.Fatal():
                self._close(CloseReason.ERROR, event.error)
            case _:
                assert_never(event)

    # -- commands -----------------------------------------------------------------------------------------------------

    def _dispatch(self, command: c.Command) -> None:
        match command:
            case c.InputAudioBufferAppend():
                self._input.append(command)
            case c.InputAudioBufferCommit():
                self._input.commit(command)
            case c.InputAudioBufferClear():
                self._input.clear()
            case (
                c.ConversationItemCreate()
                | c.ConversationItemRetrieve()
                | c.ConversationItemTruncate()
                | c.ConversationItemDelete()
            ):
                self._editing.carry_out(command)
            case c.ResponseCreate():
                self._asking.respond(command.response or ResponseParams())
            case c.ResponseCancel():
                self._asking.cancel(command.response_id)
            case c.OutputAudioBufferClear():
                self._asking.clear_sound()
            case c.BargeIn() | c.TurnSignal() | c.InputCancel() | c.InputTextAppend() | c.PlaybackAck():
                self._extension(command)
            case c.SessionUpdate() | c.SessionHeartbeat() | c.SessionEventAck() | c.SessionResume() | c.SessionClose():
                self._lifetime(command)
            case _:
                assert_never(command)

    def _extension(self, command: c.BargeIn | c.TurnSignal | c.InputCancel | c.InputTextAppend | c.PlaybackAck) -> None:
        core = self._core
        can = core.capabilities
        match command:
            case c.PlaybackAck():
                self._asking.acknowledge(command)
            case c.BargeIn():
                self._asking.barge_in(command)
            case c.TurnSignal():
                self._asking.turn_signal(command)
            case c.InputCancel():
                if not can.input_cancel:
                    raise refuse(ErrorCode.UNSUPPORTED_EVENT, "the served model takes no input.cancel")
                self._input.clear()
            case c.InputTextAppend():
                if not can.text_stream_input:
                    raise refuse(ErrorCode.UNSUPPORTED_EVENT, "the served model takes no streamed text")
                core.tell(m.TextArrived(text=command.text, fence=core.fence))
            case _:
                assert_never(command)

    def _lifetime(
        self,
        command: c.SessionUpdate | c.SessionHeartbeat | c.SessionEventAck | c.SessionResume | c.SessionClose,
    ) -> None:
        match command:
            case c.SessionUpdate():
                self._update(command)
            case c.SessionHeartbeat():
                self._core.emit(SessionHeartbeatAck())
            case c.SessionEventAck():
                pass
            case c.SessionResume():
                message = "this socket has a session of its own; open one with ?autostart=0 to resume another"
                raise refuse(ErrorCode.UNSUPPORTED_EVENT, message)
            case c.SessionClose():
                self._close(CloseReason.CLIENT, None)
            case _:
                assert_never(command)

    def _update(self, command: c.SessionUpdate) -> None:
        core = self._core
        before = core.config
        after = apply_session_patch(before, command.session, core.capabilities)
        if core.check_options is not None and after.options is not before.options:
            after = msgspec.structs.replace(after, options=core.check_options(after.options))
        if core.begun:
            for name in core.capabilities.fixed_after_start:
                if getattr(before, name) != getattr(after, name):
                    message = f"{name} cannot change any more: {core.begun}, and the model has begun with what it was"
                    raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, message, param=f"session.{name}")
        core.config = after
        self._input.reconfigured(before)
        self._output.sounding.reconfigured(before)
        core.emit(SessionUpdated(session=core.view()))
        core.configure()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _close(self, reason: CloseReason, cause: ErrorInfo | None, detail: str | None = None) -> None:
        """End the session; idempotent. Its last event comes when everything that it held is free."""
        core = self._core
        if core.lanes.life is not Life.OPEN:
            return
        self._ending = (reason, cause)
        self._output.end(cause)
        if cause is not None:
            core.emit(ErrorEvent(error=cause))
        if reason is CloseReason.EXPIRED:
            core.emit(SessionExpired(session_id=core.session_id, reason=detail or reason.value))
        for key in (PLAYBACK_TIMER, STALL_TIMER, COMMIT_TIMER, IDLE_TIMER):
            core.set_timer(key, None)
        core.lanes.move(Life, Trigger.CLOSE)
        core.perform(ReleaseSlot())

    def _released(self) -> None:
        core = self._core
        self._close(CloseReason.ERROR, None)  # no more than a precaution: who releases has closed before
        assert self._ending is not None
        reason, cause = self._ending
        core.lanes.move(Life, Trigger.RELEASED)
        core.emit(SessionClosed(session_id=core.session_id, reason=reason, error=cause))


def _timer_due(key: str, user: InputSide, assistant: OutputSide) -> None:
    if key == PLAYBACK_TIMER:
        assistant.sounding.timer_due()
    elif key == COMMIT_TIMER:
        user.settle_commit()
    elif key == STALL_TIMER:
        user.stalled()
    elif key == IDLE_TIMER:
        user.idle()


def internal_error(what: str) -> ErrorInfo:
    """What a client is told when the engine itself failed; the details are in the server's log."""
    return error(ErrorCode.INTERNAL_ERROR, f"{what}; this session ends, others go on")
