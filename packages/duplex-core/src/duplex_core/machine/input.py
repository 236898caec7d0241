"""The input side of the session machine: the user's audio, and where turns begin and end in it.

Owns the input buffer and the utterance that is under way. Used by :class:`~duplex_core.machine.session.SessionMachine`; asks
the output side to interrupt and to open turns.
"""

from __future__ import annotations

import msgspec

from duplex_core.commands import InputAudioBufferAppend, InputAudioBufferCommit
from duplex_core.config import ServerVad, SessionConfig
from duplex_core.errors import ErrorCode, refuse
from duplex_core.events import (
    InputCleared,
    InputTimeoutTriggered,
    OverlapVerdict,
    SpeechStarted,
    SpeechStopped,
    StatusReason,
)
from duplex_core.machine.core import Core
from duplex_core.machine.ear import Ear
from duplex_core.machine.endpoint import Endpoint, Verdict
from duplex_core.machine.io import EndOfTurnVerdict, SpeechFrames
from duplex_core.machine.output import OutputSide
from duplex_core.machine.overlapping import Overlapping
from duplex_core.machine.pausing import JUDGED_MS, Pausing
from duplex_core.machine.recognition import Recognition
from duplex_core.machine.table import Hearing, Trigger
from duplex_core.machine.taking import Taking
from duplex_core.model import (
    AudioArrived,
    ImageArrived,
    InputDropped,
    ResponseCause,
    SpeechBegan,
    SpeechDropped,
    SpeechPaused,
    SpeechResumed,
    UserTranscript,
)

STALL_TIMER = "input stall"
STALL_MS = 2000.0
"""Without any audio for this long in mid-speech (or twice the silence that ends a turn, if longer) the utterance is over."""
COMMIT_TIMER = "commit"
COMMIT_MS = 1000.0
"""How long a commit waits for the detector's verdict before it is carried out with what is known."""
TAIL_MS = 160.0
"""Audio after the last speech frame that still belongs to the utterance: a soft consonant lies below the threshold."""
MAX_BUFFER_MS = 600_000.0
"""The longest turn; also bounds the memory of one session."""


