"""The conversation's items, in order, each with what was heard of it.

Owned by the session machine. An answer's item keeps all that was generated until it is cut; what a model is told
(:meth:`History.for_model`) is only what the user heard.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator

import msgspec

from duplex_core.errors import ErrorCode, refuse
from duplex_core.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    Item,
    ItemStatus,
    MessageItem,
    OutputAudio,
    OutputText,
    Role,
    item_text,
)
from duplex_core.machine.heard import Speech

ROOT = "root"
"""The ``previous_item_id`` that means: put it first."""
MAX_ITEMS = 10_000
"""Most items that a client's commands can fill a conversation with."""
MAX_BYTES = 256 * 1024 * 1024
"""Most bytes of sound, pictures and words that are kept: more than two hours of 16 kHz speech."""


class Entry(msgspec.Struct, kw_only=True):
    """One item with what the wire does not show.

    ``speech`` places an answer's text in its sound. ``kept_ms`` is where its history ends, ``None`` meaning all of it;
    ``settled`` is false while the answer may still be heard further or generated further. ``made_ms`` is how much of its
    sound was ever made, whatever was cut since. ``judged`` is the item for which ``told``, what a model is told of all of it,
    was found last.
    """

    item: Item
    speech: Speech = msgspec.field(default_factory=Speech)
    made_ms: float = 0.0
    kept_ms: float | None = None
    settled: bool = True
    judged: Item | None = None
    told: Item | None = None

    @property
    def id(self) -> str:
        """The item's id."""
        assert self.item.id is not None
        return self.item.id


class History:
    """Ordered entries with unique ids. What it costs to find one does not depend on how many there are."""

    def __init__(self) -> None:
        """Begin empty."""
        self._entries: list[Entry] = []
        self._by_id: dict[str, Entry] = {}
        self._calls: dict[str, Entry] = {}
        self._outputs: collections.Counter[str] = collections.Counter()
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._sound_bytes = 0

    def __iter__(self) -> Iterator[Entry]:
        """Entries, oldest first."""
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        """Number of items."""
        return len(self._entries)

    @property
    def last_id(self) -> str | None:
        """Id of the newest item."""
        return self._entries[-1].id if self._entries else None

    @property
    def newest(self) -> Item | None:
        """The newest item."""
        return self._entries[-1].item if self._entries else None

    def find(self, item_id: str) -> Entry | None:
        """The entry with this id, if it is there."""
        return self._by_id.get(item_id)

    def get(self, item_id: str, param: str = "item_id") -> Entry:
        """The entry with this id.

        Raises:
            DuplexError: there is none; ``param`` names the field that asked.
        """
        entry = self.find(item_id)
        if entry is None:
            raise refuse(ErrorCode.ITEM_NOT_FOUND, f"the conversation has no item {item_id!r}", param=param)
        return entry

    def place(self, previous_item_id: str | None) -> int:
        """Where an item after ``previous_item_id`` goes.

        Raises:
            DuplexError: there is no such item.
        """
        if previous_item_id is None:
            return len(self._entries)
        if previous_item_id == ROOT:
            return 0
        return self._index(self.get(previous_item_id, "previous_item_id")) + 1

    def insert(self, entry: Entry, index: int | None = None) -> str | None:
        """Put an entry in, at the end by default; returns the id of the item before it.

        Where it would hold more than :data:`MAX_BYTES`, the sound of the oldest items is forgotten; their words stay.
        """
        at = len(self._entries) if index is None else index
        size = _size(entry.item)
        self._make_room(size)
        self._entries.insert(at, entry)
        self._by_id[entry.id] = entry
        self._sizes[entry.id] = size
        self._bytes += size
        self._sound_bytes += _sound_size(entry.item)
        if isinstance(entry.item, FunctionCallItem) and entry.item.call_id is not None:
            self._calls[entry.item.call_id] = entry
        elif isinstance(entry.item, FunctionCallOutputItem):
            self._outputs[entry.item.call_id] += 1
        return self._entries[at - 1].id if at else None

    def delete(self, entry: Entry) -> None:
        """Take an entry out."""
        del self._entries[self._index(entry)]
        del self._by_id[entry.id]
        self._bytes -= self._sizes.pop(entry.id)
        self._sound_bytes -= _sound_size(entry.item)
        if isinstance(entry.item, FunctionCallItem) and entry.item.call_id is not None:
            del self._calls[entry.item.call_id]
        elif isinstance(entry.item, FunctionCallOutputItem):
            self._outputs[entry.item.call_id] -= 1

    def require_room(self, item: Item | None = None) -> None:
        """Refuse what would fill the conversation beyond its bounds: one more item, or ``item`` with what it weighs.

        Raises:
            DuplexError: ``resource_exhausted``.
        """
        if len(self._entries) >= MAX_ITEMS:
            message = f"the conversation cannot hold more than {MAX_ITEMS} items; delete some, or begin another session"
            raise refuse(ErrorCode.RESOURCE_EXHAUSTED, message)
        if item is not None and self._bytes - self._sound_bytes + _size(item) > MAX_BYTES:
            message = (
                f"the conversation cannot hold more than {MAX_BYTES // (1024 * 1024)} MiB of words and pictures; "
                "delete items, or begin another session"
            )
            raise refuse(ErrorCode.RESOURCE_EXHAUSTED, message)

    def _make_room(self, size: int) -> None:
        """Forget the sound of the oldest items until ``size`` bytes more can be held, or no sound is left."""
        if self._bytes + size <= MAX_BYTES:
            return
        for entry in self._entries:
            sound = _sound_size(entry.item)
            entry.item = visible(entry.item)
            self._sizes[entry.id] -= sound
            self._sound_bytes -= sound
            self._bytes -= sound
            if self._bytes + size <= MAX_BYTES:
                return

    def _index(self, entry: Entry) -> int:
        """Where an entry stands; most that are asked for are new."""
        return next(index for index in range(len(self._entries) - 1, -1, -1) if self._entries[index] is entry)

    def call(self, call_id: str) -> FunctionCallItem | None:
        """The function call with this id, if it is in the history."""
        entry = self._calls.get(call_id)
        return entry.item if entry is not None and isinstance(entry.item, FunctionCallItem) else None

    def answered(self, call_id: str) -> bool:
        """Whether that call has its output already."""
        return self._outputs[call_id] > 0

    def transcribe(self, item_id: str, transcript: str) -> None:
        """Write what the user said into the item's audio, if the item is there."""
        entry = self.find(item_id)
        if entry is None or not isinstance(entry.item, MessageItem):
            return
        parts = tuple(
            msgspec.structs.replace(part, transcript=transcript) if isinstance(part, InputAudio) else part
            for part in entry.item.content
        )
        entry.item = msgspec.structs.replace(entry.item, content=parts)

    def for_model(self, heard_ms: dict[str, float | None]) -> tuple[Item, ...]:
        """What a model is told. ``heard_ms`` gives, by item id, how far answers that are not settled have been heard.

        Left out is what nobody heard, what has no content, a call whose arguments were cut off, and the output of a call
        that is not there.
        """
        told = [item for entry in self._entries if (item := as_heard(entry, heard_ms)) is not None]
        if not self._outputs:
            return tuple(told)
        calls = {item.call_id for item in told if isinstance(item, FunctionCallItem)}
        return tuple(item for item in told if not isinstance(item, FunctionCallOutputItem) or item.call_id in calls)


