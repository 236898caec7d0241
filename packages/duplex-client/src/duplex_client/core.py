"""A session's traffic as an application sees it: send, ask, listen, wait.

:class:`ClientCore` is the lower half of every client, on top of :class:`~duplex_client.lifetime.ClientLifetime`; the
conversation's verbs stand on it in :mod:`duplex_client.base`. It opens and closes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

import msgspec

from duplex_client.connection import Connection, Observer
from duplex_client.errors import CommandRefused, ConnectionClosed, WaitTimeout
from duplex_client.lifetime import ClientLifetime
from duplex_client.responses import ResponseHandle
from duplex_client.streams import Mailbox
from duplex_core.commands import Command
from duplex_core.events import EVENT_TYPES, ErrorEvent, Event, ServerEvent

E = TypeVar("E", bound=ServerEvent)
Wanted = type[E] | Callable[[Event], bool]
"""What to wait for: an event class, or a predicate over events."""

ANSWER_TIMEOUT_S = 10.0
"""How long a command's direct answer may take: it needs no model."""


class ClientCore(ClientLifetime):
    """Sends on one session and listens to it."""

    async def send(self, command: Command) -> str:
        """Send ``command`` and return its ``event_id``, which is made when it has none.

        A refusal comes later as an ``error`` event that carries the id; :meth:`request` waits for it. While the
        connection is lost this waits until the session goes on, except for audio, which is dropped (``Resumed`` tells
        how much; the id returned is empty), and for ``playback.ack``, of which the last is sent later.

        Raises:
            ConnectionClosed: the session is over.
            NotConnected: there is none yet.
        """
        connection = self._connection
        if connection.ended is not None:
            raise connection.ended
        if command.event_id is None:
            command = msgspec.structs.replace(command, event_id=self._next_id())
        sent = await connection.link.send(command)
        return command.event_id or "" if sent else ""

    @overload
    async def request(self, command: Command, until: type[E], timeout_s: float = ...) -> E: ...
    @overload
    async def request(self, command: Command, until: Callable[[Event], bool], timeout_s: float = ...) -> Event: ...

    async def request(self, command: Command, until: Wanted[Any], timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Send ``command`` and return the first event after it that ``until`` asks for.

        Raises:
            CommandRefused: the server answered this very command with an error.
            ConnectionClosed: the session ended first.
            WaitTimeout: neither came in ``timeout_s``.
        """
        command = msgspec.structs.replace(command, event_id=command.event_id or self._next_id())
        wanted = _matcher(until)

        def settles(event: Event) -> bool:
            return wanted(event) or (isinstance(event, ErrorEvent) and event.error.event_id == command.event_id)

        waiting = self.wait_for(settles, timeout_s)
        try:
            await self.send(command)
        except BaseException:
            waiting.close()
            raise
        event = await waiting
        if isinstance(event, ErrorEvent) and not wanted(event):
            raise CommandRefused(event.error)
        return event

    def events(self) -> Mailbox[Event]:
        """Every event from now on, as an async iterator; any number may iterate, each gets all.

        It listens from the call, not from the first ``anext``, so nothing is missed between a call and its result. It
        ends after ``session.closed``; one that is too slow raises
        :class:`~duplex_client.ConsumerLagged`; a lost connection raises :class:`~duplex_client.ConnectionClosed`.
        """
        return self._connection.events()

    async def wait_closed(self) -> None:
        """Wait until the session is over, for whatever reason, and its last event has been handed on."""
        await self._connection.finished()

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call ``observer(event, at_ms)`` for every event from now on, before any iterator gets it.

        For what must react at once and never waits, such as a player; the returned function stops it. What an observer
        raises ends the connection and comes out of :meth:`close`.
        """
        return self._connection.observe(observer)

    def responses(self) -> Mailbox[ResponseHandle]:
        """The session's answers in order, as an async iterator.

        Each is handed out once, also one that began before this call; two iterators share them. The last 32 wait to be
        taken; when more came, the iterator says so with :class:`~duplex_client.ConsumerLagged` and goes on.
        """
        return self._connection.answers

    @overload
    def wait_for(self, what: type[E], timeout_s: float | None = ...) -> Coroutine[Any, Any, E]: ...
    @overload
    def wait_for(self, what: Callable[[Event], bool], timeout_s: float | None = ...) -> Coroutine[Any, Any, Event]: ...

    def wait_for(self, what: Wanted[Any], timeout_s: float | None = ANSWER_TIMEOUT_S) -> Coroutine[Any, Any, Any]:
        """Wait for the first event of a class, or one that a predicate accepts; ``None`` waits for ever.

        It listens from the call, so a command may be sent between the call and the ``await``; the time counts from the
        ``await``, and goes on while the connection is lost.

        Raises:
            ConnectionClosed: the session ended first.
            WaitTimeout: it did not come in ``timeout_s``.
        """
        return _first(self.events(), _matcher(what), _name(what), timeout_s, self._connection)


def _matcher(what: Wanted[Any]) -> Callable[[Event], bool]:
    if isinstance(what, type):
        return lambda event: isinstance(event, what)
    return what


def _name(what: Wanted[Any]) -> str:
    if isinstance(what, type):
        return next((name for name, cls in EVENT_TYPES.items() if cls is what), what.__name__)
    return "the awaited event"


async def _first(
    events: Mailbox[Event],
    wanted: Callable[[Event], bool],
    name: str,
    timeout_s: float | None,
    connection: Connection,
) -> Event:
    outages = connection.link.outages
    with events:
        try:
            async with asyncio.timeout(timeout_s):
                async for event in events:
                    if wanted(event):
                        return event
        except TimeoutError:
            lost = connection.link.outages > outages or not connection.link.connected
            hint = "; the connection was lost meanwhile, and a command with it may be" if lost else ""
            raise WaitTimeout(f"{name} did not come within {timeout_s:g} s{hint}") from None
    raise connection.ended or ConnectionClosed(f"the session ended before {name} came")
