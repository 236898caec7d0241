"""Timers of one session or one chat request, on the event loop's clock.

Owns their setting, their replacing and their end, and what the time is for who is told that one rang. Used by both halves of the
engine, so it imports neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import msgspec

Due = TypeVar("Due", bound=Hashable)
"""What a timer is for; it names the timer too."""


class Rung(msgspec.Struct, Generic[Due], frozen=True):
    """A timer rang that was set for ``at_ms``; clocks are coarse, so by the loop's it may be a little earlier.

    It is then ``at_ms`` for whoever set it, else the timer would be set anew, again and again, for what little is left.
    """

    due: Due
    at_ms: float

    def time_ms(self, clock_ms: float) -> float:
        """What the time is, when the clock says ``clock_ms``."""
        return max(clock_ms, self.at_ms)


class Handle(Protocol):
    """A timer of the clock's."""

    def cancel(self) -> None:
        """Do not ring."""


class Timers(Generic[Due]):
    """Rings once for each timer that is not replaced or cancelled before."""

    def __init__(self, ring: Callable[[Rung[Due]], None], call_at: Callable[..., Handle] | None = None) -> None:
        """Begin with none; ``ring`` is called on the event loop, when ``call_at`` says, which is the loop's own by default."""
        self._ring = ring
        self._call_at = call_at or asyncio.get_running_loop().call_at
        self._handles: dict[Due, Handle] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._handles)

    def set(self, due: Due, at_ms: float | None) -> None:
        """Ring at ``at_ms`` of the loop's clock, in place of this timer's earlier time; ``None`` only cancels."""
        earlier = self._handles.pop(due, None)
        if earlier is not None:
            earlier.cancel()
        if at_ms is not None and not self._closed:
            self._handles[due] = self._call_at(at_ms / 1000.0, self._due, Rung(due, at_ms))

    def close(self) -> None:
        """Ring no more. Idempotent."""
        self._closed = True
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _due(self, rung: Rung[Due]) -> None:
        self._handles.pop(rung.due, None)
        self._ring(rung)
