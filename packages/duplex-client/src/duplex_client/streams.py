"""Hands items from the one receiving task to any number of consumers, each at its own pace, in bounded memory.

Owns :class:`Mailbox` (one consumer's queue) and :class:`Signal` (something changed). Used by the connection and by the
handles of answers. It never waits for a consumer: one that lags loses its oldest items and is told how many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from duplex_client.errors import ConsumerLagged

T = TypeVar("T")


class Signal:
    """Wakes everyone who waits, as often as it is raised."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def raise_(self) -> None:
        """Wake all who wait now."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    def wait(self) -> Coroutine[Any, Any, object]:
        """Wait for the next time that it is raised, counted from this call and not from the ``await``."""
        return self._event.wait()


class Mailbox(AsyncIterator[T], Generic[T]):
    """One consumer's bounded queue, an async iterator of what was put in since it was made.

    It ends when its source ends: quietly after a clean end, else by raising the source's error. An iterator that more
    than ``limit`` items wait for raises :class:`ConsumerLagged` once and goes on with the oldest one left.
    """

    def __init__(self, *, limit: int, what: str) -> None:
        self._items: deque[T] = deque()
        self._limit = limit
        self._what = what
        self._missed = 0
        self._ended = False
        self._error: Exception | None = None
        self._changed = Signal()

    def put(self, item: T) -> None:
        """Add an item, dropping the oldest one when full."""
        if self._ended:
            return
        if len(self._items) >= self._limit:
            self._items.popleft()
            self._missed += 1
        self._items.append(item)
        self._changed.raise_()

    def end(self, error: Exception | None = None) -> None:
        """Nothing more will come; ``error`` says why when that was not asked for."""
        if not self._ended:
            self._ended, self._error = True, error
            self._changed.raise_()

    def close(self) -> None:
        """The consumer wants no more: what waits is dropped."""
        self._items.clear()
        self.end()

    async def __anext__(self) -> T:
        while True:
            if self._missed:
                missed, self._missed = self._missed, 0
                raise ConsumerLagged(self._what, missed)
            if self._items:
                return self._items.popleft()
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._changed.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
