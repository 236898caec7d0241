"""One WebSocket connection as uvicorn serves it, with a short way between its frames and who serves it.

Owns the answer to a handshake that cannot be read, and the :class:`Direct` way: a text frame goes from the connection to its
server, and back, in one call. On the way that ASGI has, each takes a dictionary, a queue, two wake-ups of tasks and, for what
comes in, a stop and a start of reading from the kernel: a third of what a session costs. Used by
:mod:`duplex_server.serving.realtime` where the connection offers it in its scope, under :data:`EXTENSION`; behind another ASGI
server there is the long way only.

The short way never overtakes the long one: a frame is given directly only while none waits in the queue, and what the server
does not take now goes into the queue, where reading stops until it does. The end of a connection always comes through the queue.

What comes in is cut into frames here, which takes a tenth of what the library needs for it, and the library gets all frames
that do not go the short way, each whole. From the first frame on that is anything but a whole message, a ping, a pong or a close
in the form that the protocol wants, it gets all that comes as it comes, and so says itself what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from starlette.types import Scope
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from duplex_server.serving.errors import complaint

try:
    from websockets.speedups import apply_mask
except ImportError:  # no compiler, and no wheel for this platform
    from websockets.utils import apply_mask

EXTENSION = "duplex.direct"
"""Key of a WebSocket's ``scope["extensions"]``; what it holds has its :class:`Direct` under ``"way"``."""

# RFC 6455, section 5.2: the first byte of a frame that is the last of its message, without extensions, by its kind; the second
# one's highest bit says that there is a mask, as there must be; its others are the size, or say how many bytes after it have it.
_TEXT: Final = 0x81
_WHOLE: Final = frozenset({_TEXT, 0x82, 0x88, 0x89, 0x8A})
"""Text, binary, close, ping, pong."""
_MASKED: Final = 0x80
_SIZE_IN_2: Final = 126
_SIZE_IN_8: Final = 127
_MASK_BYTES: Final = 4


class Direct(Protocol):
    """The short way of one connection, both directions."""

    def listen(self, take: Callable[[str | bytes], bool] | None) -> None:
        """Call ``take`` with each text frame that comes from now on, as text or as UTF-8; ``None`` ends that.

        ``take`` says whether it took the frame; one that it did not take, and those after it, come by ASGI's ``receive``.
        """

    def send_text(self, text: bytes) -> bool:
        """Send a text frame, given in UTF-8, if that can be done at once; whether it was.

        What hinders it, ASGI's ``send`` waits for or tells.
        """


def direct(scope: Scope) -> Direct | None:
    """The short way of the connection with this ASGI scope, if it has one."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    way: Direct | None = extensions.get(EXTENSION, {}).get("way")
    return way


class Connection(WebSocketsSansIOProtocol):
    """Uvicorn's WebSocket connection. It is its own :class:`Direct` way."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """See uvicorn."""
        super().__init__(*args, **options)
        self._offered: dict[str, Any] = {}
        self._take: Callable[[str | bytes], bool] | None = None
        self._cuts = False
        self._held = bytearray()
        self._wanted = 0

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if not self._cuts:
            self._read_on(data)
        elif not self._held:
            self._cut(data)
        else:
            self._held += data
            if len(self._held) >= self._wanted:
                data = bytes(self._held)
                self._held.clear()
                self._cut(data)

    def _cut(self, data: bytes) -> None:
        """Deal with each frame in ``data``, which begins with one, and keep what is left of it."""
        at, end, self._wanted = 0, len(data), 2
        while end - at >= self._wanted:
            first, second = data[at], data[at + 1]
            size = second - _MASKED
            head = at + 2
            if size >= _SIZE_IN_2:
                head += 2 if size == _SIZE_IN_2 else 8
                size = int.from_bytes(data[at + 2 : head])
                if end < head:
                    self._wanted = head - at
                    break
            if first not in _WHOLE or second < _MASKED or size > self.config.ws_max_size:
                self._cuts = False
                self._read_on(data[at:])
                return
            begin = head + _MASK_BYTES
            if end < begin + size:
                self._wanted = begin + size - at
                break
            if first != _TEXT or not self._takes(apply_mask(data[begin : begin + size], data[head:begin])):
                self._read_on(data[at : begin + size])
                if self.transport.is_closing():
                    return
            at = begin + size
            self._wanted = 2
        self._held += data[at:]

    def _takes(self, message: bytes) -> bool:
        """Whether the server takes a message at once."""
        if self._take is None or self.close_sent or not self.queue.empty() or self.conn.state is not State.OPEN:
            return False
        if message.isascii():
            return self._take(message)
        try:
            text = message.decode()
        except UnicodeDecodeError:
            return False  # the long way closes the socket for it
        return self._take(text)

    def _read_on(self, data: bytes) -> None:
        """Have the library read, and answer a handshake that is none: it has a header of more than 8 KiB, say, or a body."""
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
        """Begin the ASGI application, with the short way in its scope. What comes from here on is frames."""
        super().handle_connect(event)
        self._cuts = True
        if not self.close_sent:
            self._offered = cast("dict[str, Any]", self.scope["extensions"])
            self._offered[EXTENSION] = {"way": self}

    def connection_lost(self, exc: Exception | None) -> None:
        """The end. Nothing of the connection holds itself from here on: its memory is free when its task has ended."""
        super().connection_lost(exc)
        self._offered.pop(EXTENSION, None)

    # -- the short way ------------------------------------------------------------------------------------------------

    def listen(self, take: Callable[[str | bytes], bool] | None) -> None:
        """See :class:`Direct`."""
        self._take = take

    def send_text(self, text: bytes) -> bool:
        """See :class:`Direct`."""
        if self.close_sent or self.disconnected or not self.writable.is_set() or self.conn.state is not State.OPEN:
            return False
        self.transport.write(_head_of(len(text)) + text)
        return True


def _head_of(size: int) -> bytes:
    """What stands before a server's text message of ``size`` bytes."""
    if size < _SIZE_IN_2:
        return struct.pack("!BB", _TEXT, size)
    if size < 1 << 16:
        return struct.pack("!BBH", _TEXT, _SIZE_IN_2, size)
    return struct.pack("!BBQ", _TEXT, _SIZE_IN_8, size)
