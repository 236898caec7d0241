"""The seam between a client and its server: a :class:`Transport` carries commands one way and events the other.

Two exist: :class:`SocketTransport` over a WebSocket, with the wire codec, and :class:`EngineTransport` to an engine in the
same process, with no codec at all. Used by :class:`~duplex_client.base.BaseDuplexClient` only. A transport knows no
conversation: it neither waits for events nor answers any.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator
from typing import Literal, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import ConnectionClosed as SocketClosed
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from duplex_client.engine import Engine, SessionHandle
from duplex_client.errors import ConnectFailed, ConnectionClosed, ProtocolError, ServerRefused
from duplex_core.commands import Command
from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo
from duplex_core.events import Event
from duplex_core.wire import WireError, decode_event, encode_command

DEFAULT_URL = "ws://127.0.0.1:8000"
REALTIME_PATH = "/v1/realtime"
MAX_EVENT_BYTES = 32 << 20
"""Largest event taken from a server: twice what a server takes from a client, since base64 grows audio by a third."""
CLOSE_TIMEOUT_S = 3.0
"""How long a server may take to answer the closing of the socket."""

log = logging.getLogger("duplex_client")


class Transport(Protocol):
    """One connection to one session."""

    async def send(self, command: Command) -> None:
        """Pass a command on.

        Raises:
            ConnectionClosed: the connection is gone.
        """
        ...

    async def receive(self) -> Event:
        """Give the next event.

        Raises:
            ConnectionClosed: there will be none.
        """
        ...

    async def close(self) -> None:
        """Give the connection up; idempotent."""
        ...


class _ErrorBody(msgspec.Struct, frozen=True):
    """``{"error": {...}}``: how the server refuses over HTTP."""

    error: ErrorInfo


def realtime_url(url: str, model: str | None = None) -> str:
    """The full socket address for ``url``, which may be a bare host, an ``http`` address or the whole thing.

    Raises:
        ValueError: the scheme is neither ``ws(s)`` nor ``http(s)``, or there is no host.
    """
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    schemes = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(f"{url!r} is no server address; use one like {DEFAULT_URL} (ws, wss, http or https)")
    path = parts.path if parts.path not in ("", "/") else REALTIME_PATH
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if model is not None:
        query["model"] = model
    return urlunsplit((schemes[parts.scheme], parts.netloc, path, urlencode(query), ""))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class SocketTransport:
    """A session over a WebSocket. Made by :meth:`open`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, url: str, *, api_key: str | None, open_timeout_s: float) -> SocketTransport:
        """Connect to the full address ``url`` (see :func:`realtime_url`).

        Raises:
            ConnectFailed: nothing answers there, or what answers speaks no WebSocket.
            ServerRefused: the server declined, with an HTTP status.
        """
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy from the environment is for the outside; one's own machine is reached directly.
        proxy: Literal[True] | None = None if _is_loopback(urlsplit(url).hostname or "") else True
        try:
            socket = await connect_socket(
                url,
                additional_headers=headers,
                open_timeout=open_timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=MAX_EVENT_BYTES,
                compression=None,
                proxy=proxy,
            )
        except InvalidStatus as exc:
            raise _refused(url, exc) from exc
        except TimeoutError as exc:
            raise ConnectFailed(f"{url} did not answer within {open_timeout_s:g} s") from exc
        except (OSError, InvalidHandshake, InvalidURI) as exc:
            raise ConnectFailed(f"cannot reach {url}: {exc}. Is a duplex-server running there?") from exc
        return cls(socket)

    async def send(self, command: Command) -> None:
        """Encode and send ``command``."""
        try:
            await self._socket.send(encode_command(command))
        except SocketClosed as exc:
            raise _closed(exc) from exc

    async def receive(self) -> Event:
        """Receive and decode the next event; one of a type that this client does not know is logged and skipped."""
        while True:
            try:
                text = await self._socket.recv()
            except SocketClosed as exc:
                raise _closed(exc) from exc
            if isinstance(text, bytes):
                raise ProtocolError("the server sent a binary frame; events are JSON text")
            try:
                return decode_event(text)
            except WireError as exc:
                if exc.info.code is ErrorCode.UNKNOWN_EVENT_TYPE:
                    log.warning("an event of a newer server was skipped: %s", exc)
                    continue
                raise ProtocolError(f"the server sent an event that is not in the wire contract: {exc}") from exc

    async def close(self) -> None:
        """Close the socket."""
        await self._socket.close()


def _refused(url: str, exc: InvalidStatus) -> ServerRefused:
    status = exc.response.status_code
    try:
        info = msgspec.json.decode(exc.response.body or b"", type=_ErrorBody).error
    except msgspec.DecodeError:
        info = None
    told = info.message if info is not None else f"HTTP status {status}"
    return ServerRefused(f"{url} refused the connection: {told}", info=info, status=status)


def _closed(exc: SocketClosed) -> ConnectionClosed:
    frame = exc.rcvd
    told = f" (code {frame.code}{': ' + frame.reason if frame.reason else ''})" if frame else ""
    return ConnectionClosed(f"the connection to the server is closed{told}")


class EngineTransport:
    """A session of an engine in the same process. Made by :meth:`open`."""

    def __init__(self, engine: Engine, handle: SessionHandle) -> None:
        self._engine = engine
        self._handle = handle
        self._events: AsyncIterator[Event] = handle.events()

    @classmethod
    async def open(cls, engine: Engine) -> EngineTransport:
        """Open a session on ``engine``.

        Raises:
            ServerRefused: the engine has no room or cannot serve.
        """
        try:
            return cls(engine, await engine.open_session())
        except DuplexError as exc:
            raise ServerRefused(f"the engine opened no session: {exc}", info=exc.info) from exc

    async def send(self, command: Command) -> None:
        """Submit ``command``."""
        try:
            await self._handle.submit(command)
        except DuplexError as exc:
            raise ConnectionClosed(f"the session took no command: {exc}", info=exc.info) from exc

    async def receive(self) -> Event:
        """The session's next event."""
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            raise ConnectionClosed("the session has ended") from None

    async def close(self) -> None:
        """End the session."""
        await self._engine.close_session(self._handle.session_id)
