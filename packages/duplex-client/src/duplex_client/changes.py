"""What an application is told about its connection, once each: lost, back, and whether anything is missing.

Owns the values that a client's ``on_connection`` hands out, and :class:`ResumePoint`, by which a session is taken up again.
Made by :mod:`duplex_client.link`. Plain values; times are in ms on the client's clock.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class ResumePoint(msgspec.Struct, frozen=True, kw_only=True):
    """From where a session can be taken up: what :meth:`DuplexClient.resume` needs.

    ``resume_token`` opens the session to whoever has it, once; it is left out of the value's ``repr``.
    """

    session_id: str
    resume_token: str
    last_server_event_seq: int

    def __repr__(self) -> str:
        return f"ResumePoint(session_id={self.session_id!r}, last_server_event_seq={self.last_server_event_seq})"


class Reconnecting(msgspec.Struct, frozen=True, kw_only=True):
    """The connection is lost and is being made again. Until :class:`Resumed` nothing arrives, and audio is dropped."""

    at_ms: float
    cause: str


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """The session goes on; the events that were missed follow, in order.

    Attributes:
        outage_ms: How long it was out of reach, from the moment that the loss was seen.
        attempts: How many times the server was tried, this one included.
        replayed_events: How many events were missed, as the server counts them.
        dropped_audio_ms: How much of the user's audio was given to the client meanwhile and dropped.
    """

    at_ms: float
    outage_ms: float
    attempts: int
    replayed_events: int
    dropped_audio_ms: float


class ResyncRequired(msgspec.Struct, frozen=True, kw_only=True):
    """The server no longer had all events that were missed: numbers ``first_lost_seq`` to ``last_lost_seq`` never come.

    What the application keeps of the conversation may have holes there: fetch the items that matter with
    ``retrieve_item``. Answers that were open have ``events_lost`` set.
    """

    at_ms: float
    first_lost_seq: int
    last_lost_seq: int


ConnectionChange = Reconnecting | Resumed | ResyncRequired
"""All that can be told."""
Watcher = Callable[[ConnectionChange], None]
"""Is called for each change, in order with the events: before the first event that comes after it."""
