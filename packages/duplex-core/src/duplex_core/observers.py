"""Who watches sessions from the side: recorders, analytics, audits.

Owns the contract between the server, which calls it, and a plugin, which implements it. Nothing here, and nothing in an
observer, may change what a session does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from duplex_core.authentication import Principal
from duplex_core.config import SessionConfig
from duplex_core.events import CloseReason, Event


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSession:
    """What an observer is told about a session when it opens.

    Attributes:
        session_id: its id.
        config: the configuration that it opens with.
        principal: who has opened it, as the server has recognised them: the holder of its key (id ``api-key``), of a client
            secret (``client-secret``), whoever an authenticator of a plugin's has named, or anybody (``anybody``) where no key
            is asked for. ``None`` for a session that a program in the server's own process has opened without saying for whom.
            It stays who has opened the session, also when another client takes it up.
    """

    session_id: str
    config: SessionConfig
    principal: Principal | None = None


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
