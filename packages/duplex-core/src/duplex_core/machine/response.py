"""One response: its output items, its events in the order of the wire, and its end.

Made by the output side of the session machine for each turn. Builds events and keeps the history's entries filled; moves
no lane and performs no effect.
"""

from __future__ import annotations

from typing import Any

import msgspec

from duplex_core.config import Modality, SessionConfig
from duplex_core.events import (
    AudioMetadata,
    ContentPartAdded,
    ContentPartDone,
    Event,
    FunctionArgumentsDelta,
    FunctionArgumentsDone,
    ItemAdded,
    ItemDone,
    OutputAudioDelta,
    OutputAudioDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    OutputTranscriptDelta,
    OutputTranscriptDone,
    PartView,
    ResponseAudioOutputView,
    ResponseAudioView,
    ResponseCreated,
    ResponseDone,
    ResponseSpeak,
    ResponseStatus,
    ResponseView,
    StatusDetails,
    Usage,
    wire_format,
)
from duplex_core.fence import Fence
from duplex_core.items import (
    ContentPart,
    FunctionCallItem,
    Item,
    ItemStatus,
    MessageItem,
    OutputAudio,
    OutputText,
    Role,
)
from duplex_core.ledger import TextMark
from duplex_core.machine.heard import Track
from duplex_core.machine.history import Entry, History
from duplex_core.machine.timing import Timing

CONTENT_INDEX = 0
"""An answer's message has one content part."""


class OpenItem(msgspec.Struct, kw_only=True):
    """An output item that is still being filled.

    ``track`` is the sound of a message in audio; ``untold`` are the marks of its text that go out with the next sound.
    """

    index: int
    entry: Entry
    previous_id: str | None
    text: str = ""
    track: Track | None = None
    untold: list[TextMark] = []

    def mark(self, marks: tuple[TextMark, ...]) -> None:
        """The model tells where its text lies in its sound."""
        self.entry.speech.marks.extend(marks)
        self.untold.extend(marks)


