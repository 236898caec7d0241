"""The reaper: looks at the leases of all sessions when the first of them ends, and asks those whose lease is over to end.

Owns one alarm of the event loop. Called by the session manager. It decides nothing about a lease
(:mod:`duplex_server.engine.lease` does) and ends no session: each judges for itself once more, in its own turn.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from duplex_server.engine.lease import end_of
from duplex_server.engine.tenure import Tenure


class LeaseOver(msgspec.Struct, frozen=True):
    """What a session is told whose lease is over."""


class Leased(Protocol):
    """What the reaper sees of a session."""

    tenure: Tenure

    def post(self, entry: LeaseOver, /) -> None:
        """Tell it that its lease is over."""


class Reaper:
    """Of one session manager, on the running event loop."""

    def __init__(self, sessions: Callable[[], Iterable[Leased]]) -> None:
        """Look after ``sessions``, which is asked each time."""
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._stopped = False

    def look_at(self, at: float) -> None:
        """Some lease may end at ``at``, in seconds of the loop's clock: look then, or sooner."""
        if self._stopped or at == math.inf or (self._alarm is not None and self._alarm.when() <= at):
            return
        self._cancel()
        self._alarm = self._loop.call_at(at, self._look)

    def stop(self) -> None:
        """Look no more. Idempotent."""
        self._stopped = True
        self._cancel()

    def _cancel(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _look(self) -> None:
        self._alarm = None
        for session in list(self._sessions()):
            tenure = session.tenure
            if tenure.closing or tenure.lapsing:
                continue
            if tenure.lapsed() is not None:
                tenure.lapsing = True
                session.post(LeaseOver())
            else:
                self.look_at(end_of(tenure.lease, tenure.terms)[0])
