"""The first words on a new connection: a session of its own, one taken up again, or a refusal.

Called by :mod:`duplex_client.lifetime` for a client's first connection and by :mod:`duplex_client.link` for every later one.
It takes no event beyond the one that opens the session, sends nothing and closes nothing.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from duplex_client.errors import ConnectionClosed, ServerRefused
from duplex_client.transport import Transport, UnknownEvent
from duplex_core.events import (
    ErrorEvent,
    ServerEvent,
    SessionClosed,
    SessionCreated,
    SessionResumed,
    SessionResyncRequired,
    SessionView,
)

E = TypeVar("E", bound=ServerEvent)


class SessionOver(ServerRefused):
    """The session that was to be taken up has ended; ``last`` is its last event, which says why."""

    def __init__(self, last: SessionClosed) -> None:
        told = f": {last.error.message}" if last.error is not None else ""
        super().__init__(f"the session has ended ({last.reason.value}){told}", info=last.error)
        self.last = last


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """How a session was opened.

    Attributes:
        session: The session, with the token that resumes it next time.
        last_seq: The last event's number that the client has; the next in the sequence is one more.
        replayed_events: How many events the server says will be told again.
        first_available_seq: The first event that the server still has, when it said that some are gone.
    """

    session: SessionView
    last_seq: int
    replayed_events: int = 0
    first_available_seq: int | None = None


async def created(transport: Transport) -> Opening:
    """Wait for the session that the server opens by itself.

    Raises:
        ServerRefused: an error came instead, or the end.
    """
    try:
        event = await _one_of(transport, (SessionCreated,), "session.created")
    except ConnectionClosed as exc:
        raise ServerRefused(f"the server opened no session: {exc}", info=exc.info) from exc
    return Opening(session=event.session, last_seq=event.server_event_seq)


async def resumed(transport: Transport, last_seq: int) -> Opening:
    """Wait for the session that was asked for, of which the client has all events up to ``last_seq``.

    Raises:
        SessionOver: it has ended.
        ServerRefused: the server would not give it.
        ConnectionClosed: the connection went before the server said anything.
    """
    first_available_seq: int | None = None
    wanted = (SessionResumed, SessionResyncRequired, SessionClosed)
    while True:
        event: SessionResumed | SessionResyncRequired | SessionClosed
        event = await _one_of(transport, wanted, "session.resumed")
        if isinstance(event, SessionClosed):
            raise SessionOver(event)
        if isinstance(event, SessionResumed):
            return Opening(
                session=event.session,
                last_seq=last_seq,
                replayed_events=event.replayed_events,
                first_available_seq=first_available_seq,
            )
        first_available_seq = event.first_available_seq


async def _one_of(transport: Transport, wanted: tuple[type[E], ...], name: str) -> E:
    """The first event, which must be one of ``wanted``; events that this client does not know are passed over."""
    refusal: ErrorEvent | None = None
    while True:
        try:
            event = await transport.receive()
        except ConnectionClosed as exc:
            if refusal is not None:
                raise _refused(refusal.error.message, refusal) from exc
            raise
        if isinstance(event, wanted):
            return event
        match event:
            case ErrorEvent():
                refusal = event
            case SessionClosed():
                told = event.error.message if event.error is not None else event.reason.value
                raise _refused(refusal.error.message if refusal is not None else told, refusal or event)
            case UnknownEvent():
                pass
            case _:
                raise ServerRefused(f"the server began with {type(event).__name__} instead of {name}")


def _refused(told: str, event: ErrorEvent | SessionClosed) -> ServerRefused:
    return ServerRefused(f"the server opened no session: {told}", info=event.error)
