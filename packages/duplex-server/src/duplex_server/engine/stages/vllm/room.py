"""Room for everybody in the engine's KV cache: who must wait for it, and who is set aside.

Owns the line for the cache, and the one request that the engine has to spare for a window that moves. Made by :mod:`.driver`, and
asked by :mod:`.session`, on the event loop. Must never let a session wait for one that itself waits for its next append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Protocol, cast

from duplex_server.engine.stages.vllm.memory import Cache

PASSED = 8
"""So many sessions go before a chat in the line, and then no more."""


class Holder(Protocol):
    """A session that holds some of the cache. Compared by identity."""

    first: bool
    """Whether it goes before those that are not."""

    def __hash__(self) -> int:
        """By identity."""

    def set_aside(self) -> asyncio.Future[None] | None:
        """Give up what is held; the future is done when the engine has been told."""


class _Turn:
    """A session's place in the line for the KV cache. Compared by identity."""

    __slots__ = ("passed", "session", "woken")

    def __init__(self, session: Holder) -> None:
        self.session = session
        self.passed = 0
        self.woken = asyncio.Event()

    @property
    def gives_way(self) -> bool:
        """Whether a session goes before it."""
        return not self.session.first and self.passed < PASSED


class Room:
    """The KV cache of one engine, shared by sessions and chats."""

    def __init__(self, cache: Cache) -> None:
        """Nobody holds anything of ``cache``."""
        self._cache = cache
        self._line: list[_Turn] = []
        self._spare = asyncio.Lock()

    @property
    def used(self) -> float:
        """The share of the cache that is held."""
        return self._cache.used

    async def claim(self, session: Holder, positions: int) -> None:
        """Wait until ``session`` may hold ``positions``: in the order asked, but sessions before chats, for a while.

        Others that wait for their next append are set aside for it, the one idle longest first.
        """
        if not self._line and await self._granted(session, positions):
            return
        turn = _Turn(session)
        place = len(self._line)
        while session.first and place and self._line[place - 1].gives_way:
            place -= 1
            self._line[place].passed += 1
        self._line.insert(place, turn)
        try:
            while True:
                turn.woken.clear()
                if self._line[0] is turn and await self._granted(session, positions):
                    return
                await turn.woken.wait()
        finally:
            self._line.remove(turn)
            self._wake()

    async def _granted(self, session: Holder, positions: int) -> bool:
        """Take the blocks if they can be had now; it is known at once whether they can."""
        victims = self._cache.victims(session, positions)
        if victims is None:
            return False
        endings = [cast("Holder", each).set_aside() for each in victims]
        self._cache.claim(session, positions)
        for ending in endings:
            if ending is not None:
                await asyncio.shield(ending)
        return True

    async def spare(self) -> None:
        """Wait for the one request that the engine has to spare, until :meth:`let_go`."""
        await self._spare.acquire()

    def hand_over(self, session: Holder, old: Hashable) -> None:
        """Let what ``session`` holds be ``old``'s, beside what it claims next."""
        self._cache.hand_over(session, old)

    def let_go(self, old: Hashable) -> None:
        """What was kept is not needed any more."""
        self._cache.drop(old)
        self._spare.release()
        self._wake()

    def fits(self, positions: int, beside: Hashable) -> bool:
        """Whether a session could ever hold ``positions`` beside what is kept for it."""
        return self._cache.fits(positions, beside)

    def rest(self, session: Holder, positions: int) -> None:
        """It waits for its next append."""
        self._cache.rest(session, positions)
        self._wake()

    def drop(self, session: Holder) -> None:
        """It holds nothing in the engine."""
        self._cache.drop(session)
        self._wake()

    def _wake(self) -> None:
        """Something has come free: let the first in line look."""
        if self._line:
            self._line[0].woken.set()