class Deferred(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that waits for the detector's verdict on the audio up to ``end_ms``, which is what it commits."""

    command: InputAudioBufferCommit
    end_ms: float


class InputSide:
    """The user's half of one session."""

    def __init__(self, core: Core, output: OutputSide) -> None:
        """Begin with nothing heard."""
        self._core = core
        self._output = output
        self._ear = Ear(core)
        self._overlapping = Overlapping(core, output)
        self._pausing = Pausing(core)
        self.recognition = Recognition(core)
        self._taking = Taking(core, self.recognition)
        self._buffer = self._taking.buffer
        self.pending_id: str | None = None
        """Id that the utterance under way will have as an item."""
        self._start_ms = 0.0
        self._paused_ms = 0.0
        self._tail = False
        self._deferred: Deferred | None = None

    # -- audio --------------------------------------------------------------------------------------------------------

    def append(self, command: InputAudioBufferAppend) -> None:
        """More audio, already 16-bit mono PCM at the model's input rate.

        Raises:
            DuplexError: there is no audio in it, pictures that the model cannot see, or a turn beyond all measure.
        """
        core = self._core
        pcm, pictures = command.audio, command.video_frames
        if not pcm and not pictures:
            raise refuse(ErrorCode.EMPTY_AUDIO, "audio is empty; append at least one sample", param="audio")
        if len(pcm) % 2:
            raise refuse(ErrorCode.INVALID_AUDIO, "audio ends in the middle of a sample", param="audio")
        if pictures and not core.capabilities.video_input:
            message = "the served model cannot see; leave video_frames out"
            raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, message, param="video_frames")
        if not core.streams and self._buffer.duration_ms + core.input_ms(pcm) > MAX_BUFFER_MS:
            message = f"the input buffer cannot hold more than {MAX_BUFFER_MS / 1000:.0f} s; commit or clear it"
            raise refuse(ErrorCode.RESOURCE_EXHAUSTED, message, param="audio")
        start_ms = core.input_end_ms
        if pcm:
            self._buffer.append(pcm)
            core.input_end_ms = self._buffer.end_ms
            if self._deferred is None:
                self._taking.trim(self._ear.judged_ms)
            core.tell(AudioArrived(pcm=pcm, start_ms=start_ms, fence=core.fence, is_speech=command.is_speech))
        for picture in pictures:
            core.tell(ImageArrived(data=picture.data, at_ms=start_ms + (picture.at_ms or 0.0), fence=core.fence))
        vad = core.server_vad
        if pcm and vad is not None:
            self._ear.listen(pcm)
            if core.lanes.hearing is not Hearing.QUIET:
                _watch_stall(core, vad)

    # -- the detector -------------------------------------------------------------------------------------------------

    def frames(self, event: SpeechFrames) -> None:
        """Verdicts of the detector, one after the other, so that one batch may hold the end of a turn and the next start."""
        for frame in event.frames:
            vad = self._core.server_vad
            if vad is None or event.generation != self._ear.generation:
                return
            found = self._ear.judge(frame, vad)
            if found is not None:
                self._judged(vad, found)
            self.reconsider()
            if self._deferred is not None and self._ear.has_judged(self._deferred.end_ms):
                self.settle_commit()

    def _judged(self, vad: ServerVad, found: Endpoint) -> None:
        match found.verdict:
            case Verdict.STARTED:
                self._speech_began(vad, found.at_ms)
            case Verdict.PAUSED:
                self._speech_paused(vad, found.at_ms)
            case Verdict.RESUMED if (
                self._core.streams and not self._overlapping.question and self._overlapping.concerns(vad)
            ):
                # The model took its turn in the pause and is being talked over: what is said from here on is judged anew.
                self._turn_over(vad, self._paused_ms)
                self._ear.restart(found.at_ms, self._buffer.cut(found.at_ms, self._buffer.end_ms))
            case Verdict.RESUMED:
                self._core.lanes.move(Hearing, Trigger.SPEECH)
                self._core.tell(SpeechResumed(item_id=_known(self.pending_id), fence=self._core.fence))
            case Verdict.STOPPED:
                self._turn_over(vad, found.at_ms)

    def _speech_began(self, vad: ServerVad, at_ms: float) -> None:
        core, output = self._core, self._output
        core.lanes.move(Hearing, Trigger.SPEECH)
        item_id = self.pending_id = core.new_id("item")
        self._start_ms = max(at_ms - vad.prefix_padding_ms, self._buffer.start_ms, self._taking.floor_ms)
        self._tail = False
        over = self._overlapping.concerns(vad)
        self.recognition.hushed = over and self._overlapping.ask(at_ms)
        if not self.recognition.hushed:
            self._announce_speech(at_ms if over else None)
        output.sounding.rest()
        pcm = self._buffer.cut(self._start_ms, self._buffer.end_ms)
        core.tell(SpeechBegan(item_id=item_id, start_ms=self._start_ms, pcm=pcm, fence=core.fence))
        _watch_stall(core, vad)

    def _announce_speech(self, interrupts_at_ms: float | None) -> None:
        """Tell the client of the speech; with a time, that it interrupts the answer, which stops."""
        self._core.emit(SpeechStarted(audio_start_ms=int(self._start_ms), item_id=_known(self.pending_id)))
        if interrupts_at_ms is not None:
            self._overlapping.tell(OverlapVerdict.INTERRUPTION, interrupts_at_ms, self._output.audible_id)
            self._output.interrupt(StatusReason.TURN_DETECTED)

    def reconsider(self, *, ended: bool = False) -> None:
        """Judge the speech over the answer with what is known now; called when more is."""
        overlap = self._overlapping
        if overlap.question is None:
            return
        spoken_until_ms, paused = self._ear.spoken_until_ms, self._core.lanes.hearing is Hearing.PAUSED
        silent_ms = self._ear.judged_ms - spoken_until_ms if paused else 0.0
        verdict = overlap.judge(
            spoken_until_ms, silent_ms, self.recognition.so_far(_known(self.pending_id)), ended=ended
        )
        acknowledges = verdict is OverlapVerdict.BACKCHANNEL
        late = acknowledges and overlap.late
        if (
            late
            or (acknowledges and overlap.early)
            or overlap.answered_by_others
            or verdict is OverlapVerdict.INTERRUPTION
        ):
            self._take_turn(late=late)
        elif verdict is not None:
            overlap.tell(verdict, overlap.question.onset_ms, overlap.question.response_id)
            self._let_pass()

    def _take_turn(self, *, late: bool = False) -> None:
        """The speech over the answer is a turn: tell of it, and stop the answer unless that has been done, or it is over.

        An acknowledgement at the very end of an answer, ``late``, may well be the answer to it; and one that was spoken before
        the answer was begun, in audio that came faster than it sounds or was judged late, cannot be about it.
        """
        over = late or not self._output.audible
        by_others = self._overlapping.answered_by_others
        question = self._overlapping.close(resume=over and not by_others)
        self.recognition.hushed = False
        if question is not None:
            self._announce_speech(None if over or by_others else question.onset_ms)

    def _let_pass(self) -> None:
        """The speech over the answer is no turn: the answer goes on, and what is said from here on is judged anew."""
        judged_ms = self._ear.judged_ms
        self._taking.floor_ms = max(self._taking.floor_ms, self._ear.spoken_until_ms)
        self._drop_speech()
        self._ear.restart(judged_ms, self._buffer.cut(judged_ms, self._buffer.end_ms))
        self._output.sounding.arm_idle()

    def _speech_paused(self, vad: ServerVad, at_ms: float) -> None:
        core = self._core
        core.lanes.move(Hearing, Trigger.SILENCE)
        self._paused_ms = at_ms
        self.recognition.paused()
        item_id, judged_ms = _known(self.pending_id), self._ear.judged_ms
        self._pausing.began(item_id, self._buffer.cut(max(self._start_ms, judged_ms - JUDGED_MS), judged_ms))
        remaining = max(0.0, vad.silence_duration_ms - (judged_ms - at_ms))
        core.tell(SpeechPaused(item_id=item_id, at_ms=at_ms, remaining_ms=remaining, fence=core.fence))

    def learn(self, known: EndOfTurnVerdict | UserTranscript) -> None:
        """More is known of the utterance under way; of a pause it may say that it has lasted long enough."""
        if isinstance(known, EndOfTurnVerdict):
            news = self._pausing.judged(known)
        else:
            news = self._pausing.heard(known.item_id, known.text)
        vad = self._core.server_vad
        if news and vad is not None and (found := self._ear.overdue(vad)) is not None:
            self._judged(vad, found)

    def _turn_over(self, vad: ServerVad, at_ms: float) -> None:
        """The utterance ended at ``at_ms``: it is a turn, unless it says nothing or the model takes its turns itself."""
        core = self._core
        self.reconsider(ended=True)
        if self.pending_id is None:
            return
        item_id = self._end_speech(at_ms)
        if core.streams:
            self.recognition.forget(item_id)
            core.tell(SpeechDropped(item_id=item_id, fence=core.fence))
            return
        self._tail = True
        tail_ms = min(TAIL_MS, vad.silence_duration_ms)
        self._taking.commit(item_id, self._start_ms, min(at_ms + tail_ms, self._buffer.end_ms))
        if vad.create_response:
            self._output.open_or_queue(ResponseCause.COMMIT)

    def _end_speech(self, at_ms: float) -> str:
        """The utterance is over; the id that was kept for it.

        A commit by hand may have taken its beginning, all of it even, before the detector came to it.
        """
        at_ms = max(at_ms, self._start_ms)
        item_id, self.pending_id = _known(self.pending_id), None
        self._taking.floor_ms = max(self._taking.floor_ms, at_ms)
        self._core.lanes.move(Hearing, Trigger.TURN_OVER)
        self._core.set_timer(STALL_TIMER, None)
        self._core.emit(SpeechStopped(audio_end_ms=int(at_ms), item_id=item_id))
        return item_id

    def stalled(self) -> None:
        """The microphone stopped in mid-speech: what was said so far is the turn, and what was not judged belongs to it."""
        vad = self._core.server_vad
        if vad is None or self._core.lanes.hearing is Hearing.QUIET:
            return
        end_ms = self._buffer.end_ms
        self.reconsider(ended=True)
        if self.pending_id is None:
            return
        until_ms = self._ear.spoken_until_ms if self._ear.has_judged(end_ms) else end_ms
        self._ear.restart(end_ms, b"")
        self._turn_over(vad, until_ms)

    def idle(self) -> None:
        """Nobody spoke for the idle timeout: the model is asked to."""
        core = self._core
        vad = core.server_vad
        if vad is None or vad.idle_timeout_ms is None or self._deferred is not None:
            return
        if core.lanes.hearing is not Hearing.QUIET or self._output.audible:
            return
        end_ms = self._buffer.end_ms
        start_ms = max(0.0, end_ms - vad.idle_timeout_ms)
        item_id = core.new_id("item")
        core.emit(InputTimeoutTriggered(audio_start_ms=int(start_ms), audio_end_ms=int(end_ms), item_id=item_id))
        self._taking.enter(item_id, b"", end_ms, end_ms)
        self._output.open(ResponseCause.IDLE)

    # -- commit and clear ---------------------------------------------------------------------------------------------

    def commit(self, command: InputAudioBufferCommit) -> None:
        """``input_audio_buffer.commit``. Waits for the detector's verdict on what it has not judged yet.

        Raises:
            DuplexError: there is nothing to commit, or the conversation has no room for it.
        """
        core = self._core
        if self._buffer.duration_ms <= 0.0:
            message = "the input audio buffer is empty; append audio before you commit"
            raise refuse(ErrorCode.INPUT_AUDIO_BUFFER_COMMIT_EMPTY, message)
        if command.is_speech is False:
            self.clear()
            return
        core.history.require_room()
        end_ms = self._buffer.end_ms
        self._deferred = Deferred(command=command, end_ms=end_ms)
        if core.server_vad is None or core.streams or self._ear.has_judged(end_ms):
            self.settle_commit()
        else:
            core.set_timer(COMMIT_TIMER, core.now_ms + COMMIT_MS)

    def settle_commit(self) -> None:
        """Carry out a commit that waited, with what is known now. Called before any later command is carried out."""
        deferred, self._deferred = self._deferred, None
        if deferred is None:
            return
        core, vad, end_ms = self._core, self._core.server_vad, deferred.end_ms
        detects = vad is not None and not core.streams
        if detects:
            core.set_timer(COMMIT_TIMER, None)
        wanted = bool(deferred.command.response_create)
        self._take_turn()
        if detects and core.lanes.hearing is not Hearing.QUIET and self._start_ms < end_ms:
            item_id, start_ms = self._end_speech(end_ms), self._start_ms
            wanted = wanted or (vad is not None and vad.create_response)
        elif end_ms <= self._buffer.start_ms or (self._tail and self._ear.has_judged(end_ms)):
            # The detector has committed already and heard nothing since: no turn is made of the silence. Its turn is answered,
            # if that is asked for and has not begun.
            self._taking.forget(end_ms)
            core.emit(InputCleared())
            _answer_once(self._output, wanted)
            return
        else:
            item_id, start_ms = core.new_id("item"), self._buffer.start_ms
        if detects and core.lanes.hearing is Hearing.QUIET:
            self._ear.restart(end_ms, self._buffer.cut(end_ms, self._buffer.end_ms))
        self._tail = False
        self._taking.commit(item_id, start_ms, end_ms)
        if wanted:
            self._output.open_or_queue(ResponseCause.COMMIT)

    def clear(self) -> None:
        """Forget the user's unfinished input."""
        self._taking.forget(self._buffer.end_ms)
        self._tail = False
        self._drop_speech()
        self._ear.restart(self._buffer.end_ms, b"")
        core = self._core
        if core.streams and core.configured:
            core.tell(InputDropped(fence=core.fence))
        core.emit(InputCleared())

    def _drop_speech(self) -> None:
        core = self._core
        self._overlapping.close(resume=True)
        self.recognition.hushed = False
        item_id, self.pending_id = self.pending_id, None
        core.lanes.move(Hearing, Trigger.DROP)
        if item_id is not None:
            core.set_timer(STALL_TIMER, None)
            self.recognition.forget(item_id)
            core.tell(SpeechDropped(item_id=item_id, fence=core.fence))

    def reconfigured(self, before: SessionConfig) -> None:
        """Turn detection may have been turned on or off."""
        was_on, vad = before.turn_detection is not None, self._core.server_vad
        if was_on == (vad is not None):
            return
        if vad is None:
            if self.pending_id is not None and self._overlapping.question is None:
                end_ms = max(self._start_ms, self._ear.spoken_until_ms)
                self._taking.floor_ms = max(self._taking.floor_ms, end_ms)
                self._core.emit(SpeechStopped(audio_end_ms=int(end_ms), item_id=self.pending_id))
            self._drop_speech()
        self._tail = False
        self._ear.restart(self._buffer.end_ms, b"")


def _answer_once(output: OutputSide, wanted: bool) -> None:
    """Have an answer made if it is ``wanted``, unless the one that is being made is it."""
    if wanted and output.response is None:
        output.open(ResponseCause.COMMIT)


def _known(item_id: str | None) -> str:
    assert item_id is not None, "speech has an item id from its first frame on"
    return item_id


def _watch_stall(core: Core, vad: ServerVad) -> None:
    """The user is speaking: more audio must come."""
    core.set_timer(STALL_TIMER, core.now_ms + max(STALL_MS, 2.0 * vad.silence_duration_ms))
