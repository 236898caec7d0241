"""The user's audio on its way into the history: the buffer, and the making of an item out of a part of it.

Owned by the input side of the session machine, which says from where to where. Knows no detector and opens no turn.
"""

from __future__ import annotations

from duplex_core.events import InputCommitted, ItemAdded, ItemCreated, ItemDone
from duplex_core.items import InputAudio, Item, ItemStatus, MessageItem, Role
from duplex_core.machine.buffer import InputBuffer
from duplex_core.machine.core import Core
from duplex_core.machine.heard import Speech
from duplex_core.machine.history import Entry, visible
from duplex_core.machine.recognition import Recognition
from duplex_core.machine.table import Hearing
from duplex_core.model import InputCommitted as ToldCommitted

QUIET_KEEP_MS = 10_000.0
"""Audio kept while a detector hears nothing, for a commit by hand of what it did not notice."""
STREAM_KEEP_MS = 60_000.0
"""Audio kept for a commit when the model hears everything anyway."""


class Taking:
    """The user's audio of one session that is not an item yet.

    Attributes:
        buffer: the audio.
        floor_ms: nothing before it belongs to an utterance that is still to come.
    """

    def __init__(self, core: Core, recognition: Recognition) -> None:
        """Begin with no audio."""
        self._core = core
        self._recognition = recognition
        self.buffer = InputBuffer(core.capabilities.input_rate_hz)
        self.floor_ms = 0.0

    def trim(self, judged_ms: float) -> None:
        """Forget old audio that no turn can need. What the detector has not judged yet, after ``judged_ms``, is always kept."""
        core, end_ms = self._core, self.buffer.end_ms
        if core.streams:
            self.buffer.drop_before(end_ms - STREAM_KEEP_MS)
        elif core.server_vad is not None and core.lanes.hearing is Hearing.QUIET:
            self.buffer.drop_before(min(end_ms, judged_ms) - QUIET_KEEP_MS - core.server_vad.prefix_padding_ms)

    def forget(self, until_ms: float) -> None:
        """Forget the audio up to ``until_ms``."""
        self.buffer.drop_before(until_ms)
        self.floor_ms = max(self.floor_ms, until_ms)

    def commit(self, item_id: str, start_ms: float, end_ms: float) -> None:
        """Make the audio an item, and forget it and what lies before it."""
        pcm = self.buffer.cut(start_ms, end_ms)
        self.forget(end_ms)
        self.enter(item_id, pcm, start_ms, end_ms)

    def enter(self, item_id: str, pcm: bytes, start_ms: float, end_ms: float) -> None:
        """Put an item of the user's audio into the history."""
        core = self._core
        part = InputAudio(audio=pcm, transcript=self._recognition.final(item_id))
        item = MessageItem(
            id=item_id, role=Role.USER, content=(part,), status=ItemStatus.COMPLETED, object="realtime.item"
        )
        entry = Entry(item=item, speech=Speech(audio_ms=end_ms - start_ms, complete=True))
        previous = core.history.insert(entry)
        core.emit(InputCommitted(item_id=item_id, previous_item_id=previous))
        announce(core, visible(item), previous)
        self._recognition.committed(entry)
        core.tell(ToldCommitted(item_id=item_id, pcm=pcm, start_ms=start_ms, end_ms=end_ms, fence=core.fence))


def announce(core: Core, item: Item, previous: str | None) -> None:
    """Tell the client that an item which is whole entered the history, in the GA and the beta spelling."""
    core.emit(
        ItemAdded(item=item, previous_item_id=previous),
        ItemCreated(item=item, previous_item_id=previous),
        ItemDone(item=item, previous_item_id=previous),
    )
