"""Events on their way to one client, in order.

Owns the order, the fence and the bounds of what waits; what is taken for sending is numbered and kept by the journal. Filled
by the session runner, emptied by the attachment that has the session. While nobody has it, what goes beyond the bounds moves
into the journal, which forgets its oldest. Must never lose ``session.closed``, send anything after it, or grow beyond its
bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from duplex_core.errors import ErrorCode, error
from duplex_core.events import STREAM_DELTAS, ErrorEvent, Event, OutputAudioDelta, SessionClosed
from duplex_server.engine.journal import Journal

MAX_EVENTS = 8192
"""Most events that wait for a client."""
MAX_BYTES = 48 * 1024 * 1024
"""Most bytes that wait for a client: what the largest event can cause at once, since an item is told back three times."""

ALONE_SHARE = 4
"""While nobody has the session only one part in so many of the bounds is used, so that who comes back has time to read."""

_OVERHEAD = 256


def weight(event: object) -> int:
    """Bytes that an event takes while it waits, near enough: its texts and sounds, and something for the rest."""
    if isinstance(event, STREAM_DELTAS):
        return _OVERHEAD + len(event.delta)
    return _OVERHEAD + _content(event)


def _content(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, msgspec.Struct):
        return sum(_content(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, dict):
        return sum(len(str(key)) + _content(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_content, value))
    return 8


def delta_epoch(event: Event) -> int | None:
    """The epoch under which a delta was made; ``None`` for every other event, which no fence drops."""
    if isinstance(event, OutputAudioDelta):
        return event.metadata.epoch
    return event.epoch if isinstance(event, STREAM_DELTAS) else None


class Outbox:
    """The events of one session that have not been taken yet."""

    def __init__(
        self,
        journal: Journal,
        *,
        on_slow: Callable[[], None],
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Make an empty outbox; ``on_slow`` is called once, when a reader has fallen too far behind."""
        self.journal = journal
        self.reader: Callable[[], None] | None = None
        """Tells whoever reads that there is one more event; ``None`` while nobody has the session."""
        self._waiting: deque[tuple[Event, int]] = deque()
        self._bytes = 0
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._on_slow = on_slow
        self._overrun = False
        self._finished = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait, as :func:`weight` counts them."""
        return self._bytes

    @property
    def last_seq(self) -> int:
        """The number that the newest event has, or will have when it is taken, if none before it is dropped."""
        return self.journal.last_seq + len(self._waiting)

    @property
    def finished(self) -> bool:
        """Whether ``session.closed`` is in: nothing more is taken."""
        return self._finished

    def put(self, event: Event) -> None:
        """Add an event. After an overrun only ``session.closed`` gets in, and after that nothing does."""
        last = isinstance(event, SessionClosed)
        if self._finished or (self._overrun and not last):
            return
        size = weight(event)
        while self._waiting and not last and self._is_full(size):
            if self.reader is not None:
                self._give_up()
                return
            self.take()
        self._finished = last
        self._add(event, size)

    def purge(self, epoch: int) -> int:
        """Drop the deltas that were made under an epoch older than ``epoch``; how many there were."""
        before = len(self._waiting)
        kept = [pair for pair in self._waiting if (made := delta_epoch(pair[0])) is None or made >= epoch]
        self._waiting = deque(kept)
        self._bytes = sum(size for _, size in kept)
        return before - len(kept)

    def take(self) -> Event | None:
        """The oldest event, numbered and kept; ``None`` when none waits."""
        if not self._waiting:
            return None
        event, size = self._waiting.popleft()
        self._bytes -= size
        return self.journal.stamp(event, size)

    def _is_full(self, size: int) -> bool:
        share = 1 if self.reader is not None else ALONE_SHARE
        return len(self._waiting) * share >= self._max_events or (self._bytes + size) * share > self._max_bytes

    def _add(self, event: Event, size: int) -> None:
        self._waiting.append((event, size))
        self._bytes += size
        if self.reader is not None:
            self.reader()

    def _give_up(self) -> None:
        """Drop what waits, leave the client the reason, and tell the runner."""
        self._overrun = True
        self._waiting.clear()
        self._bytes = 0
        told = ErrorEvent(
            error=error(
                ErrorCode.SLOW_READER,
                f"events were read too slowly: more than {self._max_events} events or {self._max_bytes} bytes were "
                "waiting, so the session ends; read the socket all the time, also while audio plays",
            )
        )
        self._add(told, weight(told))
        self._on_slow()
