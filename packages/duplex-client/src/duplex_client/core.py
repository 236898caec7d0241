"""A session's life as an application sees it: connect, send, listen, wait, close.

:class:`ClientCore` is the lower half of every client; the conversation's verbs stand on it in
:mod:`duplex_client.base`. It knows no transport but through :class:`~duplex_client.transport.Transport`.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import msgspec

from duplex_client.connection import Connection, Observer
from duplex_client.errors import CommandRefused, ConnectionClosed, NotConnected, ServerRefused, WaitTimeout
from duplex_client.responses import ResponseHandle
from duplex_client.streams import Mailbox
from duplex_client.timing import Clock, LoopClock
from duplex_client.transport import Transport
from duplex_core.commands import Command, SessionClose
from duplex_core.events import EVENT_TYPES, ErrorEvent, Event, ServerEvent, SessionClosed, SessionCreated, SessionView

E = TypeVar("E", bound=ServerEvent)
Wanted = type[E] | Callable[[Event], bool]
"""What to wait for: an event class, or a predicate over events."""

ANSWER_TIMEOUT_S = 10.0
"""How long a command's direct answer may take: it needs no model."""
CLOSE_TIMEOUT_S = 5.0


class ClientCore(ABC):
    """Lifetime and plumbing of one session; use a subclass as an async context manager.

    Args:
        clock: What paces sent audio and stamps received events; the event loop's own by default.
        open_timeout_s: How long connecting may take, until ``session.created``.
    """

    def __init__(self, *, clock: Clock | None = None, open_timeout_s: float = 20.0) -> None:
        self.clock: Clock = clock or LoopClock()
        self._open_timeout_s = open_timeout_s
        self._current: Connection | None = None
        self._ids = itertools.count(1)

    @abstractmethod
    async def _open(self) -> Transport:
        """Reach the other side; called once by :meth:`connect`."""

    async def connect(self) -> SessionView:
        """Open the session and wait until it can be used.

        Raises:
            ConnectFailed: no server can be reached.
            ServerRefused: the server would not open a session.
            WaitTimeout: it did neither in ``open_timeout_s``.
        """
        if self._current is not None:
            raise NotConnected("this client already has, or had, its session; make a new client for another one")
        transport = await self._open()
        try:
            async with asyncio.timeout(self._open_timeout_s):
                created = await _first_event(transport)
        except TimeoutError:
            await transport.close()
            raise WaitTimeout(f"no session.created came within {self._open_timeout_s:g} s") from None
        except BaseException:
            await transport.close()
            raise
        self._current = Connection(transport, created, self.clock)
        return created.session

    async def close(self, reason: str | None = None) -> None:
        """Hang up: tell the server, wait for its ``session.closed``, give the connection up. Idempotent."""
        connection = self._current
        if connection is None:
            return
        try:
            if connection.ended is None:
                await connection.transport.send(SessionClose(reason=reason, event_id=self._next_id()))
                await connection.finished(CLOSE_TIMEOUT_S)
        except ConnectionClosed:
            pass  # it ended by itself: just what was wanted
        finally:
            await connection.stop()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def session(self) -> SessionView:
        """The session as the server last showed it."""
        return self._connection.session

    async def send(self, command: Command) -> str:
        """Send ``command`` and return its ``event_id``, which is made when it has none.

        A refusal comes later as an ``error`` event that carries the id; :meth:`request` waits for it.

        Raises:
            ConnectionClosed: the session is over.
            NotConnected: there is none yet.
        """
        connection = self._connection
        if connection.ended is not None:
            raise connection.ended
        if command.event_id is None:
            command = msgspec.structs.replace(command, event_id=self._next_id())
        await connection.transport.send(command)
        return command.event_id or ""

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
        ``await``.

        Raises:
            ConnectionClosed: the session ended first.
            WaitTimeout: it did not come in ``timeout_s``.
        """
        return _first(self.events(), _matcher(what), _name(what), timeout_s, self._connection)

    @property
    def _connection(self) -> Connection:
        if self._current is None:
            raise NotConnected("there is no session yet: use `async with` on the client, or await its connect()")
        return self._current

    def _next_id(self) -> str:
        return f"cmd_{next(self._ids)}"


async def _first_event(transport: Transport) -> SessionCreated:
    """The ``session.created`` that a session opens with.

    Raises:
        ServerRefused: an error, or the end, came instead.
    """
    refusal: ErrorEvent | None = None
    while True:
        try:
            event = await transport.receive()
        except ConnectionClosed as exc:
            if refusal is not None:
                info = refusal.error
                raise ServerRefused(f"the server opened no session: {info.message}", info=info) from exc
            raise ServerRefused(f"the server opened no session: {exc}", info=exc.info) from exc
        match event:
            case SessionCreated():
                return event
            case ErrorEvent():
                refusal = event
            case SessionClosed():
                cause = event.error if refusal is None else refusal.error
                told = cause.message if cause is not None else event.reason.value
                raise ServerRefused(f"the server opened no session: {told}", info=cause)
            case _:
                raise ServerRefused(f"the server began with {type(event).__name__} instead of session.created")


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
    with events:
        try:
            async with asyncio.timeout(timeout_s):
                async for event in events:
                    if wanted(event):
                        return event
        except TimeoutError:
            raise WaitTimeout(f"{name} did not come within {timeout_s:g} s") from None
    raise connection.ended or ConnectionClosed(f"the session ended before {name} came")
