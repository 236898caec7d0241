"""The first words on a new connection: a session of its own, one taken up again, or a refusal.

Called by :mod:`duplex_client.lifetime` for a client's first connection and by :mod:`duplex_client.link` for every later one.
It takes no event beyond the one that opens the session, sends nothing and closes nothing.
"""

from __future__ import annotations

import msgspec

from duplex_client.errors import ConnectionClosed, ServerRefused
from duplex_client.transport import Transport, UnknownEvent
from duplex_core.events import (
    ErrorEvent,
    SessionClosed,
    SessionCreated,
    SessionResumed,
    SessionResyncRequired,
    SessionView,
)


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
    return await _read(transport, None)


async def resumed(transport: Transport, last_seq: int) -> Opening:
    """Wait for the session that was asked for, of which the client has all events up to ``last_seq``.

    Raises:
        ServerRefused: the server would not give it.
        ConnectionClosed: the connection went before the server said anything.
    """
    return await _read(transport, last_seq)


async def _read(transport: Transport, last_seq: int | None) -> Opening:
    refusal: ErrorEvent | None = None
    gap: SessionResyncRequired | None = None
    while True:
        try:
            event = await transport.receive()
        except ConnectionClosed as exc:
            if refusal is not None:
                raise _refused(refusal.error.message, refusal) from exc
            if last_seq is None:
                raise ServerRefused(f"the server opened no session: {exc}", info=exc.info) from exc
            raise
        match event:
            case SessionCreated() if last_seq is None:
                return Opening(session=event.session, last_seq=event.server_event_seq)
            case SessionResumed() if last_seq is not None:
                return Opening(
                    session=event.session,
                    last_seq=last_seq,
                    replayed_events=event.replayed_events,
                    first_available_seq=gap.first_available_seq if gap is not None else None,
                )
            case SessionResyncRequired():
                gap = event
            case ErrorEvent():
                refusal = event
            case SessionClosed():
                told = event.error.message if event.error is not None else event.reason.value
                raise _refused(refusal.error.message if refusal is not None else told, refusal or event)
            case UnknownEvent():
                pass
            case _:
                wanted = "session.created" if last_seq is None else "session.resumed"
                raise ServerRefused(f"the server began with {type(event).__name__} instead of {wanted}")


def _refused(told: str, event: ErrorEvent | SessionClosed) -> ServerRefused:
    return ServerRefused(f"the server opened no session: {told}", info=event.error)
