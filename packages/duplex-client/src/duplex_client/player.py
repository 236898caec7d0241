"""Plays a conversation's answers in real time, tells the server what was heard, and falls silent when it must.

:class:`Player` watches a client's events, queues audio on a :class:`~duplex_client.playback.PlaybackClock`, pauses while it is
not clear whether speech over an answer interrupts it, drops what an interruption makes stale the moment it is told,
acknowledges playback, and hands each answer to its sinks once it has been heard or cut. It touches no sound card: a
microphone front end renders the same clock into one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from duplex_client.base import BaseDuplexClient
from duplex_client.changes import ConnectionChange, ResyncRequired
from duplex_client.errors import ConnectionClosed
from duplex_client.playback import PlaybackClock, Span
from duplex_client.streams import Signal
from duplex_core.audio import AudioEncoding
from duplex_core.events import (
    Event,
    OutputAudioDelta,
    OutputBufferCleared,
    OverlapDecision,
    OverlapVerdict,
    ResponseDone,
    ResponseStatus,
    TurnEvent,
    TurnEventKind,
)

ACK_EVERY_MS = 200.0
PATIENCE_MS = 2000.0
"""How long the rest of an answer is waited for after events were lost, when its end may have been among them."""


class HeardAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer after it was played to its end, or cut.

    Attributes:
        spans: What sounded, and when. Empty when it was cut before its first sample.
        played_ms: How much audio sounded.
        received_ms: How much had arrived.
        cut_at_ms: When it was dropped, if it was, on the client's clock.
    """

    response_id: str
    item_id: str
    spans: tuple[Span, ...]
    played_ms: float
    received_ms: float
    cut_at_ms: float | None

    @property
    def starts_at_ms(self) -> float | None:
        """When its first sample sounded."""
        return self.spans[0].starts_at_ms if self.spans else None

    @property
    def ends_at_ms(self) -> float | None:
        """When its last heard sample sounded."""
        return self.spans[-1].ends_at_ms if self.spans else None


class Sink(Protocol):
    """Takes each answer once, after it was heard."""

    def heard(self, answer: HeardAnswer) -> None:
        """Called in the order in which the answers ended; must not block for long."""
        ...


class _Track(msgspec.Struct, kw_only=True):
    """Where one answer stands."""

    item_id: str
    cut_at_ms: float | None = None
    complete: bool = False
    acked_ms: float = 0.0
    waits_until_ms: float | None = None

    def complete_at(self, now_ms: float) -> bool:
        """Whether no more of it is expected."""
        return self.complete or (self.waits_until_ms is not None and self.waits_until_ms <= now_ms)


def silences(event: Event) -> str | None:
    """The answer that ``event`` says must not be played any further, or ``None``.

    That is: its output buffer was cleared, speech over it was judged an interruption, or it was cancelled. That somebody
    began to speak is none of these: the server judges whether it was more than a "mhm".
    """
    match event:
        case OutputBufferCleared():
            return event.response_id
        case OverlapDecision(decision=OverlapVerdict.INTERRUPTION):
            return event.response_id
        case ResponseDone() if event.response.status is ResponseStatus.CANCELLED:
            return event.response.id
        case _:
            return None


