"""What a session has told its client, numbered, and kept for a client that comes back.

Owns the numbering: an event gets its ``event_id`` and ``server_event_seq`` here, when it is taken for sending, so that what an
interruption drops before that leaves no gap. Keeps the events themselves, never their bytes on the wire, in the form that they
had; the oldest go when a bound is reached or when the client says that it has them. Called by the outbox and the attachments
of one session.
"""

from __future__ import annotations

import secrets
from collections import deque
from itertools import islice
from typing import TypeVar

import msgspec

from duplex_core.errors import ErrorCode, refuse
from duplex_core.events import Event, ServerEvent

E = TypeVar("E", bound=ServerEvent)


class Journal:
    """The numbered events of one session, oldest first."""

    def __init__(self, *, max_events: int, max_bytes: int) -> None:
        """Keep at most ``max_events`` events that weigh at most ``max_bytes`` together."""
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._kept: deque[tuple[Event, int]] = deque()
        self._bytes = 0
        self._prefix = f"event_{secrets.token_hex(8)}"
        self.last_seq = 0
        """Number of the last event that was taken for sending."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept, as the outbox weighs them."""
        return self._bytes

    @property
    def first_seq(self) -> int:
        """Number of the oldest event that is kept, or of the next one when none is."""
        return self.last_seq - len(self._kept) + 1

    def stamp(self, event: Event, size: int) -> Event:
        """Number ``event``, which weighs ``size`` bytes, and keep it. The numbered event."""
        self.last_seq += 1
        stamped = self.numbered(event, self.last_seq)
        self._kept.append((stamped, size))
        self._bytes += size
        while len(self._kept) > self._max_events or self._bytes > self._max_bytes:
            self._bytes -= self._kept.popleft()[1]
        return stamped

    def numbered(self, event: E, seq: int) -> E:
        """``event`` as it looks as number ``seq``."""
        return msgspec.structs.replace(event, event_id=f"{self._prefix}{seq}", server_event_seq=seq)

    def after(self, seq: int) -> list[Event]:
        """The kept events with a number above ``seq``, in order."""
        return [event for event, _ in islice(self._kept, max(0, seq - self.first_seq + 1), None)]

    def acknowledge(self, seq: int) -> None:
        """Forget the events up to number ``seq``: the client says that it has them.

        Raises:
            DuplexError: no event with that number has been sent.
        """
        if seq > self.last_seq:
            message = f"server_event_seq is {seq}; the last event that this session sent is {self.last_seq}"
            raise refuse(ErrorCode.INVALID_VALUE, message, param="server_event_seq")
        for _ in range(min(len(self._kept), seq - self.first_seq + 1)):
            self._bytes -= self._kept.popleft()[1]
