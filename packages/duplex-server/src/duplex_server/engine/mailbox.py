"""One session's ordered mailbox: whatever happens to the session waits here for its one task.

Owns order, bounds and when the task has its turn. What a client sends is bounded in number and in bytes, so that a flood cannot
grow memory; what the engine itself sends (stage replies, verdicts, timers) always gets in. Called by the session runner alone;
must never drop what it took.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from duplex_server.engine.signal import Signal

T = TypeVar("T")

TURN_ENTRIES = 16
"""Entries that one session works off before others get their turn on the loop."""
TURN_S = 0.005
"""How long it works them off at the most, if no single one takes longer."""


class Mailbox(Generic[T]):
    """First in, first out, for one reader on one event loop."""

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        """Make an empty mailbox whose bounded entries number at most ``max_entries`` and weigh at most ``max_bytes``."""
        self._entries: deque[tuple[T, int | None]] = deque()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bounded = 0
        self._bytes = 0
        self._filled = Signal()
        self._loop = asyncio.get_running_loop()
        self._take: Callable[[T], bool] | None = None
        self._context = contextvars.copy_context()
        self._at_once = 0
        self._over = False
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def crowded(self) -> bool:
        """Whether more than half of a bound is used: time to let the reader run."""
        return self._bounded * 2 > self._max_entries or self._bytes * 2 > self._max_bytes

    def put(self, entry: T, *, first: bool = False) -> None:
        """Add an entry of the engine's own, before all others when ``first``."""
        (self._entries.appendleft if first else self._entries.append)((entry, None))
        self._filled.give()

    def offer(self, entry: T, size: int) -> bool:
        """Add a client's entry of ``size`` bytes unless a bound is reached; whether it was added.

        An entry that is larger than the whole bound is taken when no other waits.
        """
        if self._bounded and (self._bounded >= self._max_entries or self._bytes + size > self._max_bytes):
            self._emptied.clear()
            return False
        self.note(entry, size)
        return True

    def note(self, entry: T, size: int) -> None:
        """Add an entry of ``size`` bytes that a client has caused and that must get in, however full it is.

        It counts towards the bounds, so that who asks :attr:`crowded` after each, and then lets the reader run, keeps them.
        """
        self._bounded += 1
        self._bytes += size
        self._entries.append((entry, size))
        self._filled.give()
        if self.crowded:
            self._emptied.clear()

    async def room(self) -> None:
        """Wait, after an entry was refused or the mailbox is crowded, until the reader has taken enough."""
        await self._emptied.wait()

    async def serve(self, take: Callable[[T], bool]) -> None:
        """Have ``take`` take each entry, in order, until it says that it was the last."""
        self._take, self._context = take, contextvars.copy_context()
        time = self._loop.time
        since_pause, until = 0, time() + TURN_S
        try:
            while not self._over:
                if self._entries:
                    self._over = take(self._pop())
                    since_pause += 1
                    if (since_pause >= TURN_ENTRIES or time() >= until) and self._entries:
                        await asyncio.sleep(0)
                        since_pause, until = 0, time() + TURN_S
                else:
                    self._at_once = TURN_ENTRIES
                    await self._filled.wait()
                    since_pause, until = 0, time() + TURN_S
        finally:
            self._at_once, self._take = 0, None

    def hand(self, entry: T) -> bool:
        """Have an entry taken before this returns, if nothing waits and :meth:`serve` does; whether it was.

        That saves the loop an iteration for each of the entries that come one at a time, which is most. Now and then one is
        refused, so that whoever brings many gets to wait for the loop. What comes while an entry is being taken is refused too.
        """
        left = self._at_once
        if not left or self._entries or self._take is None or not self._filled.awaited:
            return False
        self._at_once = 0
        began = self._loop.time()
        self._over = self._context.run(self._take, entry)
        if self._loop.time() < began + TURN_S:
            self._at_once = left - 1
        if self._over:
            self._filled.give()
        return True

    async def get(self) -> T:
        """Take the oldest entry, waiting for one when there is none."""
        while not self._entries:
            await self._filled.wait()
        return self._pop()

    def _pop(self) -> T:
        entry, size = self._entries.popleft()
        if size is not None:
            self._bounded -= 1
            self._bytes -= size
            if not self.crowded:
                self._emptied.set()
        return entry

    def clear(self) -> None:
        """Forget what waits, and let everyone go who waits for room."""
        self._entries.clear()
        self._bounded = self._bytes = 0
        self._emptied.set()
