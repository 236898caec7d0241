"""One handle for each answer: what it says, its audio, how it ended, how much of it was heard.

Made and fed by the connection as events arrive; read by the application. A handle sends nothing and keeps no clock: every
instant in it is when an event arrived, in milliseconds on the client's clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from duplex_client.errors import EventsLost
from duplex_client.streams import Signal
from duplex_core.events import (
    Event,
    OutputAudioDelta,
    OutputAudioDone,
    OutputBufferCleared,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    OutputTranscriptDelta,
    OutputTranscriptDone,
    PlaybackAcknowledged,
    ResponseCreated,
    ResponseDone,
    ResponseMetrics,
    ResponseStatus,
    ResponseView,
)
from duplex_core.items import FunctionCallItem


class ResponseHandle:
    """One answer, from ``response.created`` on.

    Attributes:
        response_id: The answer's id.
        item_id: The id of its first item; ``None`` until it has one.
        epoch: The interruption fence that it was made under.
        turn_id: Which of the model's turns it is.
        metadata: What ``response.create`` gave it.
        transcript: What its audio says, as far as it has come.
        text: Its text, for an answer in text.
        tool_calls: The functions that it calls; an interrupted call has status ``incomplete``.
        status: How it stands.
        view: The answer as ``response.done`` showed it; ``None`` until then.
        metrics: How long the server took for it, as ``response.done`` told; ``None`` until then.
        events_lost: Whether some of its events may never have arrived, so that it may have holes.
        interrupted: Whether it was cut: cancelled, or cleared while it was still being played.
        played_ms: How much of its audio the user has heard, as last acknowledged.
        received_ms: How much audio has arrived.
        created_at_ms: When it began.
        first_audio_at_ms: When its first audio arrived.
        done_at_ms: When it was done.
    """

    def __init__(self, event: ResponseCreated, at_ms: float) -> None:
        self.response_id = event.response.id
        self.item_id: str | None = None
        self.epoch = event.epoch
        self.turn_id = event.turn_id
        self.metadata: dict[str, str] = event.response.metadata or {}
        self.transcript = ""
        self.text = ""
        self.tool_calls: list[FunctionCallItem] = []
        self.status: ResponseStatus = ResponseStatus.IN_PROGRESS
        self.view: ResponseView | None = None
        self.metrics: ResponseMetrics | None = None
        self.events_lost = False
        self.interrupted = False
        self.played_ms = 0.0
        self.received_ms = 0.0
        self.created_at_ms = at_ms
        self.first_audio_at_ms: float | None = None
        self.done_at_ms: float | None = None
        self._chunks: list[bytes] = []
        self._audio_over = False
        self._error: Exception | None = None
        self._changed = Signal()

    def __repr__(self) -> str:
        return f"<ResponseHandle {self.response_id} {self.status.value} {self.transcript or self.text!r}>"

    @property
    def done(self) -> bool:
        """Whether the server has said ``response.done``."""
        return self.view is not None

    async def audio(self) -> AsyncIterator[bytes]:
        """Its audio from the beginning, in the session's output format, as it arrives.

        An interruption ends the iteration at once: what was not taken by then must not be played. Any number may iterate.

        Raises:
            ConnectionClosed: the session ended before the answer did.
            EventsLost: some of the answer never arrived, and its end has not either.
        """
        taken = 0
        while not self.interrupted:
            if taken < len(self._chunks):
                taken += 1
                yield self._chunks[taken - 1]
            elif self._audio_over or self.done:
                return
            elif self._error is not None:
                raise self._error
            else:
                await self._changed.wait()

    async def wait(self) -> ResponseStatus:
        """Wait until the answer is done, and tell how it ended.

        Raises:
            ConnectionClosed: the session ended before the answer did.
            EventsLost: some of the answer never arrived, and its end has not either. When that comes all the same, the
                handle is done as any other, with ``events_lost`` set.
        """
        while not self.done:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self.status

    def heard(self, played_ms: float) -> None:
        """Note that the user has heard it up to ``played_ms``; called by whatever plays it."""
        self.played_ms = max(self.played_ms, played_ms)

    def fail(self, error: Exception) -> None:
        """End whatever waits on an unfinished answer; called by the connection when it ends."""
        if not self.done:
            self._error = error
            self._changed.raise_()

    def lose(self, first_seq: int, last_seq: int) -> None:
        """Events that may have been this answer's do not come; called by the connection."""
        self.events_lost = True
        self.fail(
            EventsLost(
                f"events {first_seq} to {last_seq} of the session are lost, and {self.response_id} may have had some of "
                f"them; what the server has of it stands in its item"
            )
        )

    def absorb(self, event: Event, at_ms: float) -> None:
        """Take in one event that names this answer; called by the connection, in order."""
        match event:
            case OutputAudioDelta():
                self._chunks.append(event.delta)
                self.received_ms += event.metadata.audio_duration_ms
                if self.first_audio_at_ms is None:
                    self.first_audio_at_ms = at_ms
            case OutputTranscriptDelta():
                self.transcript += event.delta
            case OutputTranscriptDone():
                self.transcript = event.transcript
            case OutputTextDelta():
                self.text += event.delta
            case OutputTextDone():
                self.text = event.text
            case OutputAudioDone():
                self._audio_over = True
            case OutputItemAdded():
                self.item_id = self.item_id or event.item.id
            case OutputItemDone(item=FunctionCallItem() as call):
                self.tool_calls.append(call)
            case OutputBufferCleared():
                self.interrupted = True
            case PlaybackAcknowledged():
                self.heard(event.playback.played_ms)
            case ResponseDone():
                self.metrics = event.metrics
                self._finish(event.response, at_ms)
            case _:
                pass  # what it tells stands in the items and in response.done too
        self._changed.raise_()

    def _finish(self, view: ResponseView, at_ms: float) -> None:
        self.view = view
        self.status = view.status
        self.done_at_ms = at_ms
        if view.status is ResponseStatus.CANCELLED:
            self.interrupted = True
