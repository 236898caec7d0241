"""The output side of the session machine: responses, their interruption, and what of them was heard.

Owns the open response and the playback. Used by :class:`~duplex_core.machine.session.SessionMachine` and by the input
side, which opens and interrupts turns.
"""

from __future__ import annotations

from duplex_core.config import Modality, ServerVad, SessionConfig
from duplex_core.errors import ErrorCode, ErrorInfo, refuse
from duplex_core.events import (
    ItemTruncated,
    OutputBufferCleared,
    PlaybackAcknowledged,
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
from duplex_core.ledger import CommitPolicy, TextMark
from duplex_core.machine.core import Core
from duplex_core.machine.heard import Track
from duplex_core.machine.history import truncate
from duplex_core.machine.io import AbortOutput
from duplex_core.machine.response import CONTENT_INDEX, OpenItem, Response
from duplex_core.machine.table import Answer, Sound, Trigger
from duplex_core.model import (
    BeginTurn,
    EndTurn,
    Failed,
    HistoryChanged,
    Interrupted,
    Listen,
    Respond,
    ResponseCause,
    Speak,
    StopReason,
    ToolCall,
)

PLAYBACK_TIMER = "playback"
IDLE_TIMER = "idle"


class ModelFault(RuntimeError):
    """A model session broke the contract; its session ends with ``internal_error``."""


class OutputSide:
    """Responses and playback of one session."""

    def __init__(self, core: Core) -> None:
        """Begin with no response."""
        self._core = core
        self._response: Response | None = None
        self._queued = False

    @property
    def response(self) -> Response | None:
        """The response that is being made."""
        return self._response

    @property
    def audible(self) -> bool:
        """Whether there is something to interrupt: an answer being made or still sounding."""
        return self._core.lanes.answer is not Answer.NONE or self._core.lanes.sound is Sound.SOUNDING

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
        told = self.heard_history() if history is None else history
        core.tell(Respond(response_id=response.id, fence=core.fence, config=response.config, history=told, cause=cause))

    def require_idle(self) -> None:
        """Refuse when a response is being made.

        Raises:
            DuplexError: ``conversation_already_has_active_response``.
        """
        if self._response is not None:
            message = f"response {self._response.id} is still being made; cancel it or wait for its response.done"
            raise refuse(ErrorCode.ACTIVE_RESPONSE, message)

    def _create(self, config: SessionConfig, *, outside: bool, metadata: dict[str, str] | None) -> Response:
        core = self._core
        core.lanes.move(Answer, Trigger.OPEN)
        core.fence = core.fence.next_turn()
        response = Response(
            response_id=core.new_id("resp"),
            fence=core.fence,
            config=config,
            history=None if outside else core.history,
            metadata=metadata,
        )
        self._response = response
        core.set_timer(IDLE_TIMER, None)
        core.emit(response.created())
        return response

    def open_or_queue(self, cause: ResponseCause) -> None:
        """Open a response for finished user input, now or as soon as the running one has ended."""
        if self._response is None:
            self.open(cause)
        else:
            self._queued = True

    def heard_history(self) -> tuple[Item, ...]:
        """The history as a model is told it: answers only as far as they were heard, or count as heard."""
        core = self._core
        heard: dict[str, float] = {}
        for track in core.playback.tracks:
            if core.config.commit_policy is CommitPolicy.ACK_ONLY:
                heard[track.item_id] = track.ledger.played_ms
            elif not track.generated:
                heard[track.item_id] = track.heard_ms(core.now_ms)
        return core.history.for_model(heard)

    # -- the model's decisions ----------------------------------------------------------------------------------------

    def _current(self, fence: Fence) -> Response | None:
        """The response that a decision is about; ``None`` makes it stale. The one place where stale ones are dropped.

        Raises:
            ModelFault: the decision names a turn that was never opened.
        """
        response = self._response
        if not self._core.fence.admits(fence):
            return None
        if fence.turn > self._core.fence.turn:
            raise ModelFault(f"a decision for turn {fence.turn}, but the last turn opened is {self._core.fence.turn}")
        return response if response is not None and fence.turn == response.fence.turn else None

    def begin_turn(self, decision: BeginTurn) -> None:
        """The model takes a turn by itself, or adopts the one that was opened for it.

        Raises:
            ModelFault: the model would begin a turn inside a turn.
        """
        core = self._core
        if not core.fence.admits(decision.fence) or decision.fence.turn <= core.fence.turn:
            return
        if self._response is not None:
            raise ModelFault(f"a turn begins while response {self._response.id} is being made")
        self._create(core.config, outside=False, metadata=None)

    def listen(self, decision: Listen) -> None:
        """The model would rather listen; the response that this answers, if it has no output yet, ends without any."""
        core = self._core
        if not core.fence.admits(decision.fence):
            return
        response = self._current(decision.fence)
        core.emit(
            ResponseListen(
                epoch=core.fence.epoch, turn_id=core.fence.turn, response_id=response.id if response else None
            )
        )
        if response is not None and core.lanes.answer is Answer.PENDING:
            self._finish(ResponseStatus.COMPLETED, StatusDetails(type=ResponseStatus.COMPLETED), None)

    def speak(self, decision: Speak) -> None:
        """More of the answer. ``decision.pcm`` is already in the response's output format."""
        response = self._current(decision.fence)
        if response is None or not (decision.pcm or decision.text or decision.marks):
            return
        core = self._core
        core.lanes.move(Answer, Trigger.OUTPUT)
        if response.message is None:
            core.emit(*response.open_message(core.new_id("item")))
        message = response.message
        assert message is not None
        message.entry.speech.marks.extend(decision.marks)
        if decision.text:
            core.emit(*response.text(decision.text))
        if decision.pcm and response.config.modality is Modality.AUDIO:
            self._sound(response, message, decision)

    def _sound(self, response: Response, message: OpenItem, decision: Speak) -> None:
        core = self._core
        track = message.track
        if track is None:
            track = Track(response_id=response.id, item_id=message.entry.id)
            core.playback.begin(track)
        duration_ms = response.config.output_format.duration_ms(len(decision.pcm))
        core.playback.send(track, duration_ms, core.now_ms)
        speech = message.entry.speech
        speech.audio_ms = message.entry.made_ms = track.ledger.generated_ms
        if decision.text:
            speech.anchors.append(TextMark(chars=len(message.text), ms=speech.audio_ms))
        core.lanes.move(Sound, Trigger.AUDIO)
        core.set_timer(PLAYBACK_TIMER, core.playback.ends_at_ms)
        core.emit(*response.audio(decision.pcm, duration_ms, list(decision.marks), track))

    def tool_call(self, decision: ToolCall) -> None:
        """More of a tool call."""
        response = self._current(decision.fence)
        if response is None:
            return
        core = self._core
        core.lanes.move(Answer, Trigger.OUTPUT)
        item_id = "" if response.call(decision.call_id) else core.new_id("item")
        core.emit(*response.tool(item_id, decision.call_id, decision.name, decision.arguments))
        if decision.final:
            core.emit(*response.end_tool(decision.call_id))

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
            self.abandon(decision.error)

    def abandon(self, error: ErrorInfo) -> None:
        """End the open response, if there is one, as failed."""
        if self._response is None:
            return
        cause = ResponseError(type=error.type.value, code=error.code.value, message=error.message)
        self._finish(ResponseStatus.FAILED, StatusDetails(type=ResponseStatus.FAILED, error=cause), None)

    def _finish(self, status: ResponseStatus, details: StatusDetails, usage: Usage | None) -> None:
        """Generation is over; what was sent may go on sounding."""
        response = self._response
        assert response is not None
        core = self._core
        track = response.message.track if response.message is not None else None
        entry = response.message.entry if response.message is not None else None
        core.emit(*response.finish(status, details, usage), RateLimitsUpdated(rate_limits=[]))
        core.lanes.move(Answer, Trigger.END)
        self._response = None
        if entry is not None:
            entry.speech.complete = True
            entry.settled = track is None
        if track is not None:
            track.generated = True
            self.drain()
        self._arm_idle()
        if self._queued:
            self._queued = False
            self.open(ResponseCause.COMMIT)

    # -- playback -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Settle what has been heard to its end; called when the playback timer is due and when generation ends."""
        core = self._core
        for track in core.playback.drained(core.now_ms):
            self._settle(track)
        if core.playback:
            if core.playback.ends_at_ms > core.now_ms:  # else it is still being made, and its next sound sets the timer
                core.set_timer(PLAYBACK_TIMER, core.playback.ends_at_ms)
        elif core.lanes.sound is Sound.SOUNDING:
            core.lanes.move(Sound, Trigger.DRAINED)
            self._arm_idle()

    def _settle(self, track: Track) -> None:
        """The answer's sound is over and nobody interrupted it."""
        core = self._core
        entry = core.history.find(track.item_id)
        if entry is None:
            return
        entry.settled = True
        if core.config.commit_policy is CommitPolicy.ACK_ONLY:
            entry.kept_ms = track.ledger.played_ms
        else:
            track.ledger = track.ledger.play(track.ledger.sent_ms).commit(track.ledger.sent_ms)

    def user_speaks(self) -> None:
        """The user began to speak: nobody is idle."""
        self._core.set_timer(IDLE_TIMER, None)

    def _arm_idle(self) -> None:
        core = self._core
        vad = core.config.turn_detection
        if isinstance(vad, ServerVad) and vad.idle_timeout_ms is not None and self._response is None:
            quiet_from = max(core.now_ms, core.playback.ends_at_ms)
            core.set_timer(IDLE_TIMER, quiet_from + vad.idle_timeout_ms)

    def acknowledge(
        self, played_ms: float, *, response_id: str | None, item_id: str | None, committed_ms: float | None, cut: bool
    ) -> None:
        """The client tells what was heard. About an answer that is over or was superseded it changes nothing."""
        core = self._core
        track = core.playback.find(response_id, item_id)
        if track is None:
            return
        core.playback.acknowledge(track, played_ms, core.now_ms)
        heard_ms = track.ledger.played_ms
        if core.config.commit_policy is CommitPolicy.ACK_ONLY or committed_ms is not None:
            track.ledger = track.ledger.commit(heard_ms if committed_ms is None else committed_ms)
            self._keep(track, track.ledger.committed_ms)
        core.emit(PlaybackAcknowledged(playback=track.ledger, response_id=track.response_id, item_id=track.item_id))
        if cut and track.generated:
            core.playback.forget(track)
            self._cut(track, heard_ms)
            self._tell_history()
        self.drain()

    def _keep(self, track: Track, until_ms: float) -> None:
        entry = self._core.history.find(track.item_id)
        if entry is not None and entry.settled and entry.kept_ms is not None:
            entry.kept_ms = max(entry.kept_ms, until_ms)

    # -- interruption -------------------------------------------------------------------------------------------------

    def interrupt(self, reason: StatusReason, heard_ms: dict[str, float] | None = None) -> None:
        """Stop the answer that is being made and everything that still sounds: the epoch advances, history is cut.

        ``heard_ms`` gives, by item id, what the client says was heard, where it says so.
        """
        core = self._core
        response = self._response
        core.fence = core.fence.next_epoch()
        core.perform(AbortOutput(fence=core.fence))
        self._queued = False
        over = core.playback.clear()
        said = heard_ms or {}
        heard = {each.item_id: min(said.get(each.item_id, self._heard(each)), each.ledger.sent_ms) for each in over}
        self._tell_cleared(over, heard)
        if core.lanes.sound is Sound.SOUNDING:
            core.lanes.move(Sound, Trigger.CLEARED)
        core.set_timer(PLAYBACK_TIMER, None)
        if response is not None:
            self._cancel_response(response, reason)
        for track in over:
            self._cut(track, heard[track.item_id])
        newest = over[-1] if over else None
        stopped = response.id if response is not None else newest.response_id if newest is not None else None
        reached = heard[newest.item_id] if newest is not None and newest.response_id == stopped else 0.0
        core.tell(Interrupted(fence=core.fence, response_id=stopped, heard_ms=reached))
        self._tell_history()
        self._arm_idle()

    def _tell_cleared(self, over: list[Track], heard: dict[str, float]) -> None:
        """Each answer whose sound must stop is named, also one that has not made any yet."""
        core = self._core
        ends = {track.response_id: int(heard[track.item_id]) for track in over}
        if self._response is not None:
            ends.setdefault(self._response.id, 0)
        for response_id, end_ms in ends.items():
            core.emit(OutputBufferCleared(response_id=response_id, epoch=core.fence.epoch, audio_end_ms=end_ms))

    def _cancel_response(self, response: Response, reason: StatusReason) -> None:
        core = self._core
        silent = response.message if response.message is not None and response.message.track is None else None
        core.lanes.move(Answer, Trigger.END)
        self._response = None
        details = StatusDetails(type=ResponseStatus.CANCELLED, reason=reason)
        core.emit(*response.finish(ResponseStatus.CANCELLED, details), RateLimitsUpdated(rate_limits=[]))
        if silent is not None and response.config.modality is Modality.AUDIO:
            truncate(silent.entry, 0.0)

    def _heard(self, track: Track) -> float:
        if self._core.config.commit_policy is CommitPolicy.ACK_ONLY:
            return track.ledger.played_ms
        return track.heard_ms(self._core.now_ms)

    def _cut(self, track: Track, heard_ms: float) -> None:
        core = self._core
        entry = core.history.find(track.item_id)
        if entry is None:
            return
        truncate(entry, heard_ms)
        core.emit(ItemTruncated(item_id=entry.id, content_index=CONTENT_INDEX, audio_end_ms=int(heard_ms)))

    def _tell_history(self) -> None:
        core = self._core
        core.tell(HistoryChanged(history=self.heard_history(), fence=core.fence))

    def clear_sound(self) -> None:
        """``output_audio_buffer.clear``: nothing that is queued may be heard any more.

        Raises:
            DuplexError: nothing is being made and nothing sounds.
        """
        if not self.audible:
            raise refuse(ErrorCode.NO_ACTIVE_RESPONSE, "there is no output audio to clear")
        self.interrupt(StatusReason.CLIENT_CANCELLED)

    def cancel(self, response_id: str | None) -> None:
        """``response.cancel``.

        Raises:
            DuplexError: no response is being made, or another one than was named.
        """
        running = self._response
        if running is None:
            raise refuse(ErrorCode.NO_ACTIVE_RESPONSE, "there is no response to cancel")
        if response_id not in (None, running.id):
            message = f"response {response_id!r} is not being made; the running one is {running.id}"
            raise refuse(ErrorCode.NO_ACTIVE_RESPONSE, message, param="response_id")
        self.interrupt(StatusReason.CLIENT_CANCELLED)
