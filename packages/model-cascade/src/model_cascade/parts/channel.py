"""A one-way channel from the thread that makes an answer to the one that reads it.

Owns: waiting for the next piece while watching for cancellation. Called by: the language models. Never: starts a thread.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Generic, TypeVar

from model_cascade.parts.errors import Cancel

Item = TypeVar("Item")

_POLL_S = 0.05


class _End:
    """The writer is done, with the exception that stopped it, if one did."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Channel(Generic[Item]):
    """Unbounded, one writer, one reader. The reader may leave at any time; what is written then is thrown away."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()

    def put(self, item: Item) -> None:
        """Write one item."""
        self._queue.put(item)

    def finish(self, error: BaseException | None = None) -> None:
        """End the channel; the reader gets the error, if there is one, after all items."""
        self._queue.put(_End(error))

    def items(self, cancelled: Cancel) -> Iterator[Item]:
        """Read until the end, or until ``cancelled`` (asked every 50 ms) says that nobody wants more.

        Raises:
            BaseException: What :meth:`finish` was given.
        """
        while not cancelled():
            try:
                item = self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
