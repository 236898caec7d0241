"""One session's receiving side: a task that takes every event once and hands it to all who want it.

Owns the receive task, the upkeep beside it, the handles of answers and the mailboxes of consumers. Made by
:class:`~duplex_client.lifetime.ClientLifetime` once for a session; the :class:`~duplex_client.link.Link` under it may change
sockets. It decides nothing about the conversation and sends nothing of it.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable

from duplex_client.changes import ConnectionChange, ResyncRequired, Watcher
from duplex_client.errors import ConnectionClosed, SessionExpired
from duplex_client.link import Link, Redial
from duplex_client.opening import Opening
from duplex_client.responses import ResponseHandle
from duplex_client.streams import Mailbox
from duplex_client.timing import Clock
from duplex_client.transport import Transport
from duplex_client.upkeep import Upkeep
from duplex_core.events import CloseReason, ErrorEvent, Event, ResponseCreated, ResponseDone, SessionClosed, SessionView

Observer = Callable[[Event, float], None]
"""Is called with each event and when it arrived (ms on the client's clock), in order, before any consumer gets it."""

EVENT_LIMIT = 4096
"""Events that wait for one consumer: about half a minute of the busiest conversation."""
RESPONSE_LIMIT = 32
"""Answers that wait to be taken."""

log = logging.getLogger("duplex_client")


class Connection:
    """One session's line, and everybody who listens on it.

    Args:
        transport: The first connection, on which the session is open.
        begun: How it was opened.
        clock: What stamps events and paces the upkeep.
        redial: How a lost connection is made again; ``None`` lets a loss be the end.
        heartbeat_s: See :class:`~duplex_client.upkeep.Upkeep`.
        ack_every: See :class:`~duplex_client.upkeep.Upkeep`.
        watch: Is told of every change of the connection.
    """

    def __init__(
        self,
        transport: Transport,
        begun: Opening,
        clock: Clock,
        *,
        redial: Redial | None,
        heartbeat_s: float | None,
        ack_every: int | None,
        watch: Watcher,
    ) -> None:
        self.link = Link(transport, begun, clock, redial=redial, tell=self._change)
        self.answers: Mailbox[ResponseHandle] = Mailbox(limit=RESPONSE_LIMIT, what="answers")
        self.ended: Exception | None = None
        self._watch = watch
        self._clock = clock
        self._observers: list[Observer] = []
        self._mailboxes: weakref.WeakSet[Mailbox[Event]] = weakref.WeakSet()
        self._open_answers: dict[str, ResponseHandle] = {}
        self._known_answers: weakref.WeakValueDictionary[str, ResponseHandle] = weakref.WeakValueDictionary()
        self._last: SessionClosed | None = None
        self._handed_over = False
        self._upkeep = Upkeep(self.link, clock, heartbeat_s=heartbeat_s, ack_every=ack_every)
        if begun.first_available_seq is not None:
            self.link.miss(until=begun.first_available_seq)
        name = f"duplex-client {begun.session.id}"
        self._tending = asyncio.create_task(self._upkeep.run(), name=f"{name}, upkeep")
        self._task = asyncio.create_task(self._receive(), name=name)

    @property
    def session(self) -> SessionView:
        """The session as last told."""
        return self.link.session

    def events(self) -> Mailbox[Event]:
        """A new mailbox, which gets every event from now on."""
        mailbox: Mailbox[Event] = Mailbox(limit=EVENT_LIMIT, what="events")
        if self.ended is not None:
            mailbox.end(self._loss())
        else:
            self._mailboxes.add(mailbox)
        return mailbox

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call ``observer`` for every event from now on; the returned function stops that."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer) if observer in self._observers else None

    def answer(self, response_id: str) -> ResponseHandle | None:
        """The handle of an answer that somebody still holds."""
        return self._known_answers.get(response_id)

    def speaking(self) -> ResponseHandle | None:
        """The answer that began last and is not done."""
        return next(reversed(self._open_answers.values()), None)

    async def finished(self, timeout_s: float | None = None) -> None:
        """Wait until the last event has been handed on, but no longer than ``timeout_s``."""
        await asyncio.wait([self._task], timeout=timeout_s)

    async def hand_over(self, timeout_s: float) -> None:
        """Let go of the session without ending it; what has arrived is handed on before this returns."""
        self._handed_over = True
        if not self.link.lost:
            await self.link.detach()
            await self.finished(timeout_s)

    async def stop(self) -> None:
        """Give the session up and wait for the tasks; an error that an observer raised comes out here."""
        try:
            if self.link.lost:
                self._task.cancel()
                await asyncio.wait([self._task])
            await self.link.close()
        finally:
            for task in (self._tending, self._task):
                task.cancel()
            await asyncio.wait([self._tending, self._task])
        for task in (self._task, self._tending):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def _loss(self) -> Exception | None:
        """What a consumer is told at the end: nothing when it came as the client asked."""
        asked_for = self._last is not None and self._last.reason is CloseReason.CLIENT
        return None if asked_for or self._handed_over else self.ended

    async def _receive(self) -> None:
        failure: Exception = ConnectionClosed("the client gave the connection up")
        try:
            while True:
                self._hand_on(await self.link.receive())
        except ConnectionClosed as exc:
            failure = exc if self._last is None else _told(self._last)
        except Exception as exc:
            failure = exc
            raise
        finally:
            self._end(failure)

    def _end(self, failure: Exception) -> None:
        self.ended = failure
        self._tending.cancel()
        self.link.end(failure)
        loss = self._loss()
        for handle in self._open_answers.values():
            handle.fail(failure)
        self._open_answers.clear()
        self.answers.end(loss)
        for mailbox in list(self._mailboxes):
            mailbox.end(loss)

    def _change(self, change: ConnectionChange) -> None:
        if isinstance(change, ResyncRequired):
            for handle in self._open_answers.values():
                handle.lose(change.first_lost_seq, change.last_lost_seq)
        self._watch(change)

    def _hand_on(self, event: Event) -> None:
        at_ms = self._clock.now_ms()
        match event:
            case SessionClosed():
                self._last = event
            case ResponseCreated():
                self._begin(ResponseHandle(event, at_ms))
            case ErrorEvent():
                log.warning("the server reports %s: %s", event.error.code.value, event.error.message)
            case _:
                self._feed(event, at_ms)
        for observer in list(self._observers):
            observer(event, at_ms)
        for mailbox in list(self._mailboxes):
            mailbox.put(event)
        self._upkeep.arrived()

    def _begin(self, handle: ResponseHandle) -> None:
        self._open_answers[handle.response_id] = handle
        self._known_answers[handle.response_id] = handle
        self.answers.put(handle)

    def _feed(self, event: Event, at_ms: float) -> None:
        response_id = event.response.id if isinstance(event, ResponseDone) else getattr(event, "response_id", None)
        handle = self._known_answers.get(response_id) if response_id is not None else None
        if handle is None:
            return
        handle.absorb(event, at_ms)
        if isinstance(event, ResponseDone):
            self._open_answers.pop(handle.response_id, None)


def _told(last: SessionClosed) -> ConnectionClosed:
    detail = f": {last.error.message}" if last.error is not None else ""
    kind = SessionExpired if last.reason is CloseReason.EXPIRED else ConnectionClosed
    return kind(f"the server closed the session ({last.reason.value}){detail}", reason=last.reason, info=last.error)
