"""Who has one session, and for how long: its attachments and its lease, joined.

Owns the moments that a lease is counted from, and whether the session is about to end, from when on nobody can take it up.
Made and held by the session runner; handles, the session manager and the reaper ask here. It ends nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable

from duplex_core.errors import ErrorCode, refuse
from duplex_core.events import SessionClosed
from duplex_server.engine.attachment import Attachment, Attachments, not_found
from duplex_server.engine.departed import Remains
from duplex_server.engine.lease import Lapse, Lease, LeaseTerms, end_of, lapsed
from duplex_server.engine.metrics import EngineMetrics


class Tenure:
    """Of one session."""

    def __init__(
        self,
        attachments: Attachments,
        *,
        terms: LeaseTerms,
        metrics: EngineMetrics,
        now: Callable[[], float],
        on_lease: Callable[[float], None],
    ) -> None:
        """Begin with a session that nobody has.

        Args:
            attachments: of the session.
            terms: how long it lives without its client.
            metrics: what is counted.
            now: the time in seconds.
            on_lease: is told when the lease ends, each time that this may be sooner than before.
        """
        self.terms = terms
        self.closing = False
        """Whether the session is about to end, or has ended: nobody can take it up."""
        self.lapsing = False
        """Whether the session has been told that its lease is over, and has not judged so yet."""
        self._attachments = attachments
        self._metrics = metrics
        self._now = now
        self._on_lease = on_lease
        self._heard_at = now()
        self._alone_since: float | None = None
        self._last: SessionClosed | None = None
        self.detached = False
        """Whether nobody has the session and it waits for somebody."""

    @property
    def attachment(self) -> Attachment | None:
        """The attachment that has the session; ``None`` while it is detached."""
        return self._attachments.current

    @property
    def lease(self) -> Lease:
        """The lease as it stands."""
        attachment = self.attachment
        claimed = attachment is not None and attachment.claimed
        return Lease(heard_at=self._heard_at, alone_since=None if claimed else self._alone_since)

    def heard(self) -> None:
        """The client has said something."""
        self._heard_at = self._now()
        self._attachments.confirm()

    def attach(self) -> Attachment:
        """Give the session to who opened it."""
        attachment = self._attachments.first()
        self._given()
        return attachment

    def resume(self, token: str, last_seq: int) -> Attachment:
        """Give the session to the holder of ``token``, in one step; see :meth:`Attachments.resume`.

        Raises:
            DuplexError: the session is ending or has ended, the token is wrong, or no such event was ever sent; nothing has
                changed then.
        """
        if (remains := self.remains) is not None:
            raise remains.answer(token)
        if self.closing:
            ending = refuse(ErrorCode.SESSION_CLOSED, "the session is ending; open a new one")
            raise ending if self._attachments.claim.opens(token) else not_found()
        attachment = self._attachments.resume(token, last_seq)
        self._heard_at = self._now()
        self._given()
        return attachment

    def detach(self, attachment: Attachment) -> None:
        """``attachment`` lets go of the session, which waits for the next. Idempotent; one that was replaced changes nothing."""
        if self._attachments.detach(attachment) and not self.closing:
            self._alone_since = self._now()
            self._set_detached(True)
            self.begin_lease()

    def lapsed(self) -> Lapse | None:
        """Why the lease is over, if it is."""
        return lapsed(self.lease, self.terms, self._now())

    def begin_lease(self) -> None:
        """Have the reaper look when the lease ends."""
        self._on_lease(end_of(self.lease, self.terms)[0])

    @property
    def remains(self) -> Remains | None:
        """What is to be remembered of the session once it has ended."""
        return None if self._last is None else Remains(claim=self._attachments.claim, closed=self._last)

    def told(self, last: SessionClosed) -> None:
        """The session has told its last event, with the number that it has, or will have, when somebody reads it."""
        self._last = last

    def end(self) -> None:
        """The session has ended. Idempotent."""
        self.closing = True
        self._set_detached(False)

    def _given(self) -> None:
        self._alone_since = self._now()
        self._set_detached(False)
        self.begin_lease()

    def _set_detached(self, detached: bool) -> None:
        if detached != self.detached:
            self.detached = detached
            self._metrics.detached.inc(1 if detached else -1)
