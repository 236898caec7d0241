"""The input side of the session machine: the user's audio, where turns begin and end in it, and what was recognised.

Owns the input buffer and the endpoint rule's state. Used by :class:`~duplex_core.machine.session.SessionMachine`; asks the
output side to interrupt and to open turns.
"""

from __future__ import annotations

import msgspec

from duplex_core.capabilities import TurnPolicy
from duplex_core.commands import InputAudioBufferAppend, InputAudioBufferCommit
from duplex_core.config import ServerVad, SessionConfig
from duplex_core.errors import ErrorCode, refuse
from duplex_core.events import (
    InputCleared,
    InputCommitted,
    InputTimeoutTriggered,
    ItemAdded,
    ItemCreated,
    ItemDone,
    OverlapDecision,
    OverlapVerdict,
    SpeechStarted,
    SpeechStopped,
    StatusReason,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
    TranscriptUsage,
)
from duplex_core.items import InputAudio, Item, ItemStatus, MessageItem, Role
from duplex_core.machine.buffer import InputBuffer
from duplex_core.machine.core import Core
from duplex_core.machine.endpoint import EndpointSettings, EndpointState, Verdict, follow
from duplex_core.machine.heard import Speech
from duplex_core.machine.history import Entry, visible
from duplex_core.machine.io import Detect, ResetDetector, SpeechFrames
from duplex_core.machine.output import OutputSide
from duplex_core.machine.table import Hearing, Trigger
from duplex_core.machine.transcript import TranscriptState, follow_transcript
from duplex_core.model import (
    AudioArrived,
    ImageArrived,
    ResponseCause,
    SpeechBegan,
    SpeechDropped,
    SpeechPaused,
    SpeechResumed,
    TranscriptFailed,
    UserTranscript,
)
from duplex_core.model import InputCommitted as ToldCommitted

STALL_TIMER = "input stall"
STALL_MS = 2000.0
"""Without any audio for this long in mid-speech (or twice the silence that ends a turn, if longer) the utterance is over."""
TAIL_MS = 160.0
"""Audio after the last speech frame that still belongs to the utterance: a soft consonant lies below the threshold."""
QUIET_KEEP_MS = 10_000.0
"""Audio kept while a detector hears nothing, for a commit by hand of what it did not notice."""
STREAM_KEEP_MS = 60_000.0
"""Audio kept for a commit when the model hears everything anyway."""
MAX_BUFFER_MS = 600_000.0
"""The longest turn that a client may commit by hand; also bounds the memory of one session."""
FRAME_SLACK_MS = 64.0
"""Audio that a detector may not have judged yet although it is through: an unfinished frame and its successor."""