class Player:
    """Plays what a connected client receives; use it as an async context manager inside the client's.

    Args:
        client: The client, connected.
        ack_every_ms: How often a playing answer is acknowledged (and once more at its end); ``None`` for never.
        sinks: Who gets the answers as heard.
    """

    def __init__(
        self, client: BaseDuplexClient, *, ack_every_ms: float | None = ACK_EVERY_MS, sinks: Sequence[Sink] = ()
    ) -> None:
        self.playback = PlaybackClock()
        self._client = client
        self._clock = client.clock
        self._ack_every_ms = ack_every_ms
        self._sinks = tuple(sinks)
        self._tracks: dict[str, _Track] = {}
        self._unobserve: Callable[[], object] = lambda: None
        self._moved = Signal()
        self._closed = False
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        stop = (self._client.observe(self._on_event), self._client.on_connection(self._on_change))
        self._unobserve = lambda: [each() for each in stop]
        self._tasks = [
            asyncio.create_task(self._run(), name="duplex-client player"),
            asyncio.create_task(self._outlive(), name="duplex-client player, connection"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unobserve()
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.wait(self._tasks)
        finally:  # a sink gets what was heard also when the leaving is cancelled
            now_ms = self._clock.now_ms()
            for response_id in list(self._tracks):
                self._silence(response_id, now_ms)
                self._finish(response_id, now_ms)
        for task in self._tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def playing(self) -> str | None:
        """The id of the answer that sounds now."""
        return self.playback.playing(self._clock.now_ms())

    def played_ms(self, response_id: str) -> float:
        """How much of an answer has sounded by now; 0 once it has been handed to the sinks."""
        return self.playback.played_ms(response_id, self._clock.now_ms())

    async def idle(self) -> None:
        """Wait until everything that has begun was heard or cut."""
        while self._tracks:
            await self._moved.wait()

    async def reached(self, response_id: str, played_ms: float) -> bool:
        """Wait until ``played_ms`` of an answer has sounded; ``False`` when it ended or was cut before."""
        while True:
            now_ms = self._clock.now_ms()
            at_ms = self.playback.sounds_at_ms(response_id, played_ms)
            if at_ms is not None and at_ms <= now_ms:
                return True
            handle = self._client.response(response_id)
            over = handle is None or handle.done or handle.events_lost or self._closed
            if at_ms is None and over and response_id not in self._tracks:
                return False
            await self._until(self._moved.wait(), at_ms)

    # -- in the receiving task: never waits ----------------------------------------------------------------------------

    def _on_event(self, event: Event, at_ms: float) -> None:
        if isinstance(event, OutputAudioDelta):
            self._queue(event, at_ms)
        elif isinstance(event, TurnEvent):
            self._hold(event.kind, at_ms)
        if (stale := silences(event)) is not None:
            self._silence(stale, at_ms)
            self.playback.resume(at_ms)
        if isinstance(event, ResponseDone) and (track := self._tracks.get(event.response.id)) is not None:
            track.complete = True
        self._news.set()
        self._moved.raise_()

    def _on_change(self, change: ConnectionChange) -> None:
        """Lost events may have ended an answer, or a hold: neither is waited for for ever."""
        if isinstance(change, ResyncRequired):
            self.playback.resume(change.at_ms)
            for track in self._tracks.values():
                track.waits_until_ms = change.at_ms + PATIENCE_MS
            self._news.set()
            self._moved.raise_()

    def _queue(self, event: OutputAudioDelta, at_ms: float) -> None:
        form = self._client.session.audio.output.format
        if form.type is not AudioEncoding.PCM16:
            raise ValueError(
                f"the player plays 16-bit PCM, but the session's output is {form.type.value}; "
                f"leave session.audio.output.format at audio/pcm"
            )
        if self.playback.add(event.response_id, event.delta, event.sample_rate_hz, at_ms):
            track = self._tracks.setdefault(event.response_id, _Track(item_id=event.item_id))
            track.waits_until_ms = None  # its end was not among what was lost, since that comes after its audio

    def _hold(self, kind: TurnEventKind, at_ms: float) -> None:
        """The user speaks over an answer: be silent until the server knows whether that interrupts."""
        if kind is TurnEventKind.HELD:
            self.playback.hold(at_ms)
        else:
            self.playback.resume(at_ms)

    def _silence(self, response_id: str, at_ms: float) -> None:
        """Drop an answer's rest; one that had sounded to its end is not cut by that."""
        track = self._tracks.get(response_id)
        whole = track is not None and track.complete_at(at_ms) and self._sounded(response_id, at_ms)
        self.playback.drop(at_ms, response_id)
        if track is not None and track.cut_at_ms is None and not whole:
            track.cut_at_ms = at_ms

    # -- in the player's own task --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._news.clear()
            now_ms = self._clock.now_ms()
            for response_id, track in list(self._tracks.items()):
                await self._tend(response_id, track, now_ms)
            await self._until(self._news.wait(), self._next_due_ms(now_ms))

    async def _outlive(self) -> None:
        """When the connection ends, what has arrived is all that there will be: play that."""
        await self._client.wait_closed()
        self._closed = True
        for track in self._tracks.values():
            track.complete = True
        self._news.set()
        self._moved.raise_()

    async def _tend(self, response_id: str, track: _Track, now_ms: float) -> None:
        """Acknowledge what is due of one answer, and let go of it when it has ended."""
        played_ms = self.playback.played_ms(response_id, now_ms)
        over = track.cut_at_ms is not None or (track.complete_at(now_ms) and self._sounded(response_id, now_ms))
        due = self._ack_every_ms is not None and played_ms >= track.acked_ms + self._ack_every_ms
        if (handle := self._client.response(response_id)) is not None:
            handle.heard(played_ms)
        if self._ack_every_ms is not None and (over or due) and (played_ms > track.acked_ms or track.cut_at_ms):
            track.acked_ms = played_ms
            cut = track.cut_at_ms is not None
            with suppress(ConnectionClosed):  # nobody left to tell; what has arrived is played all the same
                await self._client.ack_playback(played_ms, response_id=response_id, item_id=track.item_id, truncate=cut)
        if over:
            self._finish(response_id, now_ms)

    def _sounded(self, response_id: str, now_ms: float) -> bool:
        ends_at_ms = self.playback.ends_at_ms(response_id)
        return ends_at_ms is None or ends_at_ms <= now_ms

    async def _until(self, news: Coroutine[Any, Any, object], at_ms: float | None) -> None:
        """Sleep until there is news, but not beyond ``at_ms``."""
        waiting: list[asyncio.Future[object]] = [asyncio.ensure_future(news)]
        if at_ms is not None:
            waiting.append(asyncio.ensure_future(self._clock.sleep_until(at_ms)))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def _next_due_ms(self, now_ms: float) -> float | None:
        """When there is something to tell, if nothing happens before: an acknowledgement, an answer's end."""
        ends = [self.playback.ends_at_ms(response_id) for response_id in self._tracks]
        ends.extend(track.waits_until_ms for track in self._tracks.values())
        due = [end for end in ends if end is not None and now_ms < end < float("inf")]
        if self._ack_every_ms is not None and self.playback.playing(now_ms) is not None:
            due.append(now_ms + self._ack_every_ms)
        return min(due, default=None)

    def _finish(self, response_id: str, now_ms: float) -> None:
        track = self._tracks.pop(response_id)
        answer = HeardAnswer(
            response_id=response_id,
            item_id=track.item_id,
            spans=self.playback.spans(response_id, now_ms),
            played_ms=self.playback.played_ms(response_id, now_ms),
            received_ms=self.playback.generated_ms(response_id),
            cut_at_ms=track.cut_at_ms,
        )
        self.playback.forget(response_id)
        for sink in self._sinks:
            sink.heard(answer)
        self._moved.raise_()
