"""One session as its client's side holds it.

Owns the way from a client's words and readings to the session runner, and the refusal of those whose attachment has the session
no more. Made by :class:`duplex_server.engine.omni.DuplexOmni`; used by serving and by Python programs. It decides nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from duplex_core.commands import Command
from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error
from duplex_core.events import CloseReason, Event
from duplex_server.engine.attachment import Attachment
from duplex_server.engine.runner import SessionRunner


class DuplexSessionHandle:
    """A session through one attachment, or, without one, from the side: such a handle reads nothing and takes nothing over."""

    def __init__(self, runner: SessionRunner, attachment: Attachment | None = None) -> None:
        """Hold ``runner``'s session through ``attachment``."""
        self._runner = runner
        self._attachment = attachment

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._runner.session_id

    @property
    def attached(self) -> bool:
        """Whether what is said here is the session's to take: false once it was let go, or taken over by another client."""
        return self._attachment is None or self._attachment is self._runner.tenure.attachment

    @property
    def ended(self) -> bool:
        """Whether the session is over; its last events may still wait to be read."""
        return self._runner.ended.is_set()

    async def submit(self, command: Command) -> None:
        """Say something to the session; waits while it has too much to do. What follows comes as events.

        Raises:
            DuplexError: the session has ended, or is not this handle's any more.
        """
        self._claim()
        while not self._runner.offer(command):
            await self._runner.mailbox.room()
            self._claim()

    def offer(self, command: Command) -> None:
        """Say something to the session, now or not at all.

        Raises:
            DuplexError: the session has ended or is not this handle's any more, or too much waits already: nothing was taken.
        """
        self._claim()
        if not self._runner.offer(command):
            message = "events come faster than they can be taken; this one was dropped: send it again, slower"
            raise DuplexError(error(ErrorCode.RESOURCE_EXHAUSTED, message, event_id=command.event_id))

    @property
    def crowded(self) -> bool:
        """Whether so much waits that who reads the socket should let the session run first."""
        return self._runner.mailbox.crowded

    def reject(self, info: ErrorInfo) -> None:
        """Have the client told of an error that kept what it sent from becoming a command."""
        if self.attached:
            self._runner.reject(info)

    def events(self, at_once: Callable[[Event], bool] | None = None) -> AsyncIterator[Event]:
        """Every event in order, numbered, to ``session.closed``, after which it ends.

        They begin with ``session.created``, or with ``session.resumed`` and what was missed; they end early, with
        ``session.replaced``, when another client takes the session over, and without a word after :meth:`detach`.

        Args:
            at_once: is called with each event that comes while all before it have been read and the next is waited for; whether
                it took the event, which then is not read here. Called in the middle of the session's work: it must not call
                the session.

        Raises:
            RuntimeError: somebody reads here already, or this handle was got from the side.
        """
        if self._attachment is None:
            raise RuntimeError(
                "this handle does not have the session, so it has no events; resume the session to read them"
            )
        return self._attachment.read(at_once)

    def detach(self) -> None:
        """Let go of the session without ending it: it waits for whoever resumes it, as long as the grace. Idempotent."""
        if self._attachment is not None:
            self._runner.tenure.detach(self._attachment)

    def close(self, reason: CloseReason = CloseReason.CLIENT, info: ErrorInfo | None = None) -> None:
        """Ask the session to end; ``session.closed`` is its last event. Idempotent; not if it is not this handle's any more."""
        if self.attached:
            self._runner.close(reason, info)

    async def wait_ended(self) -> None:
        """Wait until the session is over and its slot free."""
        await self._runner.ended.wait()

    async def aclose(self) -> None:
        """End the session and wait until its slot is free. Idempotent; nothing is done to what is not this handle's any more."""
        if self.attached:
            self.close()
            await self.wait_ended()

    def _claim(self) -> None:
        """Let nobody speak here who does not have the session.

        Raises:
            DuplexError: that is so.
        """
        if self._attachment is None:
            return
        if self._attachment is not self._runner.tenure.attachment:
            message = f"session {self.session_id} is not yours any more: it was let go, or another client took it over"
            raise DuplexError(error(ErrorCode.SESSION_CLOSED, message))
        self._attachment.claimed = True
