"""Who has a session: one reader of its events at a time, and the token that gives the session to the next.

Owns the attachments of one session: their generations, the swap from one to the next, the resume token (of which only a hash
is kept) and what a returning client is told first. Called by the session runner. The swap is one synchronous step: before it
the earlier owner has the session, after it the new one does, and whatever is cancelled is so on one side of it or the other.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from duplex_core.errors import DuplexError, ErrorCode, refuse
from duplex_core.events import (
    Event,
    SessionClosed,
    SessionCreated,
    SessionReplaced,
    SessionResumed,
    SessionResyncRequired,
    SessionView,
)
from duplex_server.engine.outbox import Outbox
from duplex_server.engine.signal import Signal
from duplex_server.engine.weakly import weakly


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Which tokens open a session, as hashes: the one that was told last, and the one that it was told for, while both do."""

    current: bytes = b""
    spent: bytes | None = None

    def opens(self, token: str) -> bool:
        """Whether ``token`` is one of them, in a time that does not depend on how much of it is right."""
        given = _hashed(token)
        again = self.spent is not None and secrets.compare_digest(given, self.spent)
        return secrets.compare_digest(given, self.current) or again


class Attachment:
    """One reader of a session's events, from its attaching to its end. Made by :class:`Attachments`."""

    __slots__ = (
        "__weakref__",
        "_at_once",
        "_first",
        "_outbox",
        "_over",
        "_read",
        "_signal",
        "_token",
        "claimed",
        "generation",
        "reached",
    )

    def __init__(
        self,
        outbox: Outbox,
        generation: int,
        *,
        reached: int = 0,
        first: Sequence[Event] = (),
        token: str | None = None,
    ) -> None:
        """Read ``first``, which is stamped, then the outbox; ``token``, if given, goes out with ``session.created``, once."""
        self._outbox = outbox
        self._first: deque[Event] = deque(first)
        self._token = token
        self._over = False
        self._read = False
        self._at_once: Callable[[Event], bool] | None = None
        self._signal = Signal()
        self.generation = generation
        self.reached = reached
        """Number of the last event that was read here."""
        self.claimed = False
        """Whether anybody has read or spoken through this attachment."""

    @property
    def over(self) -> bool:
        """Whether nothing but what is known already will be read here."""
        return self._over

    async def read(self, at_once: Callable[[Event], bool] | None = None) -> AsyncIterator[Event]:
        """Every event, stamped, in order; ends after ``session.closed`` or ``session.replaced``, and at a detaching.

        Args:
            at_once: is given each event that comes while the reader has taken all before it and waits; whether it took it. So
                no task has to wake up for it. What it does not take is read here.

        Raises:
            RuntimeError: somebody reads already.
        """
        if self._read:
            raise RuntimeError("the events of this session are being read already; an attachment has one reader")
        self._read = self.claimed = True
        self._at_once = at_once
        try:
            while (event := await self.get()) is not None:
                yield event
        finally:
            self._at_once = None

    async def get(self) -> Event | None:
        """The next event, stamped; ``None`` after the last one."""
        self.claimed = True
        while (event := self._next()) is None and not self._over:
            await self._signal.wait()
        return event

    def tell(self) -> None:
        """There is one more event in the outbox."""
        if self._at_once is not None and self._signal.awaited:
            reached = self.reached
            while (event := self._next()) is not None:
                if not self._at_once(event):
                    self._first.appendleft(event)
                    self.reached = reached
                    break
                reached = self.reached
            else:
                if not self._over:
                    return
        self._signal.give()

    def end(self, last: Event | None = None) -> None:
        """Read nothing more here but ``last``."""
        self._over = True
        self._first.clear()
        if last is not None:
            self._first.append(_about_socket(last, self.reached))
        self._signal.give()

    def _next(self) -> Event | None:
        """What can be read now."""
        if self._first:
            event = self._first.popleft()
        elif self._over or (taken := self._outbox.take()) is None:
            return None
        else:
            event = taken
        self.reached = event.server_event_seq
        if self._token is not None and isinstance(event, SessionCreated):
            # Only here does the token stand in clear: neither the journal nor an observer ever sees it.
            session = msgspec.structs.replace(event.session, resume_token=self._token)
            event = msgspec.structs.replace(event, session=session)
            self._token = None
        if isinstance(event, SessionClosed):
            self._over = True
        return event


