"""What :class:`~duplex_client.InlineDuplexClient` needs of an engine: two protocols.

An engine in the same process (``duplex_server``'s, or a test's) satisfies them by shape; the application hands it over.
This package imports no server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

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
