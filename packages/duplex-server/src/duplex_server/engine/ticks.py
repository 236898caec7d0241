"""One clock for the timers of all sessions: those that are due within a few milliseconds ring together.

Owns the loop's timers of the sessions, one for each tick at which something is due. Held by the session manager, used by each
session's holdings. A loop that wakes for every timer by itself spends more on waking up than on what is to be done, and does
one thing of each kind at a time, for which the processor's caches are never ready. Must never ring early.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

TICK_S = 0.01
"""How late a timer may ring. The sound of an answer comes in pieces of at least 20 ms and is played from a buffer."""

_ROUNDING = 1e-6


class Alarm:
    """A timer that was set."""

    __slots__ = ("_due", "args", "call")

    def __init__(self, due: dict[Alarm, None], call: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Stand among those that are ``due`` at one tick."""
        self._due = due
        self.call = call
        self.args = args
        due[self] = None

    def cancel(self) -> None:
        """Do not ring, or ring no more. Idempotent."""
        self._due.pop(self, None)


class Ticks:
    """The timers of one event loop's sessions."""

    def __init__(self) -> None:
        """Make it on the loop that it serves."""
        self._loop = asyncio.get_running_loop()
        self._due: dict[int, dict[Alarm, None]] = {}

    def call_at(self, at_s: float, call: Callable[..., None], *args: Any) -> Alarm:
        """Call ``call`` with ``args`` at the first tick that is not before ``at_s`` of the loop's clock.

        What it raises goes to the loop's exception handler; the others ring nevertheless.
        """
        tick = math.ceil(at_s / TICK_S - _ROUNDING)
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = {}
            self._loop.call_at(tick * TICK_S, self._ring, tick)
        return Alarm(due, call, args)

    def _ring(self, tick: int) -> None:
        self._ring_all(self._due.pop(tick))

    def _ring_all(self, due: dict[Alarm, None]) -> None:
        try:
            while due:
                alarm = next(iter(due))
                del due[alarm]
                alarm.call(*alarm.args)
        finally:
            if due:
                self._loop.call_soon(self._ring_all, due)
