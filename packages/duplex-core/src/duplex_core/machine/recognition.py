"""What the user was understood to say: the client's transcript events, and the words in the history.

Owned by the input side of the session machine; fed with the model's decisions, which come before an item is committed, after
it, or not at all. Carries no fence: an interrupted answer does not touch what the user says.
"""

from __future__ import annotations

import msgspec

from duplex_core.errors import ErrorInfo
from duplex_core.events import TranscriptionCompleted, TranscriptionDelta, TranscriptionFailed, TranscriptUsage
from duplex_core.items import InputAudio, MessageItem
from duplex_core.machine.core import Core
from duplex_core.machine.history import Entry
from duplex_core.machine.transcript import TranscriptState, follow_transcript
from duplex_core.model import TranscriptFailed, UserTranscript


class Understood(msgspec.Struct, frozen=True, kw_only=True):
    """What is understood of speech under way: ``None`` when nothing was tried yet or it failed, empty when there are no words.

    ``whole`` says that it came after the speaker paused, so that it is of all that was said.
    """

    text: str | None
    whole: bool


class Recognition:
    """Transcripts of one session's input, by item."""

    def __init__(self, core: Core) -> None:
        """Begin with nothing understood."""
        self._core = core
        self._states: dict[str, TranscriptState] = {}
        self.hushed = False
        """While set, nothing is told of the speech under way: the client does not know of it yet."""
        self._whole = False

    def final(self, item_id: str) -> str | None:
        """The whole transcript of an item, if it is known already."""
        state = self._states.get(item_id)
        return state.last if state is not None and state.final and state.error is None else None

    def so_far(self, item_id: str) -> Understood:
        """What is understood of the speech under way."""
        state = self._states.get(item_id)
        text = state.last if state is not None and state.error is None else None
        return Understood(text=text, whole=self._whole)

    def paused(self) -> None:
        """The speaker fell silent: what was understood so far may lack the end."""
        self._whole = False

    def heard(self, decision: UserTranscript, pending_id: str | None) -> None:
        """More was understood of an item, or of the speech that will be the item ``pending_id``."""
        core = self._core
        item_id = decision.item_id
        state = self._states.get(item_id, TranscriptState())
        entry = self._entry(item_id)
        if state.final or (entry is None and item_id != pending_id):
            return
        self._whole = self._whole or item_id == pending_id
        if self.hushed and item_id == pending_id:
            self._states[item_id] = msgspec.structs.replace(state, last=decision.text, final=decision.final)
            return
        state, delta = follow_transcript(state, decision.text, final=decision.final)
        self._states[item_id] = state
        if delta and core.config.transcription is not None:
            core.emit(TranscriptionDelta(item_id=item_id, content_index=_index(entry), delta=delta))
        if entry is not None:
            core.history.transcribe(item_id, decision.text)
            self._tell_end(entry, state)

    def failed(self, decision: TranscriptFailed, pending_id: str | None) -> None:
        """Nothing more will be understood."""
        item_id = decision.item_id
        state = self._states.get(item_id, TranscriptState())
        entry = self._entry(item_id)
        if state.final or (entry is None and item_id != pending_id):
            return
        state = msgspec.structs.replace(state, final=True, error=decision.error)
        self._states[item_id] = state
        if entry is not None:
            self._tell_end(entry, state)

    def committed(self, entry: Entry) -> None:
        """The speech became an item: tell what was known to its end before."""
        state = self._states.get(entry.id)
        if state is not None:
            self._tell_end(entry, state)

    def forget(self, item_id: str) -> None:
        """The item, or the speech that would have been one, is gone."""
        self._states.pop(item_id, None)

    def _entry(self, item_id: str) -> Entry | None:
        """The history's entry of this id, if the user spoke it."""
        entry = self._core.history.find(item_id)
        item = entry.item if entry is not None else None
        spoken = isinstance(item, MessageItem) and any(isinstance(part, InputAudio) for part in item.content)
        return entry if spoken else None

    def _tell_end(self, entry: Entry, state: TranscriptState) -> None:
        core = self._core
        if not state.final or core.config.transcription is None:
            return
        error: ErrorInfo | None = state.error
        if error is not None:
            core.emit(TranscriptionFailed(item_id=entry.id, content_index=_index(entry), error=error))
            return
        usage = TranscriptUsage(seconds=entry.speech.audio_ms / 1000.0)
        core.emit(
            TranscriptionCompleted(item_id=entry.id, content_index=_index(entry), transcript=state.last, usage=usage)
        )


def _index(entry: Entry | None) -> int:
    """Which content part holds the speech; what is not committed yet will have one part."""
    if entry is None or not isinstance(entry.item, MessageItem):
        return 0
    return next(index for index, part in enumerate(entry.item.content) if isinstance(part, InputAudio))
