"""One connection's receiving side: a task that takes every event once and hands it to all who want it.

Owns the receive task, the session as last told, the handles of answers and the mailboxes of consumers. Made by
:class:`~duplex_client.core.ClientCore` for each connection. It decides nothing about the conversation and sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable

from duplex_client.errors import ConnectionClosed
from duplex_client.responses import ResponseHandle
from duplex_client.streams import Mailbox
from duplex_client.timing import Clock
from duplex_client.transport import Transport
from duplex_core.events import (
    CloseReason,
    ErrorEvent,
    Event,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionCreated,
    SessionResumed,
    SessionUpdated,
)

Observer = Callable[[Event, float], None]
"""Is called with each event and when it arrived (ms on the client's clock), in order, before any consumer gets it."""

EVENT_LIMIT = 4096
"""Events that wait for one consumer: about half a minute of the busiest conversation."""
RESPONSE_LIMIT = 32
"""Answers that wait to be taken."""

log = logging.getLogger("duplex_client")


class Connection:
    """One attached transport."""

    def __init__(self, transport: Transport, created: SessionCreated, clock: Clock) -> None:
        self.transport = transport
        self.session = created.session
        self.answers: Mailbox[ResponseHandle] = Mailbox(limit=RESPONSE_LIMIT, what="answers")
        self.ended: Exception | None = None
        self._clock = clock
        self._observers: list[Observer] = []
        self._mailboxes: weakref.WeakSet[Mailbox[Event]] = weakref.WeakSet()
        self._open_answers: dict[str, ResponseHandle] = {}
        self._known_answers: weakref.WeakValueDictionary[str, ResponseHandle] = weakref.WeakValueDictionary()
        self._last: SessionClosed | None = None
        self._task = asyncio.create_task(self._receive(), name=f"duplex-client {created.session.id}")

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

    async def stop(self) -> None:
        """Give the transport up and wait for the receive task; an error that an observer raised comes out here."""
        try:
            await self.transport.close()
        finally:
            if not self._task.done():
                self._task.cancel()
            await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    def _loss(self) -> Exception | None:
        """What a consumer is told at the end: nothing when the session was closed as the client asked."""
        if self._last is not None and self._last.reason is CloseReason.CLIENT:
            return None
        return self.ended

    async def _receive(self) -> None:
        failure: Exception = ConnectionClosed("the client gave the connection up")
        try:
            while True:
                self._hand_on(await self.transport.receive())
        except ConnectionClosed as exc:
            failure = exc if self._last is None else _told(self._last)
        except Exception as exc:
            failure = exc
            raise
        finally:
            self._end(failure)

    def _end(self, failure: Exception) -> None:
        self.ended = failure
        loss = self._loss()
        for handle in self._open_answers.values():
            handle.fail(failure)
        self._open_answers.clear()
        self.answers.end(loss)
        for mailbox in list(self._mailboxes):
            mailbox.end(loss)

    def _hand_on(self, event: Event) -> None:
        at_ms = self._clock.now_ms()
        match event:
            case SessionCreated() | SessionUpdated() | SessionResumed():
                self.session = event.session
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
    return ConnectionClosed(
        f"the server closed the session ({last.reason.value}){detail}", reason=last.reason, info=last.error
    )