class Response:
    """A response from ``response.created`` to ``response.done``."""

    def __init__(
        self,
        *,
        response_id: str,
        fence: Fence,
        config: SessionConfig,
        history: History | None,
        now_ms: float,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Open a response. ``history`` is ``None`` for one that stays outside the conversation."""
        self.id = response_id
        self.timing = Timing(now_ms)
        self.fence = fence
        self.config = config
        self.metadata = metadata
        self._history = history
        self._output: list[Entry] = []
        self._message: OpenItem | None = None
        self._calls: dict[str, OpenItem] = {}
        self._spoke = False

    @property
    def message(self) -> OpenItem | None:
        """The message that is being spoken or written, if one is open."""
        return self._message

    @property
    def in_history(self) -> bool:
        """Whether its items belong to the conversation."""
        return self._history is not None

    def call(self, call_id: str) -> OpenItem | None:
        """The open tool call with this id."""
        return self._calls.get(call_id)

    def called(self, call_id: str) -> bool:
        """Whether this response made a tool call with this id, open or ended."""
        return any(isinstance(entry.item, FunctionCallItem) and entry.item.call_id == call_id for entry in self._output)

    def view(
        self, status: ResponseStatus, details: StatusDetails | None = None, usage: Usage | None = None
    ) -> ResponseView:
        """The response as events show it."""
        output = ResponseAudioOutputView(format=wire_format(self.config.output_format), voice=self.config.voice)
        return ResponseView(
            id=self.id,
            status=status,
            status_details=details,
            output=[entry.item for entry in self._output],
            output_modalities=[self.config.modality],
            audio=ResponseAudioView(output=output),
            conversation_id=f"conv_{self.fence.session_id}" if self.in_history else None,
            max_output_tokens=self.config.max_output_tokens or "inf",
            metadata=self.metadata,
            usage=usage,
        )

    def created(self) -> Event:
        """The first event."""
        return ResponseCreated(
            response=self.view(ResponseStatus.IN_PROGRESS), epoch=self.fence.epoch, turn_id=self.fence.turn
        )

    # -- items --------------------------------------------------------------------------------------------------------

    def _open(self, item: Item, *, settled: bool) -> tuple[OpenItem, list[Event]]:
        entry = Entry(item=item, settled=settled)
        index = len(self._output)
        self._output.append(entry)
        previous = self._history.insert(entry) if self._history is not None else None
        opened = OpenItem(index=index, entry=entry, previous_id=previous)
        events: list[Event] = [OutputItemAdded(response_id=self.id, output_index=index, item=item)]
        if self.in_history:
            events.append(ItemAdded(item=item, previous_item_id=previous))
        return opened, events

    def _close(self, opened: OpenItem, status: ItemStatus, content: tuple[ContentPart, ...] | None) -> list[Event]:
        item = opened.entry.item
        if content is not None:
            item = msgspec.structs.replace(item, content=content)
        item = msgspec.structs.replace(item, status=status)
        opened.entry.item = item
        events: list[Event] = [OutputItemDone(response_id=self.id, output_index=opened.index, item=item)]
        if self.in_history:
            events.append(ItemDone(item=item, previous_item_id=opened.previous_id))
        return events

    def open_message(self, item_id: str) -> list[Event]:
        """Begin the message; does nothing when it is open already."""
        if self._message is not None:
            return []
        item = MessageItem(
            id=item_id, role=Role.ASSISTANT, content=(), status=ItemStatus.IN_PROGRESS, object="realtime.item"
        )
        audio = self.config.modality is Modality.AUDIO
        opened, events = self._open(item, settled=not audio)
        self._message = opened
        part = PartView(type="audio", transcript="") if audio else PartView(type="text", text="")
        events.append(
            ContentPartAdded(
                response_id=self.id,
                item_id=item_id,
                output_index=opened.index,
                content_index=CONTENT_INDEX,
                part=part,
            )
        )
        return events

    def text(self, delta: str) -> list[Event]:
        """More words of the open message: a transcript delta when it is spoken, a text delta when it is written."""
        opened = self._require_message()
        opened.text += delta
        self._write(opened)
        kind = OutputTranscriptDelta if self.config.modality is Modality.AUDIO else OutputTextDelta
        return [
            kind(
                response_id=self.id,
                item_id=opened.entry.id,
                output_index=opened.index,
                content_index=CONTENT_INDEX,
                delta=delta,
                epoch=self.fence.epoch,
            )
        ]

    def audio(self, pcm: bytes, duration_ms: float, track: Track) -> list[Event]:
        """More sound of the open message; ``track`` already counts it."""
        opened = self._require_message()
        opened.track = track
        marks, opened.untold = opened.untold, []
        events: list[Event] = []
        if not self._spoke:
            self._spoke = True
            events.append(
                ResponseSpeak(
                    response_id=self.id,
                    item_id=opened.entry.id,
                    epoch=self.fence.epoch,
                    turn_id=self.fence.turn,
                )
            )
        metadata = AudioMetadata(
            epoch=self.fence.epoch,
            audio_duration_ms=duration_ms,
            audio_text_marks=marks,
            playback=track.ledger,
        )
        events.append(
            OutputAudioDelta(
                response_id=self.id,
                item_id=opened.entry.id,
                output_index=opened.index,
                content_index=CONTENT_INDEX,
                delta=pcm,
                format=self.config.output_format.encoding.value,
                sample_rate_hz=self.config.output_format.rate_hz,
                metadata=metadata,
            )
        )
        return events

    def tool(self, item_id: str, call_id: str, name: str, delta: str) -> list[Event]:
        """More of a tool call's arguments; the first piece begins the call."""
        events: list[Event] = []
        opened = self._calls.get(call_id)
        if opened is None:
            item = FunctionCallItem(
                id=item_id,
                call_id=call_id,
                name=name,
                arguments="",
                status=ItemStatus.IN_PROGRESS,
                object="realtime.item",
            )
            opened, events = self._open(item, settled=True)
            self._calls[call_id] = opened
        opened.text += delta
        self._write(opened)
        if delta:
            events.append(
                FunctionArgumentsDelta(
                    response_id=self.id,
                    item_id=opened.entry.id,
                    output_index=opened.index,
                    call_id=call_id,
                    delta=delta,
                    epoch=self.fence.epoch,
                )
            )
        return events

    def end_tool(self, call_id: str, status: ItemStatus = ItemStatus.COMPLETED) -> list[Event]:
        """The tool call is whole, or (``incomplete``) cut off."""
        opened = self._calls.pop(call_id)
        item = opened.entry.item
        assert isinstance(item, FunctionCallItem)
        done = FunctionArgumentsDone(
            response_id=self.id,
            item_id=opened.entry.id,
            output_index=opened.index,
            call_id=call_id,
            name=item.name,
            arguments=opened.text,
        )
        return [done, *self._close(opened, status, None)]

    def _require_message(self) -> OpenItem:
        assert self._message is not None, "open_message comes first"
        return self._message

    def _write(self, opened: OpenItem) -> None:
        """Keep the entry's item in step with what was generated."""
        item = opened.entry.item
        if isinstance(item, FunctionCallItem):
            opened.entry.item = msgspec.structs.replace(item, arguments=opened.text)
        else:
            opened.entry.item = msgspec.structs.replace(item, content=(self._part(opened.text),))

    def _part(self, text: str) -> ContentPart:
        return OutputAudio(transcript=text) if self.config.modality is Modality.AUDIO else OutputText(text=text)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end_message(self, opened: OpenItem, status: ItemStatus) -> list[Event]:
        audio = self.config.modality is Modality.AUDIO
        where: dict[str, Any] = {
            "response_id": self.id,
            "item_id": opened.entry.id,
            "output_index": opened.index,
            "content_index": CONTENT_INDEX,
        }
        events: list[Event] = []
        if audio:
            events += [OutputAudioDone(**where), OutputTranscriptDone(**where, transcript=opened.text)]
            part = PartView(type="audio", transcript=opened.text)
        else:
            events.append(OutputTextDone(**where, text=opened.text))
            part = PartView(type="text", text=opened.text)
        events.append(ContentPartDone(**where, part=part))
        return events + self._close(opened, status, (self._part(opened.text),))

    def finish(
        self,
        status: ResponseStatus,
        details: StatusDetails | None = None,
        usage: Usage | None = None,
        *,
        now_ms: float,
    ) -> list[Event]:
        """Close what is open and end the response; ``response.done`` is last. A call that was not ended is incomplete."""
        item_status = ItemStatus.COMPLETED if status is ResponseStatus.COMPLETED else ItemStatus.INCOMPLETE
        events: list[Event] = []
        if self._message is not None:
            events += self._end_message(self._message, item_status)
            self._message = None
        for call_id in tuple(self._calls):
            events += self.end_tool(call_id, ItemStatus.INCOMPLETE)
        done = ResponseDone(
            response=self.view(status, details, usage),
            epoch=self.fence.epoch,
            turn_id=self.fence.turn,
            metrics=self.timing.metrics(now_ms, usage),
        )
        return [*events, done]
