"""Time that passes when a test says so, and an engine whose every event a test writes down.

Owns: :class:`VirtualClock`, :class:`ScriptedEngine`. Called by: the tests of duplex-client that are about time. Never: waits
for real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from duplex_core.commands import Command, SessionClose
from duplex_core.events import Event
from tests.clients.scripted import SESSION_ID, closed, created


async def settle() -> None:
    """Let every task run until all wait. Enough where nothing waits for a socket or for real time."""
    for _ in range(50):
        await asyncio.sleep(0)


class VirtualClock:
    """A clock that stands until it is advanced."""

    def __init__(self, now_ms: float = 10_000.0) -> None:
        self.time_ms = now_ms
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_ms(self) -> float:
        return self.time_ms

    async def sleep_until(self, at_ms: float) -> None:
        if at_ms <= self.time_ms:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((at_ms, future))
        await future

    async def advance(self, ms: float) -> None:
        """Let ``ms`` pass, waking each sleeper at its own moment."""
        await settle()
        end_ms = self.time_ms + ms
        while due := [each for each in self._sleepers if each[0] <= end_ms and not each[1].done()]:
            sleeper = min(due, key=lambda each: each[0])
            self._sleepers.remove(sleeper)
            self.time_ms = max(self.time_ms, sleeper[0])
            sleeper[1].set_result(None)
            await settle()
        self.time_ms = end_ms
        await settle()


class SelfWindingClock(VirtualClock):
    """A clock that jumps to whatever is waited for, and notes it."""

    def __init__(self, now_ms: float = 10_000.0) -> None:
        super().__init__(now_ms)
        self.waits: list[float] = []

    async def sleep_until(self, at_ms: float) -> None:
        self.waits.append(at_ms)
        self.time_ms = max(self.time_ms, at_ms)
        await asyncio.sleep(0)


class ScriptedEngine:
    """An engine of one session: what a test tells comes out as events, what the client submits is kept."""

    session_id = SESSION_ID

    def __init__(self, *, greet: bool = True) -> None:
        self.submitted: list[Command] = []
        self.closed = False
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        if greet:
            self.tell(created())

    def tell(self, *events: Event) -> None:
        for event in events:
            self._events.put_nowait(event)

    def vanish(self) -> None:
        """End the events without a word, as a lost connection does."""
        self._events.put_nowait(None)

    async def open_session(self) -> ScriptedEngine:
        return self

    async def submit(self, command: Command) -> None:
        self.submitted.append(command)
        if isinstance(command, SessionClose):
            self.tell(closed())
            self.vanish()

    async def events(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close_session(self, session_id: str) -> None:
        assert session_id == SESSION_ID
        self.closed = True
        self.vanish()
