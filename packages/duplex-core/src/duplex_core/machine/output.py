"""The output side of the session machine: responses, from their opening to their end or their interruption.

Owns the open response. Used by :class:`~duplex_core.machine.session.SessionMachine` and by the input side, which opens and
interrupts turns. What becomes of the sound is :mod:`duplex_core.machine.sounding`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from duplex_core.config import Modality, SessionConfig
from duplex_core.errors import ErrorCode, ErrorInfo, refuse
from duplex_core.events import (
    OutputBufferCleared,
    RateLimitsUpdated,
    ResponseError,
    ResponseListen,
    ResponseStatus,
    StatusDetails,
    StatusReason,
    Usage,
)
from duplex_core.fence import Fence
from duplex_core.items import Item
from duplex_core.ledger import TextMark
from duplex_core.machine.core import Core
from duplex_core.machine.heard import Track
from duplex_core.machine.io import AbortOutput
from duplex_core.machine.response import OpenItem, Response
from duplex_core.machine.sounding import Sounding
from duplex_core.machine.table import Answer, Sound, Trigger
from duplex_core.model import (
    BeginTurn,
    EndTurn,
    Failed,
    Interrupted,
    Listen,
    Respond,
    ResponseCause,
    Speak,
    StopReason,
    ToolCall,
)


class ModelFault(RuntimeError):
    """A model session broke the contract; its session ends with ``internal_error``."""


class OutputSide:
    """Responses of one session."""

    def __init__(self, core: Core) -> None:
        """Begin with no response."""
        self._core = core
        self.response: Response | None = None
        """The response that is being made. Read only, outside of this class."""
        self.sounding = Sounding(core)
        self.since_ms = 0.0
        """How far the user's audio reached when the newest answer that followed silence was opened."""
        self._queued = False

    @property
    def audible(self) -> bool:
        """Whether there is something to interrupt: an answer being made or still sounding."""
        return self._core.lanes.answer is not Answer.NONE or self._core.lanes.sound is Sound.SOUNDING

    @property
    def audible_id(self) -> str | None:
        """The response that an interruption would stop: the one being made, else the newest that still sounds."""
        if self.response is not None:
            return self.response.id
        tracks = self._core.playback.tracks
        return tracks[-1].response_id if tracks else None

    # -- opening ------------------------------------------------------------------------------------------------------

    def open(
        self,
        cause: ResponseCause,
        *,
        config: SessionConfig | None = None,
        history: tuple[Item, ...] | None = None,
        outside: bool = False,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Open a response and ask the model for it.

        Raises:
            DuplexError: one is being made already.
        """
        core = self._core
        self.require_idle()
        response = self._create(config or core.config, outside=outside, metadata=metadata)
        told = self.sounding.heard_history() if history is None else history
        core.tell(Respond(response_id=response.id, fence=core.fence, config=response.config, history=told, cause=cause))

    def require_idle(self) -> None:
        """Refuse when a response is being made.

        Raises:
            DuplexError: ``conversation_already_has_active_response``.
        """
        if self.response is not None:
            message = f"response {self.response.id} is still being made; cancel it or wait for its response.done"
            raise refuse(ErrorCode.ACTIVE_RESPONSE, message)

    def _create(self, config: SessionConfig, *, outside: bool, metadata: dict[str, str] | None) -> Response:
        core = self._core
        core.lanes.move(Answer, Trigger.OPEN)
        if core.lanes.sound is Sound.SILENT:
            self.since_ms = core.input_end_ms
        core.fence = core.fence.next_turn()
        response = Response(
            response_id=core.new_id("resp"),
            fence=core.fence,
            config=config,
            history=None if outside else core.history,
            now_ms=core.now_ms,
            metadata=metadata,
        )
        self.response = response
        self.sounding.rest()
        core.emit(response.created())
        return response

    def open_or_queue(self, cause: ResponseCause) -> None:
        """Open a response for finished user input, now or as soon as the running one has ended."""
        if self.response is None:
            self.open(cause)
        else:
            self._queued = True

    def _open_queued(self) -> None:
        queued, self._queued = self._queued, False
        if queued:
            self.open(ResponseCause.COMMIT)

    # -- the model's decisions ----------------------------------------------------------------------------------------

    def _current(self, fence: Fence) -> Response | None:
        """The response that a decision is about; ``None`` makes it stale. The one place where stale ones are dropped.

        Raises:
            ModelFault: the decision names a turn that was never opened.
        """
        response = self.response
        if not self._core.fence.admits(fence):
            return None
        if fence.turn > self._core.fence.turn:
            raise ModelFault(f"a decision for turn {fence.turn}, but the last turn opened is {self._core.fence.turn}")
        return response if response is not None and fence.turn == response.fence.turn else None

    def begin_turn(self, decision: BeginTurn) -> None:
        """The model takes a turn by itself, or adopts the one that was opened for it.

        Raises:
            ModelFault: the model would begin a turn inside a turn, or skip one.
        """
        core = self._core
        if not core.fence.admits(decision.fence) or decision.fence.turn <= core.fence.turn:
            return
        if self.response is not None:
            raise ModelFault(f"a turn begins while response {self.response.id} is being made")
        if decision.fence != core.fence.next_turn():
            raise ModelFault(f"turn {decision.fence.turn} begins, but the last turn opened is {core.fence.turn}")
        self._create(core.config, outside=False, metadata=None)

    def listen(self, decision: Listen) -> None:
        """The model would rather listen; the response that this answers, if it has no output yet, ends without any."""
        core = self._core
        if not core.fence.admits(decision.fence):
            return
        response = self._current(decision.fence)
        ended = response if core.lanes.answer is Answer.PENDING else None
        core.emit(
            ResponseListen(
                epoch=core.fence.epoch, turn_id=core.fence.turn, response_id=ended.id if ended is not None else None
            )
        )
        if ended is not None:
            self._finish(ResponseStatus.COMPLETED, StatusDetails(type=ResponseStatus.COMPLETED), None)

    def speak(self, decision: Speak) -> None:
        """More of the answer. ``decision.pcm`` is already in the response's output format."""
        response = self._current(decision.fence)
        if response is None:
            return
        spoken = response.config.modality is Modality.AUDIO
        pcm = decision.pcm if spoken else b""
        if response.message is None:
            if not (pcm or decision.text):
                return
            self._core.lanes.move(Answer, Trigger.OUTPUT)
            self._core.emit(*response.open_message(self._core.new_id("item")))
        message = response.message
        assert message is not None
        response.timing.output(self._core.now_ms, audio=bool(pcm))
        if spoken:
            message.mark(decision.marks)
        if decision.text:
            self._core.emit(*response.text(decision.text))
        if pcm:
            self._sound(response, message, pcm, bool(decision.text))

    def _sound(self, response: Response, message: OpenItem, pcm: bytes, with_text: bool) -> None:
        core = self._core
        duration_ms = response.config.output_format.duration_ms(len(pcm))
        track = self.sounding.play(message.track, response.id, message.entry.id, duration_ms)
        speech = message.entry.speech
        speech.audio_ms = message.entry.made_ms = track.ledger.generated_ms
        if with_text:
            speech.anchors.append(TextMark(chars=len(message.text), ms=speech.audio_ms))
        core.emit(*response.audio(pcm, duration_ms, track))

    def tool_call(self, decision: ToolCall) -> None:
        """More of a tool call.

        Raises:
            ModelFault: the call has ended already.
        """
        response = self._current(decision.fence)
        if response is None:
            return
        core = self._core
        call_id = decision.call_id
        item_id = ""
        if response.call(call_id) is None:
            if response.called(call_id) or core.history.call(call_id) is not None:
                raise ModelFault(f"there was a tool call with the id {call_id!r} already; every call needs its own")
            item_id = core.new_id("item")
        core.lanes.move(Answer, Trigger.OUTPUT)
        response.timing.output(core.now_ms)
        core.emit(*response.tool(item_id, call_id, decision.name, decision.arguments))
        if decision.final:
            core.emit(*response.end_tool(call_id))

    def end_turn(self, decision: EndTurn) -> None:
        """The answer is whole."""
        if self._current(decision.fence) is None:
            return
        spent = decision.usage
        usage = Usage(
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            total_tokens=spent.input_tokens + spent.output_tokens,
        )
        if decision.reason is StopReason.DONE:
            self._finish(ResponseStatus.COMPLETED, StatusDetails(type=ResponseStatus.COMPLETED), usage)
            return
        details = StatusDetails(type=ResponseStatus.INCOMPLETE, reason=StatusReason.MAX_OUTPUT_TOKENS)
        self._finish(ResponseStatus.INCOMPLETE, details, usage)

    def fail(self, decision: Failed) -> None:
        """The answer cannot be made."""
        if self._current(decision.fence) is not None:
            self._finish(ResponseStatus.FAILED, _failure(decision.error), None)

    def _finish(self, status: ResponseStatus, details: StatusDetails, usage: Usage | None) -> None:
        """Generation is over; what was sent may go on sounding."""
        response = self.response
        assert response is not None
        core = self._core
        message = response.message
        core.emit(*response.finish(status, details, usage, now_ms=core.now_ms), RateLimitsUpdated(rate_limits=[]))
        core.lanes.move(Answer, Trigger.END)
        self.response = None
        if message is not None:
            message.entry.speech.complete = True
            message.entry.settled = message.track is None
            if message.track is not None:
                message.track.generated = True
        self.sounding.arm_idle()
        self.sounding.drain()
        self._open_queued()

    # -- interruption -------------------------------------------------------------------------------------------------

    def interrupt(self, reason: StatusReason, heard_ms: dict[str, float] | None = None) -> None:
        """Stop the answer that is being made and everything that still sounds: the epoch advances, history is cut.

        ``heard_ms`` gives, by item id, what the client says was heard, where it says so. A finished turn of the user that
        waits for the answer's end is answered now; but when the user speaks, by the answer to what is being said.
        """
        core = self._core
        response = self.response
        core.fence = core.fence.next_epoch()
        core.perform(AbortOutput(fence=core.fence))
        stopped = self.audible_id
        over = self.sounding.stop()
        said = heard_ms or {}
        heard = {
            each.item_id: min(said.get(each.item_id, self.sounding.heard_ms(each)), each.ledger.sent_ms)
            for each in over
        }
        core.emit(*_cleared(core.fence, response, over, heard))
        if response is not None:
            self._cancel(response, reason)
        for track in over:
            self.sounding.cut(track.item_id, heard[track.item_id])
        reached = next((heard[track.item_id] for track in over if track.response_id == stopped), 0.0)
        core.tell(Interrupted(fence=core.fence, response_id=stopped, heard_ms=reached))
        self.sounding.tell_history()
        self.sounding.arm_idle()
        if reason is StatusReason.TURN_DETECTED:
            self._queued = False
        self._open_queued()

    def _cancel(self, response: Response, reason: StatusReason) -> None:
        core = self._core
        message = response.message
        core.lanes.move(Answer, Trigger.END)
        self.response = None
        details = StatusDetails(type=ResponseStatus.CANCELLED, reason=reason)
        over = response.finish(ResponseStatus.CANCELLED, details, now_ms=core.now_ms)
        core.emit(*over, RateLimitsUpdated(rate_limits=[]))
        if message is not None and message.track is None and response.config.modality is Modality.AUDIO:
            self.sounding.cut(message.entry.id, 0.0)

    def end(self, cause: ErrorInfo | None) -> None:
        """The session ends: so does its answer, as failed if there is a ``cause``, and all that sounds."""
        self._queued = False
        if cause is not None and self.response is not None:
            self._finish(ResponseStatus.FAILED, _failure(cause), None)
        if self.audible:
            self.interrupt(StatusReason.CLIENT_CANCELLED)


def _failure(error: ErrorInfo) -> StatusDetails:
    """Why an answer failed, as its end shows it."""
    cause = ResponseError(type=error.type.value, code=error.code.value, message=error.message)
    return StatusDetails(type=ResponseStatus.FAILED, error=cause)


def _cleared(
    fence: Fence, response: Response | None, over: list[Track], heard: dict[str, float]
) -> Iterator[OutputBufferCleared]:
    """Each answer whose sound must stop is named, also one that has not made any yet."""
    ends = {track.response_id: int(heard[track.item_id]) for track in over}
    if response is not None:
        ends.setdefault(response.id, 0)
    for response_id, end_ms in ends.items():
        yield OutputBufferCleared(response_id=response_id, epoch=fence.epoch, audio_end_ms=end_ms)
