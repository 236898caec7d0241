"""The client's edits of the conversation: create, retrieve, truncate and delete items.

Used by :class:`~duplex_core.machine.session.SessionMachine`. Checks everything before it changes anything.
"""

from __future__ import annotations

from collections.abc import Container
from typing import assert_never

import msgspec

from duplex_core.commands import (
    ConversationItemCreate,
    ConversationItemDelete,
    ConversationItemRetrieve,
    ConversationItemTruncate,
)
from duplex_core.errors import ErrorCode, refuse
from duplex_core.events import ItemDeleted, ItemRetrieved, ItemTruncated, StatusReason
from duplex_core.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    ItemStatus,
    MessageItem,
    OutputAudio,
    Role,
    misplaced_part,
    picture_bytes,
)
from duplex_core.machine.core import Core
from duplex_core.machine.heard import Speech
from duplex_core.machine.history import ROOT, Entry, truncate, visible
from duplex_core.machine.input import InputSide
from duplex_core.machine.output import OutputSide
from duplex_core.machine.response import CONTENT_INDEX
from duplex_core.machine.taking import announce
from duplex_core.model import ToolResult

ItemCommand = ConversationItemCreate | ConversationItemRetrieve | ConversationItemTruncate | ConversationItemDelete
"""A client's edit."""


