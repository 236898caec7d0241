"""What keeps a session in good order without the application: heartbeats, and acknowledgements of events.

Run by :class:`~duplex_client.connection.Connection` beside its receiving task. It finds a connection that died without a
word, and lets the server forget what has arrived. It never waits for an answer and ends when the session does.
"""

from __future__ import annotations

import asyncio

from duplex_client.errors import ConnectionClosed
from duplex_client.link import Link
from duplex_client.timing import Clock
from duplex_core.commands import SessionEventAck, SessionHeartbeat


def check_intervals(heartbeat_s: float | None, ack_every: int | None) -> None:
    """Refuse intervals that make no sense.

    Raises:
        ValueError: one is not above zero.
    """
    if heartbeat_s is not None and heartbeat_s <= 0.0:
        raise ValueError(f"heartbeat_s is {heartbeat_s:g}; it must be above 0, or None for no heartbeats")
    if ack_every is not None and ack_every < 1:
        raise ValueError(f"ack_every is {ack_every}; it must be 1 or more, or None for no acknowledgements")


class Upkeep:
    """The upkeep of one session.

    Args:
        link: Its line.
        clock: What the heartbeats go by.
        heartbeat_s: Seconds between heartbeats, ``None`` for none. When nothing at all has come from one to the next,
            the connection counts as dead and is dropped, if the session can be resumed.
        ack_every: Events between acknowledgements, ``None`` for none.
    """

    def __init__(self, link: Link, clock: Clock, *, heartbeat_s: float | None, ack_every: int | None) -> None:
        self._link = link
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._ack_every = ack_every
        self._acked_seq = link.last_seq
        self._due = asyncio.Event()

    def arrived(self) -> None:
        """An event has been handed on."""
        if self._ack_every is not None and self._link.last_seq >= self._acked_seq + self._ack_every:
            self._due.set()

    async def run(self) -> None:
        """Do it until the session is over."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._acknowledge(), name="duplex-client acknowledgements")
                if self._heartbeat_s is not None:
                    both.create_task(self._beat(self._heartbeat_s), name="duplex-client heartbeat")
        except* ConnectionClosed:
            pass  # the receiving task tells everybody

    async def _acknowledge(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            self._acked_seq = self._link.last_seq
            await self._link.send(SessionEventAck(server_event_seq=self._acked_seq))

    async def _beat(self, every_s: float) -> None:
        asked_at: int | None = None
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + every_s * 1000.0)
            silent = asked_at is not None and self._link.received == asked_at
            asked_at = None
            if silent and self._link.resumable:
                await self._link.drop()
                continue
            received = self._link.received
            try:
                async with asyncio.timeout(every_s):
                    if await self._link.send(SessionHeartbeat()):
                        asked_at = received
            except TimeoutError:  # not even this fits into the socket: nobody takes anything at the other end
                asked_at = received
