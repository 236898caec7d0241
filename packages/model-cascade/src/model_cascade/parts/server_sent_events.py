"""The data of server-sent events, read from lines.

Owns: the reading of ``text/event-stream``. Called by: :mod:`model_cascade.parts.chat_endpoint`. Never: reads a socket.
Source: WHATWG HTML, "Server-sent events", section 9.2.6. Names, ids and retry times are not needed here and left out.
"""

from __future__ import annotations


class EventReader:
    """Feed it lines without their ends; it gives the data of each event."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def feed(self, line: str) -> str | None:
        """Take a line and give the data of the event that it completes, if it does."""
        if not line:
            data, self._data = self._data, []
            return "\n".join(data) if data else None
        field, _, value = line.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))
        return None

    def finish(self) -> str | None:
        """Give the data of a last event that the stream ended without closing."""
        return self.feed("")
