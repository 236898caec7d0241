"""What :class:`~duplex_client.InlineDuplexClient` needs of an engine: two protocols, and two more to take sessions over.

An engine in the same process (``duplex_server``'s, or a test's) satisfies them by shape; the application hands it over.
This package imports no server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from duplex_core.commands import Command
from duplex_core.events import Event


class SessionHandle(Protocol):
    """One open session."""

    @property
    def session_id(self) -> str:
        """The id that the engine gave it."""
        ...

    async def submit(self, command: Command) -> None:
        """Take one command; what follows from it comes as events."""
        ...

    def events(self) -> AsyncIterator[Event]:
        """Every event in order, ``session.created`` first, ending after ``session.closed``."""
        ...


@runtime_checkable
class DetachableHandle(Protocol):
    """A session that can be let go without ending it."""

    def detach(self) -> None:
        """Take no more events here; the session waits for whoever resumes it, for as long as the engine's grace."""
        ...


class Engine(Protocol):
    """Opens sessions."""

    async def open_session(self) -> SessionHandle:
        """Open one.

        Raises:
            DuplexError: the engine has no room or cannot serve.
        """
        ...

    async def close_session(self, session_id: str) -> None:
        """End it, whatever its state; idempotent."""
        ...


class ResumableEngine(Engine, Protocol):
    """Gives sessions to whoever has their token."""

    async def resume_session(self, session_id: str, token: str, last_seq: int) -> SessionHandle:
        """Take a session over; its events begin with ``session.resumed``, then come those after ``last_seq``.

        Raises:
            DuplexError: there is no such session, or the token is not its.
        """
        ...