class InputSide:
    """The user's half of one session."""

    def __init__(self, core: Core, output: OutputSide) -> None:
        """Begin with nothing heard."""
        self._core = core
        self._output = output
        self._buffer = InputBuffer(core.capabilities.input_rate_hz)
        self._endpoint = EndpointState()
        self._generation = 0
        self._judged_ms = 0.0
        self._item_id: str | None = None
        self._start_ms = 0.0
        self._floor_ms = 0.0
        self._tail = False
        self._deferred: InputAudioBufferCommit | None = None
        self._transcripts: dict[str, TranscriptState] = {}

    @property
    def _vad(self) -> ServerVad | None:
        vad = self._core.config.turn_detection
        return vad if isinstance(vad, ServerVad) else None

    @property
    def _streams(self) -> bool:
        return self._core.capabilities.turn_policy is TurnPolicy.MODEL

    # -- audio --------------------------------------------------------------------------------------------------------

    def append(self, command: InputAudioBufferAppend) -> None:
        """More audio, already 16-bit mono PCM at the model's input rate.

        Raises:
            DuplexError: there is no audio in it, pictures that the model cannot see, or a turn beyond all measure.
        """
        core = self._core
        if not command.audio:
            raise refuse(ErrorCode.EMPTY_AUDIO, "audio is empty; append at least one sample", param="audio")
        if command.video_frames and not core.capabilities.video_input:
            message = "the served model cannot see; leave video_frames out"
            raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, message, param="video_frames")
        kept = self._vad is None and not self._streams
        if kept and self._buffer.duration_ms + core.input_ms(command.audio) > MAX_BUFFER_MS:
            message = f"the input buffer holds {MAX_BUFFER_MS / 1000:.0f} s already; commit or clear it"
            raise refuse(ErrorCode.RESOURCE_EXHAUSTED, message, param="audio")
        start_ms = self._buffer.end_ms
        self._buffer.append(command.audio)
        self._trim()
        core.tell(AudioArrived(pcm=command.audio, start_ms=start_ms, fence=core.fence, is_speech=command.is_speech))
        for frame in command.video_frames:
            core.tell(ImageArrived(data=frame.data, at_ms=start_ms + (frame.at_ms or 0.0), fence=core.fence))
        if self._vad is not None:
            core.perform(Detect(pcm=command.audio, generation=self._generation))
            if core.lanes.hearing is not Hearing.QUIET:
                self._watch_stall()

    def _trim(self) -> None:
        end_ms = self._buffer.end_ms
        if self._streams:
            self._buffer.drop_before(end_ms - STREAM_KEEP_MS)
        elif self._vad is not None and self._core.lanes.hearing is Hearing.QUIET:
            self._buffer.drop_before(end_ms - QUIET_KEEP_MS - self._vad.prefix_padding_ms)

    def _watch_stall(self) -> None:
        vad = self._vad
        patience = max(STALL_MS, 2.0 * vad.silence_duration_ms) if vad is not None else STALL_MS
        self._core.set_timer(STALL_TIMER, self._core.now_ms + patience)

    # -- the detector -------------------------------------------------------------------------------------------------

    def frames(self, event: SpeechFrames) -> None:
        """Verdicts of the detector, one after the other, so that one batch may hold the end of a turn and the next start."""
        vad = self._vad
        if vad is None or event.generation != self._generation:
            return
        settings = EndpointSettings(threshold=vad.threshold, silence_ms=vad.silence_duration_ms)
        for frame in event.frames:
            if event.generation != self._generation:
                return
            self._judged_ms = frame.start_ms + frame.duration_ms
            self._endpoint, found = follow(self._endpoint, frame, settings)
            if found is None:
                continue
            match found.verdict:
                case Verdict.STARTED:
                    self._speech_began(vad, found.at_ms)
                case Verdict.PAUSED:
                    self._speech_paused(vad, found.at_ms)
                case Verdict.RESUMED:
                    self._speech_resumed()
                case Verdict.STOPPED:
                    self._turn_over(found.at_ms)
        if self._deferred is not None and self._all_judged():
            self.settle_commit()

    def _speech_began(self, vad: ServerVad, at_ms: float) -> None:
        core, output = self._core, self._output
        core.lanes.move(Hearing, Trigger.SPEECH)
        item_id = core.new_id("item")
        self._item_id = item_id
        self._start_ms = max(at_ms - vad.prefix_padding_ms, self._buffer.start_ms, self._floor_ms)
        self._tail = False
        core.emit(SpeechStarted(audio_start_ms=int(self._start_ms), item_id=item_id))
        if vad.interrupt_response and output.audible:
            response = output.response
            core.emit(
                OverlapDecision(
                    decision=OverlapVerdict.INTERRUPTION,
                    audio_ms=int(at_ms),
                    epoch=core.fence.epoch,
                    response_id=response.id if response else None,
                )
            )
            output.interrupt(StatusReason.TURN_DETECTED)
        output.user_speaks()
        core.tell(
            SpeechBegan(
                item_id=item_id,
                start_ms=self._start_ms,
                pcm=self._buffer.cut(self._start_ms, self._buffer.end_ms),
                fence=core.fence,
            )
        )
        self._watch_stall()

    def _speech_paused(self, vad: ServerVad, at_ms: float) -> None:
        core = self._core
        core.lanes.move(Hearing, Trigger.SILENCE)
        remaining = vad.silence_duration_ms - (self._judged_ms - at_ms)
        core.tell(SpeechPaused(item_id=self._require_item(), at_ms=at_ms, remaining_ms=remaining, fence=core.fence))

    def _speech_resumed(self) -> None:
        core = self._core
        core.lanes.move(Hearing, Trigger.SPEECH)
        core.tell(SpeechResumed(item_id=self._require_item(), fence=core.fence))

    def _turn_over(self, at_ms: float) -> None:
        """The utterance ended at ``at_ms``: it is a turn, unless the model takes its turns itself."""
        core = self._core
        item_id = self._require_item()
        core.lanes.move(Hearing, Trigger.TURN_OVER)
        core.set_timer(STALL_TIMER, None)
        core.emit(SpeechStopped(audio_end_ms=int(at_ms), item_id=item_id))
        self._item_id = None
        if self._streams:
            self._transcripts.pop(item_id, None)
            core.tell(SpeechDropped(item_id=item_id, fence=core.fence))
            return
        self._tail = True
        vad = self._vad
        self._commit(item_id, self._start_ms, min(at_ms + TAIL_MS, self._buffer.end_ms))
        if vad is None or vad.create_response:
            self._output.open_or_queue(ResponseCause.COMMIT)

    def _require_item(self) -> str:
        assert self._item_id is not None, "speech has an item id from its first frame on"
        return self._item_id

    def stalled(self) -> None:
        """The microphone stopped in mid-speech: what was said so far is the turn."""
        if self._core.lanes.hearing is not Hearing.QUIET:
            until_ms = self._endpoint.spoken_until_ms
            self._reset_detector()
            self._turn_over(until_ms)

    def idle(self) -> None:
        """Nobody spoke for the idle timeout: the model is asked to."""
        core = self._core
        if core.lanes.hearing is not Hearing.QUIET or self._output.response is not None or core.playback:
            return
        now_ms = self._buffer.end_ms
        item_id = core.new_id("item")
        core.emit(InputTimeoutTriggered(audio_start_ms=int(now_ms), audio_end_ms=int(now_ms), item_id=item_id))
        self._commit(item_id, now_ms, now_ms)
        self._output.open(ResponseCause.IDLE)

    def _reset_detector(self) -> None:
        self._generation += 1
        self._endpoint = EndpointState()
        self._judged_ms = self._buffer.end_ms
        if self._vad is not None:
            self._core.perform(ResetDetector(generation=self._generation, start_ms=self._buffer.end_ms))

    # -- commit and clear ---------------------------------------------------------------------------------------------

    def commit(self, command: InputAudioBufferCommit) -> None:
        """``input_audio_buffer.commit``. Waits for the detector's verdict on what it has not judged yet.

        Raises:
            DuplexError: there is nothing to commit.
        """
        if self._buffer.duration_ms <= 0.0:
            message = "the input audio buffer is empty; append audio before you commit"
            raise refuse(ErrorCode.INPUT_AUDIO_BUFFER_COMMIT_EMPTY, message)
        if command.is_speech is False:
            self.clear()
            return
        self._deferred = command
        if self._vad is None or self._streams or self._all_judged():
            self.settle_commit()

    def _all_judged(self) -> bool:
        return self._judged_ms >= self._buffer.end_ms - FRAME_SLACK_MS

    def settle_commit(self) -> None:
        """Carry out a commit that waited, with what is known now. Called before any later command is carried out."""
        command, self._deferred = self._deferred, None
        if command is None:
            return
        core = self._core
        end_ms = self._buffer.end_ms
        if end_ms <= self._buffer.start_ms:
            return
        wanted = bool(command.response_create)
        if core.lanes.hearing is not Hearing.QUIET and not self._streams:
            item_id = self._require_item()
            core.lanes.move(Hearing, Trigger.TURN_OVER)
            core.set_timer(STALL_TIMER, None)
            core.emit(SpeechStopped(audio_end_ms=int(end_ms), item_id=item_id))
            self._item_id = None
            start_ms = self._start_ms
            wanted = wanted or (self._vad is not None and self._vad.create_response)
        elif self._tail and self._all_judged():
            self.clear()
            return
        else:
            item_id, start_ms = core.new_id("item"), self._buffer.start_ms
        if self._vad is not None and not self._streams:
            self._reset_detector()
        self._tail = False
        self._commit(item_id, start_ms, end_ms)
        if wanted:
            self._output.open_or_queue(ResponseCause.COMMIT)

    def _commit(self, item_id: str, start_ms: float, end_ms: float) -> None:
        core = self._core
        pcm = self._buffer.cut(start_ms, end_ms)
        self._buffer.drop_before(end_ms)
        self._floor_ms = end_ms
        known = self._transcripts.get(item_id)
        transcript = known.last if known is not None and known.final else None
        item = MessageItem(
            id=item_id,
            role=Role.USER,
            content=(InputAudio(audio=pcm, transcript=transcript),),
            status=ItemStatus.COMPLETED,
            object="realtime.item",
        )
        previous = core.history.insert(Entry(item=item, speech=Speech(audio_ms=end_ms - start_ms, complete=True)))
        core.emit(InputCommitted(item_id=item_id, previous_item_id=previous))
        announce(core, visible(item), previous)
        if known is not None and known.final:
            self._completed(item_id, known.last)
        core.tell(ToldCommitted(item_id=item_id, pcm=pcm, start_ms=start_ms, end_ms=end_ms, fence=core.fence))

    def clear(self) -> None:
        """Forget the user's unfinished input."""
        core = self._core
        self._buffer.clear()
        self._floor_ms = self._buffer.end_ms
        self._tail = False
        self._deferred = None
        self._drop_speech()
        self._reset_detector()
        core.emit(InputCleared())

    def _drop_speech(self) -> None:
        core = self._core
        item_id, self._item_id = self._item_id, None
        core.lanes.move(Hearing, Trigger.DROP)
        core.set_timer(STALL_TIMER, None)
        if item_id is not None:
            self._transcripts.pop(item_id, None)
            core.tell(SpeechDropped(item_id=item_id, fence=core.fence))

    def reconfigured(self, before: SessionConfig) -> None:
        """Turn detection may have been turned on or off."""
        was_on, is_on = before.turn_detection is not None, self._core.config.turn_detection is not None
        if was_on == is_on:
            return
        if not is_on:
            self._drop_speech()
        self._tail = False
        self._reset_detector()

    # -- transcripts --------------------------------------------------------------------------------------------------

    def transcript(self, decision: UserTranscript) -> None:
        """What the user said, as far as it is known."""
        core = self._core
        item_id = decision.item_id
        entry = core.history.find(item_id)
        state = self._transcripts.get(item_id, TranscriptState())
        if (entry is None and item_id != self._item_id) or state.final:
            return
        state, delta = follow_transcript(state, decision.text, final=decision.final)
        self._transcripts[item_id] = state
        if delta and core.config.transcription is not None:
            core.emit(TranscriptionDelta(item_id=item_id, content_index=0, delta=delta))
        if entry is not None:
            core.history.transcribe(item_id, decision.text)
            if decision.final:
                self._completed(item_id, decision.text)

    def _completed(self, item_id: str, transcript: str) -> None:
        core = self._core
        if core.config.transcription is None:
            return
        entry = core.history.find(item_id)
        seconds = entry.speech.audio_ms / 1000.0 if entry is not None else 0.0
        core.emit(
            TranscriptionCompleted(
                item_id=item_id, content_index=0, transcript=transcript, usage=TranscriptUsage(seconds=seconds)
            )
        )

    def transcript_failed(self, decision: TranscriptFailed) -> None:
        """What the user said could not be recognised."""
        core = self._core
        state = self._transcripts.get(decision.item_id, TranscriptState())
        if core.history.find(decision.item_id) is None or state.final:
            return
        self._transcripts[decision.item_id] = msgspec.structs.replace(state, final=True)
        if core.config.transcription is not None:
            core.emit(TranscriptionFailed(item_id=decision.item_id, content_index=0, error=decision.error))

    def forget(self, item_id: str) -> None:
        """An item was deleted."""
        self._transcripts.pop(item_id, None)


def announce(core: Core, item: Item, previous: str | None) -> None:
    """Tell the client that an item which is whole entered the history, in the GA and the beta spelling."""
    core.emit(
        ItemAdded(item=item, previous_item_id=previous),
        ItemCreated(item=item, previous_item_id=previous),
        ItemDone(item=item, previous_item_id=previous),
    )
