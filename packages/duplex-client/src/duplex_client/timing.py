"""The clock that a client lives by, as an argument, so that pacing and playback can be tested in virtual time.

Every instant in this package is in milliseconds on one clock, by default the event loop's. Nothing else here reads a clock.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock that can be waited on."""

    def now_ms(self) -> float:
        """Milliseconds since some fixed moment."""
        ...

    async def sleep_until(self, at_ms: float) -> None:
        """Return at ``at_ms``, or at once (after letting others run) when that has passed."""
        ...


class LoopClock:
    """The running event loop's own clock."""

    def now_ms(self) -> float:
        """The loop's time, in milliseconds."""
        return asyncio.get_running_loop().time() * 1000.0

    async def sleep_until(self, at_ms: float) -> None:
        """Sleep by the loop's timer."""
        await asyncio.sleep(max(0.0, at_ms - self.now_ms()) / 1000.0)