class Attachments:
    """All attachments that one session has had, of which at most one has it now."""

    def __init__(self, session_id: str, outbox: Outbox, view: Callable[[int], SessionView]) -> None:
        """Nobody has the session yet; ``view`` shows it with a new attachment generation, which it has from then on."""
        self._session_id = session_id
        self._outbox = outbox
        self._view = view
        self.claim = Claim()
        """Which tokens open the session now."""
        self._generation = 0
        self.current: Attachment | None = None

    def first(self) -> Attachment:
        """Give the session to who opened it."""
        token = secrets.token_urlsafe(32)
        self.claim = Claim(current=_hashed(token))
        return self._swap(Attachment(self._outbox, 1, token=token))

    def resume(self, token: str, last_seq: int) -> Attachment:
        """Give the session to the holder of ``token``, in one step; the earlier attachment is told and ends.

        Args:
            token: the one that was told last; it is spent. So that a line which breaks before ``session.resumed`` has arrived
                costs nobody the session, it opens the session again until the new attachment has spoken.
            last_seq: number of the last event that the client has.

        Raises:
            DuplexError: the token is wrong, or no such event was ever sent; nothing has changed then.
        """
        journal = self._outbox.journal
        if not self.claim.opens(token):
            raise not_found()
        if last_seq > journal.last_seq:
            message = (
                f"last_server_event_seq is {last_seq}; the last event that this session sent is {journal.last_seq}"
            )
            raise refuse(ErrorCode.INVALID_VALUE, message, param="last_server_event_seq")
        generation = self._generation + 1
        fresh = secrets.token_urlsafe(32)
        session = msgspec.structs.replace(self._view(generation), resume_token=fresh)
        missed = journal.after(last_seq)
        told = [_about_socket(SessionResumed(session=session, replayed_events=len(missed)), last_seq)]
        if journal.first_seq > last_seq + 1:
            gap = SessionResyncRequired(
                session_id=self._session_id, last_server_event_seq=last_seq, first_available_seq=journal.first_seq
            )
            told.append(_about_socket(gap, journal.first_seq - 1))
        self.claim = Claim(current=_hashed(fresh), spent=_hashed(token))
        return self._swap(Attachment(self._outbox, generation, reached=last_seq, first=(*told, *missed)))

    def confirm(self) -> None:
        """Who has the session has spoken, and so has its own token: the one that it came with is good for nothing any more."""
        if self.claim.spent is not None:
            self.claim = Claim(current=self.claim.current)

    def detach(self, attachment: Attachment) -> bool:
        """``attachment`` lets go of the session, if it has it; whether it had."""
        attachment.end()
        if attachment is not self.current:
            return False
        self.current = None
        self._outbox.reader = None
        return True

    def _swap(self, attachment: Attachment) -> Attachment:
        earlier, self.current = self.current, attachment
        self._generation = attachment.generation
        self._outbox.reader = weakly(attachment.tell)
        if earlier is not None:
            earlier.end(SessionReplaced(session_id=self._session_id, attachment_generation=self._generation))
        return attachment


def not_found() -> DuplexError:
    """The one refusal for an unknown session and for a wrong token, so that nobody can tell which sessions there are."""
    return refuse(
        ErrorCode.SESSION_NOT_FOUND,
        "there is no such session, or the token is not its: it has ended, or was resumed with this token before",
    )


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _about_socket(event: Event, reached: int) -> Event:
    """``event`` is about a socket and has no place in the session's sequence: it carries what the socket has reached."""
    stamped: Event = msgspec.structs.replace(event, event_id=f"event_{secrets.token_hex(8)}", server_event_seq=reached)
    return stamped
