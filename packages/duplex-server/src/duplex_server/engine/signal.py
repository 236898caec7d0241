"""A wake-up for one waiting task.

Owns nothing but the waiting. Used by the mailbox and the outbox, once for each of their entries: :class:`asyncio.Event` serves
any number of waiters and looks the loop up each time, which costs three times as much. Must never have two waiters.
"""

from __future__ import annotations

import asyncio


class Signal:
    """Something may have happened: whoever waits looks again."""

    __slots__ = ("_loop", "_waiter")

    def __init__(self) -> None:
        """Make it on the loop that will wait."""
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def awaited(self) -> bool:
        """Whether a task waits that nobody has woken yet."""
        return self._waiter is not None and not self._waiter.done()

    def give(self) -> None:
        """Wake the waiting task, if there is one."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next :meth:`give`. The caller has looked, in this very step, that there is nothing yet."""
        if self._waiter is not None:
            raise RuntimeError("somebody waits already")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
