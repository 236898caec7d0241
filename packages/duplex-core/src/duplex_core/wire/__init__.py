"""The one codec between JSON text and typed commands and events, for both ends of the socket.

Owns: everything that is JSON, base64 or a dialect of the wire. Called by: the server's socket and the client's. Never:
knows a session's state; what is well formed and still wrong is the session machine's to refuse.
"""

from __future__ import annotations

from duplex_core.wire.codec import (
    MAX_EVENT_BYTES,
    decode_command,
    decode_event,
    encode_command,
    encode_event,
    encode_event_utf8,
)
from duplex_core.wire.faults import WireError

__all__ = [
    "MAX_EVENT_BYTES",
    "WireError",
    "decode_command",
    "decode_event",
    "encode_command",
    "encode_event",
    "encode_event_utf8",
]
