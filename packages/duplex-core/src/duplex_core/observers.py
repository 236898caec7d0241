"""Who watches sessions from the side: recorders, analytics, audits.

Owns the contract between the server, which calls it, and a plugin, which implements it. Nothing here, and nothing in an
observer, may change what a session does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from duplex_core.config import SessionConfig
from duplex_core.events import CloseReason, Event


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSession:
    """What an observer is told about a session when it opens: its id and the configuration that it opens with."""

    session_id: str
    config: SessionConfig


class SessionObserver(Protocol):
    """Told of every session of a server, on its event loop, so no method may block: queue what takes time.

    For each session the calls are ``opened``, then ``event`` for each event in the order in which the client gets them,
    then ``closed``, once. Calls for different sessions interleave. What a method raises is logged and ends the observing
    of that session; the session itself goes on.
    """

    def opened(self, session: ObservedSession) -> None:
        """A session was admitted; nothing has been sent to its client yet."""

    def event(self, session_id: str, event: Event) -> None:
        """The session told its client ``event``; audio is ``bytes`` in the session's output format."""

    def closed(self, session_id: str, reason: CloseReason) -> None:
        """The session has ended and its slot is free."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionObserverSpec:
    """An observer that a package offers. ``create`` is called once, when the server starts, and may open files."""

    id: str
    summary: str
    create: Callable[[], SessionObserver]