def as_heard(entry: Entry, heard_ms: dict[str, float | None]) -> Item | None:
    """The entry's item as a model is told it; ``None`` when there is nothing to tell. See :meth:`History.for_model`."""
    limit_ms = entry.kept_ms if entry.settled else heard_ms.get(entry.id, 0.0)
    if limit_ms is not None:
        return _worth_telling(cut_item(entry, limit_ms))
    if entry.judged is not entry.item:
        entry.judged, entry.told = entry.item, _worth_telling(entry.item)
    return entry.told


def _worth_telling(item: Item) -> Item | None:
    if isinstance(item, FunctionCallItem) and item.status is not ItemStatus.COMPLETED:
        return None
    return None if _empty(item) else item


def cut_item(entry: Entry, limit_ms: float | None) -> Item:
    """The entry's item as far as it was heard; ``None`` is all of it. Items without speech are whole."""
    item = entry.item
    if limit_ms is None or not isinstance(item, MessageItem) or item.role is not Role.ASSISTANT:
        return item
    parts = tuple(
        msgspec.structs.replace(part, transcript=cut_text(entry, part.transcript or "", limit_ms))
        if isinstance(part, OutputAudio)
        else part
        for part in item.content
    )
    return msgspec.structs.replace(item, content=parts)


def cut_text(entry: Entry, text: str, limit_ms: float) -> str:
    """The part of an answer's transcript that had been spoken by ``limit_ms``."""
    return text[: entry.speech.chars(text, limit_ms)].rstrip()


def truncate(entry: Entry, audio_end_ms: float) -> None:
    """Cut an answer at what was heard, for good: text beyond it leaves the item. A later, longer figure restores nothing."""
    limit = audio_end_ms if entry.kept_ms is None else min(audio_end_ms, entry.kept_ms)
    item = cut_item(entry, limit)
    if limit < entry.speech.audio_ms or not entry.speech.complete:
        item = msgspec.structs.replace(item, status=ItemStatus.INCOMPLETE)
    entry.item = item
    entry.speech.cut(limit)
    entry.kept_ms = limit
    entry.settled = True


def visible(item: Item, *, audio: bool = False) -> Item:
    """The item as events show it: without its audio bytes, unless they were asked for."""
    if audio or not isinstance(item, MessageItem):
        return item
    if not any(isinstance(part, InputAudio | OutputAudio) and part.audio is not None for part in item.content):
        return item
    parts = tuple(
        msgspec.structs.replace(part, audio=None) if isinstance(part, InputAudio | OutputAudio) else part
        for part in item.content
    )
    return msgspec.structs.replace(item, content=parts)


def _size(item: Item) -> int:
    """Bytes that an item holds, near enough."""
    if isinstance(item, FunctionCallItem):
        return len(item.arguments)
    if isinstance(item, FunctionCallOutputItem):
        return len(item.output)
    return sum(map(_part_size, item.content))


def _sound_size(item: Item) -> int:
    if not isinstance(item, MessageItem):
        return 0
    return sum(len(part.audio or b"") for part in item.content if isinstance(part, InputAudio | OutputAudio))


def _part_size(part: ContentPart) -> int:
    if isinstance(part, InputImage):
        return len(part.image_url)
    if isinstance(part, InputAudio | OutputAudio):
        return len(part.audio or b"") + len(part.transcript or "")
    return len(part.text)


def _empty(item: Item) -> bool:
    if not isinstance(item, MessageItem):
        return False
    if item.role is Role.ASSISTANT:
        return not item_text(item).strip()
    return not any(_holds_something(part) for part in item.content)


def _holds_something(part: object) -> bool:
    if isinstance(part, InputAudio):
        return bool(part.audio) or bool(part.transcript)
    return not isinstance(part, OutputText | OutputAudio)
