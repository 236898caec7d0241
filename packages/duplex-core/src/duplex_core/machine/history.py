"""The conversation's items, in order, each with what was heard of it.

Owned by the session machine. An answer's item keeps all that was generated until it is cut; what a model is told
(:meth:`History.for_model`) is only what the user heard.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from duplex_core.errors import ErrorCode, refuse
from duplex_core.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
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


class Entry(msgspec.Struct, kw_only=True):
    """One item with what the wire does not show.

    ``speech`` places an answer's text in its sound. ``kept_ms`` is where its history ends, ``None`` meaning all of it;
    ``settled`` is false while the answer may still be heard further or generated further. ``made_ms`` is how much of its
    sound was ever made, whatever was cut since.
    """

    item: Item
    speech: Speech = msgspec.field(default_factory=Speech)
    made_ms: float = 0.0
    kept_ms: float | None = None
    settled: bool = True

    @property
    def id(self) -> str:
        """The item's id."""
        assert self.item.id is not None
        return self.item.id


class History:
    """Ordered entries with unique ids."""

    def __init__(self) -> None:
        """Begin empty."""
        self._entries: list[Entry] = []

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
        return next((entry for entry in reversed(self._entries) if entry.id == item_id), None)

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
        return self._entries.index(self.get(previous_item_id, "previous_item_id")) + 1

    def insert(self, entry: Entry, index: int | None = None) -> str | None:
        """Put an entry in, at the end by default; returns the id of the item before it."""
        at = len(self._entries) if index is None else index
        self._entries.insert(at, entry)
        return self._entries[at - 1].id if at else None

    def delete(self, entry: Entry) -> None:
        """Take an entry out."""
        self._entries.remove(entry)

    def call(self, call_id: str) -> FunctionCallItem | None:
        """The function call with this id, if it is in the history."""
        calls = (entry.item for entry in self._entries if isinstance(entry.item, FunctionCallItem))
        return next((item for item in calls if item.call_id == call_id), None)

    def answered(self, call_id: str) -> bool:
        """Whether that call has its output already."""
        return any(
            isinstance(entry.item, FunctionCallOutputItem) and entry.item.call_id == call_id for entry in self._entries
        )

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
        calls = {item.call_id for item in told if isinstance(item, FunctionCallItem)}
        return tuple(item for item in told if not isinstance(item, FunctionCallOutputItem) or item.call_id in calls)


def as_heard(entry: Entry, heard_ms: dict[str, float | None]) -> Item | None:
    """The entry's item as a model is told it; ``None`` when there is nothing to tell. See :meth:`History.for_model`."""
    item = cut_item(entry, entry.kept_ms if entry.settled else heard_ms.get(entry.id, 0.0))
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
