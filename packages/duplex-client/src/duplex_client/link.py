"""One session's line to its server, over as many connections as it takes.

Owns what a session keeps when a socket breaks: the resume token, the number of the last event, what was sent meanwhile. Used
by :class:`~duplex_client.connection.Connection`, which alone receives from it, and by everything that sends. Each event comes
out once and in the server's order, whatever the connections do. It decides nothing about the conversation, and it never
replays a command that a connection took: one that was on its way when the connection broke may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from duplex_client import opening
from duplex_client.backoff import ReconnectPolicy, Rng, delay_ms, may_pass
from duplex_client.changes import Reconnecting, Resumed, ResumePoint, ResyncRequired, Watcher
from duplex_client.errors import (
    ConnectFailed,
    ConnectionClosed,
    DuplexClientError,
    ReconnectFailed,
    ServerRefused,
    SessionExpired,
    SessionReplaced,
    WaitTimeout,
)
from duplex_client.opening import Opening, SessionOver
from duplex_client.outage import Outage
from duplex_client.streams import Signal
from duplex_client.timing import Clock
from duplex_client.transport import Transport, UnknownEvent
from duplex_core import events as told
from duplex_core.commands import Command, SessionClose, SessionEventAck
from duplex_core.events import Event, SessionView

Dial = Callable[[ResumePoint], Awaitable[Transport]]
"""Makes a new connection and asks for the session on it."""


class Redial(msgspec.Struct, frozen=True, kw_only=True):
    """How a lost connection is made again. ``attempt_timeout_s`` bounds one attempt."""

    dial: Dial
    policy: ReconnectPolicy
    rng: Rng
    attempt_timeout_s: float


class Link:
    """The line of one session.

    Args:
        transport: The first connection, on which the session is open.
        begun: How it was opened.
        clock: What times are told by and waits are counted on.
        redial: How to connect again; ``None`` lets the first loss be the end.
        tell: Is told of every change of the connection, before any event that follows it.

    Attributes:
        session: The session as the server last showed it.
        last_seq: The number of the last event that came out; 0 for a server that does not number.
        received: How many events came in on all connections, repeated and unknown ones too.
        outages: How many times the connection was lost and made again.
    """

    def __init__(
        self, transport: Transport, begun: Opening, clock: Clock, *, redial: Redial | None, tell: Watcher
    ) -> None:
        self.session: SessionView = begun.session
        self.last_seq = begun.last_seq
        self.received = 0
        self.outages = 0
        self._token = begun.session.resume_token
        self._transport = transport
        self._attached: Transport | None = transport
        self._attached_at_ms = clock.now_ms()
        self._clock = clock
        self._redial = redial
        self._tell = tell
        self._attempts = 0
        self._outage = Outage()
        self._moved = Signal()
        self._parting = False
        self._lost = False
        self._expired: SessionExpired | None = None
        self._final: Exception | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment, as far as is known."""
        return self._attached is not None and self._final is None

    @property
    def lost(self) -> bool:
        """Whether the receiving task is out for a new connection; cancelling it ends that."""
        return self._lost

    @property
    def point(self) -> ResumePoint | None:
        """From where the session can be taken up; ``None`` when the server gave no token."""
        if self._token is None:
            return None
        return ResumePoint(session_id=self.session.id, resume_token=self._token, last_server_event_seq=self.last_seq)

    @property
    def resumable(self) -> bool:
        """Whether a loss of the connection would be made good."""
        return self._redial is not None and self._token is not None and not self._parting

    # -- sending -------------------------------------------------------------------------------------------------------

    async def send(self, command: Command) -> bool:
        """Pass a command on; ``False`` when it was dropped, or kept as a mere figure, since there is no connection.

        Without a connection audio, heartbeats and acknowledgements of events are dropped; of the acknowledgements of
        playback the last for each answer is kept; everything else waits here until the session goes on.

        Raises:
            ConnectionClosed: the session is over, or it is to be hung up while there is no connection.
        """
        while True:
            if self._final is not None:
                raise self._final
            if self._attached is None:
                if isinstance(command, SessionClose):
                    raise ConnectionClosed("there is no connection to hang up; the server ends the session by itself")
                if self._outage.absorb(command, self.session.audio.input.format):
                    return False
                await self._moved.wait()
                continue
            transport = self._attached
            self._parting = self._parting or isinstance(command, SessionClose)
            try:
                await transport.send(command)
            except ConnectionClosed:
                if not self.resumable:
                    raise
                if self._attached is transport:
                    self._attached = None  # the receiving task will find out too, once it has taken what has arrived
                continue
            return True

    def end(self, failure: Exception) -> None:
        """There will be no connection any more: whoever waits to send is told why."""
        self._final, self._attached = failure, None
        self._moved.raise_()

    async def close(self) -> None:
        """Hang up; a session that is somebody else's by now, or out of reach, is left alone."""
        self._parting = True
        if self._lost or isinstance(self._final, SessionReplaced):
            await self._transport.drop()
        else:
            await self._transport.close()

    async def detach(self) -> None:
        """Let go of the session without ending it; :attr:`point` is right once :meth:`receive` has raised."""
        self._parting = True
        if not self._lost:
            await self._transport.detach()

    async def drop(self) -> None:
        """Break the connection, since it is dead; the session is then resumed as after any other loss."""
        if self._attached is not None:
            await self._attached.drop()

    # -- receiving: one task only --------------------------------------------------------------------------------------

    async def receive(self) -> Event:
        """The session's next event, none twice and none before its turn.

        Raises:
            ConnectionClosed: there will be none: the session has ended, was taken over, or is out of reach for good.
        """
        while True:
            try:
                event = await self._transport.receive()
            except ConnectionClosed as loss:
                try:
                    await self._recover(loss)
                    continue
                except SessionOver as over:  # it ended while it was out of reach, and this is how it did
                    event = over.last
            self.received += 1
            if (kept := self._take(event)) is not None:
                return kept

    def _take(self, event: Event | UnknownEvent) -> Event | None:
        """Sort an event in; ``None`` when the application does not see it."""
        match event:  # first what is about this connection and has no place in the sequence
            case told.SessionReplaced():
                self._parting = True
                raise SessionReplaced("another client took this session over; this one has nothing more to do with it")
            case told.SessionResyncRequired():
                self.miss(until=event.first_available_seq)
                return None
            case told.SessionResumed():
                self._show(event.session)
                return None
            case _:
                pass
        seq = event.server_event_seq
        if 0 < seq <= self.last_seq:
            return None
        if seq:
            self.miss(until=seq)
            self.last_seq = seq
        match event:
            case UnknownEvent():
                return None
            case told.SessionCreated() | told.SessionUpdated():
                self._show(event.session)
            case told.SessionExpired():
                self._expired = SessionExpired(f"the session expired: {event.reason}")
            case told.SessionClosed():
                self._parting = True
            case _:
                pass
        return event

    def _show(self, session: SessionView) -> None:
        self.session = session
        self._token = session.resume_token or self._token

    def miss(self, *, until: int) -> None:
        """Take note that the events between the last one and number ``until`` do not come, if there are any."""
        first, last = self.last_seq + 1, until - 1
        if first <= last:
            self.last_seq = last
            self._tell(ResyncRequired(at_ms=self._clock.now_ms(), first_lost_seq=first, last_lost_seq=last))

    # -- connecting again ----------------------------------------------------------------------------------------------

    async def _recover(self, loss: ConnectionClosed) -> None:
        """Take the session up on a new connection.

        Raises:
            SessionOver: it has ended meanwhile.
            ConnectionClosed: that is not to be, or did not succeed.
        """
        self._attached = None
        if self._expired is not None:
            raise self._expired from loss
        if self._redial is None or not self.resumable or not may_pass(loss):
            raise loss
        self._lost = True
        lost_at_ms = self._clock.now_ms()
        if lost_at_ms - self._attached_at_ms >= self._redial.policy.settled_after_s * 1000.0:
            self._attempts = 0
        self._tell(Reconnecting(at_ms=lost_at_ms, cause=str(loss)))
        await self._transport.drop()
        self._transport, begun, attempts = await self._connect_again(self._redial, loss, lost_at_ms)
        now_ms, outage = self._clock.now_ms(), self._outage
        self._attached, self._attached_at_ms, self._outage = self._transport, now_ms, Outage()
        self._lost = False
        self.outages += 1
        self._tell(
            Resumed(
                at_ms=now_ms,
                outage_ms=now_ms - lost_at_ms,
                attempts=attempts,
                replayed_events=begun.replayed_events,
                dropped_audio_ms=outage.dropped_audio_ms,
            )
        )
        if begun.first_available_seq is not None:
            self.miss(until=begun.first_available_seq)
        self._moved.raise_()

    async def _connect_again(
        self, redial: Redial, loss: DuplexClientError, lost_at_ms: float
    ) -> tuple[Transport, Opening, int]:
        deadline_ms = lost_at_ms + redial.policy.give_up_after_s * 1000.0
        attempts, failure = 0, loss
        while True:
            wait_ms = delay_ms(redial.policy, self._attempts, redial.rng)
            now_ms = self._clock.now_ms()
            if now_ms + wait_ms > deadline_ms:
                raise _given_up(f"after {attempts} attempts in {(now_ms - lost_at_ms) / 1000.0:.1f} s", failure)
            await self._clock.sleep_until(now_ms + wait_ms)
            attempts += 1
            self._attempts += 1
            left_s = (deadline_ms - self._clock.now_ms()) / 1000.0
            try:
                transport, begun = await self._attempt(redial, min(redial.attempt_timeout_s, left_s))
            except SessionOver:
                raise
            except (ConnectFailed, ConnectionClosed, ServerRefused, WaitTimeout) as exc:
                if not may_pass(exc):
                    raise _given_up("since there is no use in trying again", exc) from exc
                failure = exc
            else:
                return transport, begun, attempts

    async def _attempt(self, redial: Redial, timeout_s: float) -> tuple[Transport, Opening]:
        point = self.point
        assert point is not None, "only a session with a token is taken up again"
        transport: Transport | None = None
        try:
            async with asyncio.timeout(timeout_s):
                transport = await redial.dial(point)
                begun = await opening.resumed(transport, self.last_seq)
                self.received += 1
                self._show(begun.session)
                await self._greet(transport)
        except BaseException as exc:
            if transport is not None:
                await transport.drop()
            if isinstance(exc, TimeoutError):
                raise WaitTimeout(f"no session.resumed came within {timeout_s:.1f} s") from None
            raise
        return transport, begun

    async def _greet(self, transport: Transport) -> None:
        """Show the server that its new token has arrived, and tell it what was played meanwhile."""
        await transport.send(SessionEventAck(server_event_seq=self.last_seq))
        while (ack := self._outage.next_ack()) is not None:
            await transport.send(ack)


def _given_up(when: str, failure: DuplexClientError) -> ReconnectFailed:
    info = failure.info if isinstance(failure, ServerRefused | ConnectionClosed) else None
    given_up = ReconnectFailed(f"the connection was lost and is given up {when}: {failure}", info=info)
    given_up.__cause__ = failure
    return given_up
