"""A session's life in a client: opened or taken over, held through losses of the connection, handed over or closed.

:class:`ClientLifetime` is the lowest part of every client; sending and listening stand on it in :mod:`duplex_client.core`. It
knows no transport but through :class:`~duplex_client.transport.Transport`.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from duplex_client import opening
from duplex_client.changes import ConnectionChange, ResumePoint, Watcher
from duplex_client.connection import Connection
from duplex_client.errors import ConnectionClosed, NotConnected, ServerRefused, WaitTimeout
from duplex_client.link import Redial
from duplex_client.opening import Opening
from duplex_client.timing import Clock, LoopClock
from duplex_client.transport import Transport
from duplex_client.upkeep import check_intervals
from duplex_core.commands import SessionClose, SessionEventAck
from duplex_core.events import SessionView

CLOSE_TIMEOUT_S = 5.0
HEARTBEAT_S = 10.0
ACK_EVERY = 100


class ClientLifetime(ABC):
    """Opens, holds and closes one session; use a subclass as an async context manager.

    Args:
        clock: What paces sent audio, heartbeats and attempts to reconnect, and stamps received events; the event loop's
            own by default.
        open_timeout_s: How long connecting may take, until ``session.created``.
        heartbeat_s: Seconds between heartbeats, which keep an idle session from expiring and find a dead connection;
            ``None`` for none.
        ack_every: After how many events the server is told that it may forget them; ``None`` for never.

    Raises:
        ValueError: an interval that is not above zero.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        open_timeout_s: float = 20.0,
        heartbeat_s: float | None = HEARTBEAT_S,
        ack_every: int | None = ACK_EVERY,
    ) -> None:
        check_intervals(heartbeat_s, ack_every)
        self.clock: Clock = clock or LoopClock()
        self._open_timeout_s = open_timeout_s
        self._heartbeat_s = heartbeat_s
        self._ack_every = ack_every
        self._origin: ResumePoint | None = None
        self._current: Connection | None = None
        self._watchers: list[Watcher] = []
        self._ids = itertools.count(1)

    @abstractmethod
    async def _open(self, resume: ResumePoint | None) -> Transport:
        """Reach the other side, for a session of its own or for the one at ``resume``."""

    def _redial(self) -> Redial | None:
        """How a lost connection is made again; ``None`` where there is nothing to lose."""
        return None

    async def connect(self) -> SessionView:
        """Open the session, or take over the one that this client was made for, and wait until it can be used.

        Raises:
            ConnectFailed: no server can be reached.
            ServerRefused: the server would not open a session, or not give this one.
            WaitTimeout: it did neither in ``open_timeout_s``.
        """
        if self._current is not None:
            raise NotConnected("this client already has, or had, its session; make a new client for another one")
        transport = await self._open(self._origin)
        try:
            async with asyncio.timeout(self._open_timeout_s):
                begun = await self._begin(transport)
        except BaseException as exc:
            await (transport.close() if self._origin is None else transport.drop())
            if isinstance(exc, TimeoutError):
                what = "session.created" if self._origin is None else "session.resumed"
                raise WaitTimeout(f"no {what} came within {self._open_timeout_s:g} s") from None
            raise
        self._current = Connection(
            transport,
            begun,
            self.clock,
            redial=self._redial(),
            heartbeat_s=self._heartbeat_s,
            ack_every=self._ack_every,
            watch=self._watch,
        )
        return begun.session

    async def _begin(self, transport: Transport) -> Opening:
        if self._origin is None:
            return await opening.created(transport)
        try:
            begun = await opening.resumed(transport, self._origin.last_server_event_seq)
            await transport.send(SessionEventAck(server_event_seq=begun.last_seq))  # its new token has arrived
        except ConnectionClosed as exc:
            raise ServerRefused(f"the server gave no session: {exc}", info=exc.info) from exc
        return begun

    async def close(self, reason: str | None = None) -> None:
        """Hang up: tell the server, wait for its ``session.closed``, give the connection up. Idempotent.

        While there is no connection nobody can be told, and the server ends the session when its grace is over.
        """
        connection = self._current
        if connection is None:
            return
        try:
            if connection.ended is None:
                await connection.link.send(SessionClose(reason=reason, event_id=self._next_id()))
                await connection.finished(CLOSE_TIMEOUT_S)
        except ConnectionClosed:
            pass  # it ended by itself: just what was wanted
        finally:
            await connection.stop()

    async def detach(self) -> ResumePoint:
        """Let go of the session without ending it, and say from where it can be taken over; this client is then done.

        The server keeps the session for its disconnect grace.

        Raises:
            ConnectionClosed: the session is over.
            NotConnected: there is none, or the server gave no token for it.
        """
        connection = self._connection
        if connection.ended is not None:
            raise connection.ended
        if connection.link.point is None:
            raise NotConnected("this server cannot give the session to another client: it gave no resume_token")
        try:
            await connection.hand_over(CLOSE_TIMEOUT_S)
        finally:
            await connection.stop()
        point = connection.link.point
        assert point is not None, "a token does not go away"
        return point

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

    @property
    def connected(self) -> bool:
        """Whether the session can be reached at this moment, as far as is known."""
        return self._current is not None and self._current.link.connected

    @property
    def resume_point(self) -> ResumePoint | None:
        """From where another client could take the session over now; ``None`` when the server gave no token.

        Its token is good until this client, or another, resumes the session.
        """
        return self._connection.link.point

    def on_connection(self, watcher: Watcher) -> Callable[[], None]:
        """Call ``watcher`` for every change of the connection from now on; the returned function stops it.

        Each loss is told once (``Reconnecting``), and so is its good end (``Resumed``) and that events are missing
        (``ResyncRequired``). A bad end is the session's: every wait and iterator raises it. A watcher must not wait; what
        it raises ends the session and comes out of :meth:`close`.
        """
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher) if watcher in self._watchers else None

    def _watch(self, change: ConnectionChange) -> None:
        for watcher in list(self._watchers):
            watcher(change)

    @property
    def _connection(self) -> Connection:
        if self._current is None:
            raise NotConnected("there is no session yet: use `async with` on the client, or await its connect()")
        return self._current

    def _next_id(self) -> str:
        return f"cmd_{next(self._ids)}"
