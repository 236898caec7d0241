"""Sessions that have ended, remembered for a while, so that a client which comes back for one is told that it has, and why.

Owns the memory of one session manager: of each session its last event and the hashes of its tokens, never more. Bounded in number
and in time; who does not show the right token learns nothing, not even that there was such a session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from duplex_core.errors import DuplexError, ErrorCode, error
from duplex_core.events import SessionClosed
from duplex_server.engine.attachment import Claim, not_found

MOST = 1024
"""Most sessions that are remembered; beyond it the one that ended first is forgotten."""
LEAST_S = 30.0
"""A session is remembered for as long as it would have waited for its client, and at least this long."""


class SessionOver(DuplexError):
    """The session that was to be taken up has ended; ``closed`` is the last event that it told, or would have told."""

    def __init__(self, closed: SessionClosed) -> None:
        """Say so, to who has shown the token."""
        why = f": {closed.error.message}" if closed.error is not None else ""
        super().__init__(
            error(ErrorCode.SESSION_CLOSED, f"session {closed.session_id} has ended ({closed.reason.value}){why}")
        )
        self.closed = closed


class Remains(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a session that has ended."""

    claim: Claim
    closed: SessionClosed

    def answer(self, token: str) -> DuplexError:
        """What to say to who wants to take it up with ``token``."""
        return SessionOver(self.closed) if self.claim.opens(token) else not_found()


class Departed:
    """The sessions of one manager that have ended not long ago."""

    def __init__(self, *, grace_s: float, now: Callable[[], float], most: int = MOST) -> None:
        """Remember each for ``grace_s`` seconds or a little longer, by the clock ``now``, and ``most`` at a time."""
        self._kept_s = max(grace_s, LEAST_S)
        self._now = now
        self._most = most
        self._remains: OrderedDict[str, tuple[float, Remains]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._remains)

    def add(self, remains: Remains) -> None:
        """A session has ended."""
        self._forget()
        self._remains[remains.closed.session_id] = (self._now() + self._kept_s, remains)
        if len(self._remains) > self._most:
            self._remains.popitem(last=False)

    def answer(self, session_id: str, token: str) -> DuplexError:
        """What to say to who wants to take up a session that does not run."""
        self._forget()
        kept = self._remains.get(session_id)
        return not_found() if kept is None else kept[1].answer(token)

    def _forget(self) -> None:
        """Forget those whose time is over; they ended in the order in which they stand here."""
        now = self._now()
        while self._remains and next(iter(self._remains.values()))[0] <= now:
            self._remains.popitem(last=False)
