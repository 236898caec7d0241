"""One WebSocket connection as uvicorn serves it, with a short way between its frames and who serves it.

Owns the answer to a handshake that cannot be read, and the :class:`Direct` way: a text frame goes from the connection to its
server, and back, in one call. On the way that ASGI has, each takes a dictionary, a queue, two wake-ups of tasks and, for what
comes in, a stop and a start of reading from the kernel: a third of what a session costs. Used by
:mod:`duplex_server.serving.realtime` where the connection offers it in its scope, under :data:`EXTENSION`; behind another ASGI
server there is the long way only.

The short way never overtakes the long one: a frame is given directly only while none waits in the queue, and what the server
does not take now goes into the queue, where reading stops until it does. The end of a connection always comes through the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol, cast

from starlette.types import Scope
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State

from duplex_server.serving.errors import complaint

EXTENSION = "duplex.direct"
"""Key of a WebSocket's ``scope["extensions"]``; what it holds has its :class:`Direct` under ``"way"``."""


class Direct(Protocol):
    """The short way of one connection, both directions."""

    def listen(self, take: Callable[[str], bool] | None) -> None:
        """Call ``take`` with each text frame that comes from now on; ``None`` ends that.

        ``take`` says whether it took the frame; one that it did not take, and those after it, come by ASGI's ``receive``.
        """

    def send_text(self, text: str) -> bool:
        """Send a text frame if that can be done at once; whether it was. What hinders it, ASGI's ``send`` waits for or tells."""


def direct(scope: Scope) -> Direct | None:
    """The short way of the connection with this ASGI scope, if it has one."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    way: Direct | None = extensions.get(EXTENSION, {}).get("way")
    return way


class Connection(WebSocketsSansIOProtocol):
    """Uvicorn's WebSocket connection. It is its own :class:`Direct` way."""

    _take: Callable[[str], bool] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        """See uvicorn."""
        super().__init__(*args, **options)
        self._offered: dict[str, Any] = {}

    def data_received(self, data: bytes) -> None:
        """Read on, and answer a handshake that is none: it has a header of more than 8 KiB (many cookies, say), or a body."""
        super().data_received(data)
        wrong = self.conn.handshake_exc
        if wrong is None or self.handshake_initiated or self.transport.is_closing():
            return
        told = complaint(HTTPStatus.BAD_REQUEST, "invalid_request", f"the WebSocket handshake cannot be read: {wrong}")
        headers = b"".join(b"%s: %s\r\n" % pair for pair in told.raw_headers)
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\n" + headers + b"connection: close\r\n\r\n" + bytes(told.body)
        )
        self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Begin the ASGI application, with the short way in its scope."""
        super().handle_connect(event)
        if not self.close_sent:
            self._offered = cast("dict[str, Any]", self.scope["extensions"])
            self._offered[EXTENSION] = {"way": self}

    def connection_lost(self, exc: Exception | None) -> None:
        """The end. Nothing of the connection holds itself from here on: its memory is free when its task has ended."""
        super().connection_lost(exc)
        self._offered.pop(EXTENSION, None)

    def send_receive_event_to_app(self) -> None:
        """Hand over a message that is whole: directly if that can be."""
        if self._take is not None and self.curr_msg_data_type == "text" and self.queue.empty() and not self.close_sent:
            try:
                taken = self._take(b"".join(self.frames).decode())
            except UnicodeDecodeError:
                taken = False  # the long way closes the socket for it
            if taken:
                self.frames = []
                return
        super().send_receive_event_to_app()

    # -- the short way ------------------------------------------------------------------------------------------------

    def listen(self, take: Callable[[str], bool] | None) -> None:
        """See :class:`Direct`."""
        self._take = take

    def send_text(self, text: str) -> bool:
        """See :class:`Direct`."""
        if self.close_sent or self.disconnected or not self.writable.is_set() or self.conn.state is not State.OPEN:
            return False
        self.transport.write(Frame(Opcode.TEXT, text.encode()).serialize(mask=False))
        return True