class Editing:
    """Item commands of one session."""

    def __init__(self, core: Core, incoming: InputSide, output: OutputSide) -> None:
        """Work on the shared history."""
        self._core = core
        self._input = incoming
        self._output = output

    def carry_out(self, command: ItemCommand) -> None:
        """Carry out one of them.

        Raises:
            DuplexError: it cannot be carried out; nothing changed.
        """
        match command:
            case ConversationItemCreate():
                self.create(command)
            case ConversationItemRetrieve():
                self.retrieve(command)
            case ConversationItemTruncate():
                self.truncate(command)
            case ConversationItemDelete():
                self.delete(command)
            case _:
                assert_never(command)

    def create(self, command: ConversationItemCreate) -> None:
        """Put an item into the history.

        Raises:
            DuplexError: the item is malformed, its id is taken, its place or its call does not exist, or there is no room.
        """
        core = self._core
        item = command.item
        self.check(item, "item")
        index = core.history.place(command.previous_item_id)
        core.history.require_room(item)
        item = msgspec.structs.replace(
            item, id=item.id or core.new_id("item"), status=ItemStatus.COMPLETED, object="realtime.item"
        )
        if isinstance(item, FunctionCallItem) and item.call_id is None:
            item = msgspec.structs.replace(item, call_id=core.new_id("call"))
        previous = core.history.insert(Entry(item=item, speech=Speech(complete=True)), index)
        announce(core, visible(item), previous)
        if isinstance(item, FunctionCallOutputItem):
            core.tell(ToolResult(item=item, fence=core.fence))
        else:
            self._output.sounding.tell_history()

    def check(self, item: Item, param: str, calls: Container[str] = ()) -> None:
        """Refuse an item that this conversation cannot hold. ``calls`` are those of the new items that it comes after.

        Raises:
            DuplexError: says what is wrong, and where below ``param``.
        """
        core = self._core
        taken = item.id is not None and (core.history.find(item.id) is not None or item.id == self._input.pending_id)
        if taken or item.id == ROOT:
            message = f"{item.id!r} cannot be a new item's id: it is taken"
            raise refuse(ErrorCode.ITEM_EXISTS, message, param=f"{param}.id")
        if isinstance(item, FunctionCallItem):
            if item.call_id is not None and core.history.call(item.call_id) is not None:
                message = f"there is a call {item.call_id!r} already"
                raise refuse(ErrorCode.INVALID_VALUE, message, param=f"{param}.call_id")
        elif isinstance(item, FunctionCallOutputItem):
            if item.call_id not in calls:
                self._check_output(item, f"{param}.call_id")
        else:
            self._check_message(item, param)

    def _check_output(self, item: FunctionCallOutputItem, param: str) -> None:
        history = self._core.history
        call = history.call(item.call_id)
        if call is None:
            raise refuse(ErrorCode.CALL_NOT_FOUND, f"no function call has the id {item.call_id!r}", param=param)
        if call.status is not ItemStatus.COMPLETED:
            message = (
                f"the call {item.call_id!r} is not whole: wait for its end, or, if it was cut off, do not answer it"
            )
            raise refuse(ErrorCode.INVALID_VALUE, message, param=param)
        if history.answered(item.call_id):
            raise refuse(ErrorCode.INVALID_VALUE, f"the call {item.call_id!r} has its output already", param=param)

    def _check_message(self, item: MessageItem, param: str) -> None:
        can = self._core.capabilities
        if not item.content:
            raise refuse(ErrorCode.INVALID_VALUE, "a message needs content", param=f"{param}.content")
        wrong = misplaced_part(item)
        if wrong is not None:
            kind = type(item.content[wrong]).__struct_config__.tag
            message = f"a message of the {item.role.value} cannot hold {kind}"
            raise refuse(ErrorCode.INVALID_VALUE, message, param=f"{param}.content[{wrong}].type")
        if item.role is Role.SYSTEM and not can.instructions:
            raise refuse(
                ErrorCode.UNSUPPORTED_PARAMETER, "the served model takes no system messages", param=f"{param}.role"
            )
        for index, part in enumerate(item.content):
            path = f"{param}.content[{index}]"
            if isinstance(part, InputImage) and not can.image_input:
                raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, "the served model cannot see images", param=path)
            if isinstance(part, InputImage):
                _check_picture(part, path)
            if isinstance(part, InputText) and item.role is Role.USER and not can.text_input:
                raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, "the served model reads no text", param=path)
            if isinstance(part, InputAudio) and not part.audio and not part.transcript:
                raise refuse(ErrorCode.EMPTY_AUDIO, "audio is empty", param=f"{path}.audio")

    def retrieve(self, command: ConversationItemRetrieve) -> None:
        """Show an item as the history holds it, with its audio.

        Raises:
            DuplexError: there is no such item.
        """
        entry = self._core.history.get(command.item_id)
        self._core.emit(ItemRetrieved(item=visible(entry.item, audio=True)))

    def delete(self, command: ConversationItemDelete) -> None:
        """Take an item out.

        Raises:
            DuplexError: there is no such item, or it is still being made.
        """
        core = self._core
        entry = core.history.get(command.item_id)
        if entry.item.status is ItemStatus.IN_PROGRESS:
            message = f"item {command.item_id!r} is still being made; cancel its response first"
            raise refuse(ErrorCode.ACTIVE_RESPONSE, message, param="item_id")
        core.history.delete(entry)
        self._input.recognition.forget(entry.id)
        core.emit(ItemDeleted(item_id=entry.id))
        self._output.sounding.tell_history()

    def truncate(self, command: ConversationItemTruncate) -> None:
        """The user heard an answer only so far; if it still sounds, or is still being made, it stops.

        Raises:
            DuplexError: there is no such spoken answer, or the time lies outside it.
        """
        core = self._core
        entry = core.history.get(command.item_id)
        item = entry.item
        spoken = isinstance(item, MessageItem) and any(isinstance(part, OutputAudio) for part in item.content)
        if not spoken:
            message = f"item {command.item_id!r} is not a spoken answer; only those can be truncated"
            raise refuse(ErrorCode.INVALID_VALUE, message, param="item_id")
        if command.content_index != CONTENT_INDEX:
            message = f"item {command.item_id!r} has one content part; content_index must be {CONTENT_INDEX}"
            raise refuse(ErrorCode.INVALID_VALUE, message, param="content_index")
        if not 0 <= command.audio_end_ms <= entry.made_ms + 1:
            message = f"audio_end_ms is {command.audio_end_ms}; the answer's audio has {int(entry.made_ms)} ms"
            raise refuse(ErrorCode.INVALID_VALUE, message, param="audio_end_ms")
        limit = float(command.audio_end_ms)
        if item.status is ItemStatus.IN_PROGRESS or core.playback.playing(entry.id):
            self._output.interrupt(StatusReason.CLIENT_CANCELLED, heard_ms={entry.id: limit})
            return
        truncate(entry, limit)
        core.playback.drop(entry.id)
        ended = int(entry.kept_ms or 0.0)
        core.emit(ItemTruncated(item_id=entry.id, content_index=CONTENT_INDEX, audio_end_ms=ended))
        self._output.sounding.tell_history()


def _check_picture(part: InputImage, path: str) -> None:
    """Refuse a picture that cannot be got at.

    Raises:
        DuplexError: it is no ``data:`` URL in base64.
    """
    try:
        picture_bytes(part.image_url)
    except ValueError as exc:
        raise refuse(ErrorCode.INVALID_VALUE, str(exc), param=f"{path}.image_url") from None
