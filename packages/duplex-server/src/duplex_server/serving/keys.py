"""Who may use the server: the one configured key, or everybody when there is none.

Owns the comparison and the places where a key may stand. Called for every route under ``/v1``. Must never log a key, or
compare one in a time that depends on how much of it is right.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

_KEY_PROTOCOL = "openai-insecure-api-key."
PROTOCOL = "realtime"
"""The subprotocol that is spoken, and that browsers offer beside the one that carries their key."""


class Keys:
    """The key that clients must show."""

    def __init__(self, key: str | None) -> None:
        """Ask for ``key``; ``None`` lets everybody in."""
        self._key = key.encode() if key is not None else None

    def admit(self, authorization: str | None, subprotocols: Iterable[str] = ()) -> bool:
        """Whether a client may in.

        Args:
            authorization: its ``Authorization`` header, as HTTP servers hand it over: each byte a character.
            subprotocols: the WebSocket subprotocols that it offers; browsers can send a key in no other way.
        """
        if self._key is None:
            return True
        shown = [name.removeprefix(_KEY_PROTOCOL) for name in subprotocols if name.startswith(_KEY_PROTOCOL)]
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() == "bearer":
            shown.append(token.strip())
        return any(secrets.compare_digest(each.encode("latin-1", "replace"), self._key) for each in shown)
