"""What a client's calls can raise: one family, so that an application can catch all of it or one kind.

Raised by everything in this package. Never holds anything but what the application needs to act: the server's own
:class:`~duplex_core.errors.ErrorInfo` where there is one, else a sentence that says what was wrong and what to do.
"""

from __future__ import annotations

from duplex_core.errors import ErrorInfo
from duplex_core.events import CloseReason


class DuplexClientError(Exception):
    """Base of everything that a client raises on purpose."""


class NotConnected(DuplexClientError):
    """A call that needs a session came before ``connect`` (or outside of ``async with``)."""


class ConnectFailed(DuplexClientError):
    """No server could be reached at the address; the cause is chained."""


class ServerRefused(DuplexClientError):
    """The server answered and would not open a session.

    ``info`` is its error where it sent one; ``status`` the HTTP status where the socket itself was refused.
    """

    def __init__(self, message: str, *, info: ErrorInfo | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.info = info
        self.status = status

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.info is not None and self.info.retryable


class ConnectionClosed(DuplexClientError):
    """The session is over: nothing more can be sent, and what was waited for will not come.

    ``reason`` and ``info`` are the server's, when it could still say why; ``code`` is the WebSocket close code that it
    sent, ``None`` when the connection went without one.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: CloseReason | None = None,
        info: ErrorInfo | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.info = info
        self.code = code


class ProtocolError(ConnectionClosed):
    """The server sent something that the wire contract does not allow; the connection was given up."""


class SessionReplaced(ConnectionClosed):
    """Another client took the session over; it goes on there."""


class SessionExpired(ConnectionClosed):
    """The session's lease ran out, so the server ended it."""


class ReconnectFailed(ConnectionClosed):
    """The connection was lost and the session could not be taken up again; the last attempt's failure is chained.

    ``info`` is the server's error where it refused: ``session_not_found`` when the session is gone and forgotten.
    """


class CommandRefused(DuplexClientError):
    """The server answered a command with an error that carries its ``event_id``; nothing changed there."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class WaitTimeout(DuplexClientError, TimeoutError):
    """What was waited for did not come in time."""


class EventsLost(DuplexClientError):
    """The connection was lost for longer than the server keeps events, so part of an answer is missing.

    What the server has of it stands in its item: ``retrieve_item``.
    """


class ConsumerLagged(DuplexClientError):
    """A consumer took its items more slowly than they came, and ``missed`` of them were dropped.

    Raised once by the iterator, which then goes on with the oldest item that it still has.
    """

    def __init__(self, what: str, missed: int) -> None:
        super().__init__(
            f"{missed} {what} were dropped because they were not taken in time; take them in their own task, "
            f"or do the slow work elsewhere"
        )
        self.missed = missed
