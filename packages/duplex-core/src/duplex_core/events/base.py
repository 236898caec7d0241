"""The base of every server event. ``event_id`` and ``server_event_seq`` are stamped when an event is given to a socket."""

from __future__ import annotations

import msgspec


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every event of the server has."""

    event_id: str = ""
    server_event_seq: int = 0
