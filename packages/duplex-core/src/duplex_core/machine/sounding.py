"""The assistant's sound at the client: what of it was heard, what of that is history, and when nobody speaks any more.

Used by the output side and by the edits of the session machine. Moves the sound's lane and holds its timers; opens and ends
no response.
"""

from __future__ import annotations

from duplex_core.config import ServerVad, SessionConfig
from duplex_core.errors import ErrorCode, refuse
from duplex_core.events import ItemTruncated, PlaybackAcknowledged
from duplex_core.items import Item
from duplex_core.ledger import CommitPolicy
from duplex_core.machine.core import Core
from duplex_core.machine.heard import Track
from duplex_core.machine.history import truncate
from duplex_core.machine.response import CONTENT_INDEX
from duplex_core.machine.table import Answer, Hearing, Sound, Trigger
from duplex_core.model import HistoryChanged

PLAYBACK_TIMER = "playback"
IDLE_TIMER = "idle"


class Sounding:
    """Playback of one session."""

    def __init__(self, core: Core) -> None:
        """Begin silent."""
        self._core = core
        self._armed_ms: float | None = None
        self._quiet_ms: float | None = None

    # -- sound --------------------------------------------------------------------------------------------------------

    def play(self, track: Track | None, response_id: str, item_id: str, ms: float) -> Track:
        """``ms`` more of an answer's sound were made and go out now; ``track`` is ``None`` for its first."""
        core = self._core
        if track is None:
            track = Track(response_id=response_id, item_id=item_id)
            core.playback.begin(track)
        core.playback.send(track, ms, core.now_ms)
        core.lanes.move(Sound, Trigger.AUDIO)
        return track

    def drain(self) -> None:
        """Settle the answers that have been heard to their end by now."""
        core = self._core
        due_ms = core.playback.due_ms
        if due_ms is not None and due_ms <= core.now_ms:
            for track in core.playback.drained(core.now_ms):
                self._settle(track)
            due_ms = core.playback.due_ms
        self._arm(due_ms)
        if core.lanes.sound is Sound.SOUNDING and not core.playback:
            core.lanes.move(Sound, Trigger.DRAINED)
            self.arm_idle()

    def timer_due(self) -> None:
        """The playback timer is spent."""
        self._armed_ms = None
        self.drain()

    def _arm(self, due_ms: float | None) -> None:
        if due_ms != self._armed_ms:
            self._armed_ms = due_ms
            self._core.set_timer(PLAYBACK_TIMER, due_ms)

    def _settle(self, track: Track) -> None:
        """The answer's sound is over and nobody interrupted it."""
        core = self._core
        acknowledged = core.config.commit_policy is CommitPolicy.ACK_ONLY
        if not acknowledged:
            track.ledger = track.ledger.play(track.ledger.sent_ms).commit(track.ledger.sent_ms)
        entry = core.history.find(track.item_id)
        if entry is not None:
            entry.settled = True
            entry.kept_ms = track.ledger.committed_ms if acknowledged else None

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledge(
        self, played_ms: float, *, response_id: str | None, item_id: str | None, committed_ms: float | None
    ) -> Track | None:
        """The client tells what was heard; the answer that it is about. One that was superseded changes nothing.

        Raises:
            DuplexError: a time that cannot be.
        """
        _check_time("played_ms", played_ms)
        _check_time("committed_ms", committed_ms)
        core = self._core
        track = core.playback.find(response_id, item_id)
        if track is None:
            return None
        core.playback.acknowledge(track, played_ms, core.now_ms)
        until_ms = track.ledger.played_ms if committed_ms is None else committed_ms
        track.ledger = track.ledger.commit(until_ms)
        entry = core.history.find(track.item_id)
        if entry is not None and entry.settled and entry.kept_ms is not None:
            entry.kept_ms = max(entry.kept_ms, track.ledger.committed_ms)
        core.emit(PlaybackAcknowledged(playback=track.ledger, response_id=track.response_id, item_id=track.item_id))
        return track

    def note(self, played_ms: float) -> None:
        """The client tells, in passing, how much of the newest answer was heard.

        Raises:
            DuplexError: a time that cannot be.
        """
        _check_time("played_ms", played_ms)
        core = self._core
        if core.playback:
            newest = core.playback.tracks[-1]
            core.playback.acknowledge(newest, played_ms, core.now_ms)
            newest.ledger = newest.ledger.commit(newest.ledger.played_ms)

    def heard_ms(self, track: Track) -> float:
        """How much of an answer counts as heard if it stops now."""
        if self._core.config.commit_policy is CommitPolicy.ACK_ONLY:
            return track.ledger.committed_ms
        return track.heard_ms(self._core.now_ms)

    # -- stopping -----------------------------------------------------------------------------------------------------

    def stop(self) -> list[Track]:
        """Everything that still sounds stops; the answers that it was."""
        core = self._core
        over = core.playback.clear()
        if core.lanes.sound is Sound.SOUNDING:
            core.lanes.move(Sound, Trigger.CLEARED)
        self._arm(core.playback.due_ms)
        return over

    def stop_one(self, track: Track, heard_ms: float) -> None:
        """The client plays one answer, which is wholly made, no further."""
        self._core.playback.forget(track, self._core.now_ms)
        self.cut(track.item_id, min(heard_ms, track.ledger.sent_ms))
        self.drain()
        self.tell_history()

    def cut(self, item_id: str, heard_ms: float) -> None:
        """What lies beyond ``heard_ms`` of an answer leaves the history."""
        core = self._core
        entry = core.history.find(item_id)
        if entry is None:
            return
        truncate(entry, heard_ms)
        core.emit(ItemTruncated(item_id=entry.id, content_index=CONTENT_INDEX, audio_end_ms=int(entry.kept_ms or 0.0)))

    # -- history ------------------------------------------------------------------------------------------------------

    def limits(self) -> dict[str, float | None]:
        """How far the answers that may still be heard count as heard by now; ``None`` is all of it."""
        acknowledged = self._core.config.commit_policy is CommitPolicy.ACK_ONLY
        return {
            track.item_id: None if track.generated and not acknowledged else self.heard_ms(track)
            for track in self._core.playback.tracks
        }

    def heard_history(self) -> tuple[Item, ...]:
        """The history as a model is told it: answers only as far as they were heard, or count as heard."""
        return self._core.history.for_model(self.limits())

    def tell_history(self) -> None:
        """Tell the model that the history was edited."""
        self._core.tell(HistoryChanged(history=self.heard_history(), fence=self._core.fence))

    # -- nobody speaks ------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Somebody speaks, or is about to."""
        if self._quiet_ms is not None:
            self._quiet_ms = None
            if self._idle_ms is not None:
                self._core.set_timer(IDLE_TIMER, None)

    def arm_idle(self) -> None:
        """An answer is over: from the end of the last sound on nobody speaks, unless somebody does."""
        core = self._core
        if core.lanes.answer is Answer.NONE and core.lanes.hearing is Hearing.QUIET:
            self._quiet_ms = max(core.now_ms, core.playback.ends_at_ms)
            if self._idle_ms is not None:
                core.set_timer(IDLE_TIMER, self._quiet_ms + self._idle_ms)

    @property
    def _idle_ms(self) -> int | None:
        vad = self._core.server_vad
        return vad.idle_timeout_ms if vad is not None else None

    def reconfigured(self, before: SessionConfig) -> None:
        """The idle timeout may have changed, or be gone."""
        vad = before.turn_detection
        was_ms = vad.idle_timeout_ms if isinstance(vad, ServerVad) else None
        if self._quiet_ms is not None and was_ms != self._idle_ms:
            due_ms = None if self._idle_ms is None else max(self._core.now_ms, self._quiet_ms + self._idle_ms)
            self._core.set_timer(IDLE_TIMER, due_ms)


def _check_time(name: str, value: float | None) -> None:
    if value is not None and not 0.0 <= value < 1e9:
        message = f"{name} is {value}; it must be a time from 0 on, in milliseconds"
        raise refuse(ErrorCode.INVALID_VALUE, message, param=name)
