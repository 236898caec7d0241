"""Observers of sessions, kept at arm's length.

Owns the calls to the observers that plugins registered: each on an iteration of the event loop of its own, in order, so that
what one raises reaches the loop's exception handler (which logs it) and never the session. Called by the session runner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from duplex_core.events import CloseReason, Event
from duplex_core.observers import ObservedSession, SessionObserver


class Watch:
    """The observers of one session. One that raises is told nothing more about this session."""

    def __init__(self, observers: Sequence[SessionObserver]) -> None:
        """Watch with all of ``observers``."""
        self._observers = list(observers)
        self._loop = asyncio.get_running_loop()

    def opened(self, session: ObservedSession) -> None:
        """The session was admitted."""
        for observer in self._observers:
            self._call(observer, lambda observer=observer: observer.opened(session))  # type: ignore[misc]

    def event(self, session_id: str, event: Event) -> None:
        """The session tells its client something."""
        for observer in self._observers:
            self._call(observer, lambda observer=observer: observer.event(session_id, event))  # type: ignore[misc]

    def closed(self, session_id: str, reason: CloseReason) -> None:
        """The session has ended."""
        for observer in self._observers:
            self._call(observer, lambda observer=observer: observer.closed(session_id, reason))  # type: ignore[misc]

    def _call(self, observer: SessionObserver, tell: Callable[[], None]) -> None:
        self._loop.call_soon(self._tell, observer, tell)

    def _tell(self, observer: SessionObserver, tell: Callable[[], None]) -> None:
        if observer not in self._observers:
            return
        told = False
        try:
            tell()
            told = True
        finally:
            if not told:
                self._observers.remove(observer)
