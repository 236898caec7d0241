"""The seam between a client and its server: a :class:`Transport` carries commands one way and events the other.

Two exist: :class:`SocketTransport` over a WebSocket, with the wire codec, and :class:`EngineTransport` to an engine in the
same process, with no codec at all. Opened by :mod:`duplex_client.client`, used by :class:`~duplex_client.link.Link` only. A
transport knows no conversation: it neither waits for events nor answers any, and when it breaks it stays broken.
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

from duplex_client.changes import ResumePoint
from duplex_client.engine import DetachableHandle, Engine, ResumableEngine, SessionHandle
from duplex_client.errors import ConnectFailed, ConnectionClosed, ProtocolError, ServerRefused
from duplex_core.commands import Command, SessionResume
from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo
from duplex_core.events import Event
from duplex_core.wire import WireError, decode_event, encode_command

DEFAULT_URL = "ws://127.0.0.1:8000"
REALTIME_PATH = "/v1/realtime"
MAX_EVENT_BYTES = 32 << 20
"""Largest event taken from a server: twice what a server takes from a client, since base64 grows audio by a third."""
CLOSE_TIMEOUT_S = 3.0
"""How long a server may take to answer the closing of the socket."""

_OUR_COMPLAINTS = frozenset({1002, 1003, 1007, 1009})
"""Close codes with which this side gives up a peer that breaks the WebSocket protocol or its limits."""
_GOING_AWAY = 1001

log = logging.getLogger("duplex_client")


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a type that this client does not know; it counts in the server's numbering all the same."""

    type: str
    server_event_seq: int = 0


class Transport(Protocol):
    """One connection to one session."""

    async def send(self, command: Command) -> None:
        """Pass a command on.

        Raises:
            ConnectionClosed: the connection is gone.
        """
        ...

    async def receive(self) -> Event | UnknownEvent:
        """Give the next event.

        Raises:
            ConnectionClosed: there will be none.
        """
        ...

    async def close(self) -> None:
        """Hang up: the session ends with the connection. Idempotent."""
        ...

    async def detach(self) -> None:
        """Let go of the connection in good order, after what was sent; the session waits to be taken up. Idempotent."""
        ...

    async def drop(self) -> None:
        """Let go of the connection at once, whatever its state; the session waits to be taken up. Idempotent."""
        ...


class _ErrorBody(msgspec.Struct, frozen=True):
    """``{"error": {...}}``: how the server refuses over HTTP."""

    error: ErrorInfo


def resume_url(url: str) -> str:
    """The full address ``url`` for a socket that opens no session of its own."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True)) | {"autostart": "0"}
    return urlunsplit((*parts[:3], urlencode(query), parts.fragment))


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
    async def open(
        cls, url: str, *, api_key: str | None, open_timeout_s: float, resume: ResumePoint | None = None
    ) -> SocketTransport:
        """Connect to the full address ``url`` (see :func:`realtime_url`), and ask for ``resume``'s session if one is given.

        Raises:
            ConnectionClosed: the socket was closed before a session could be asked for.
            ConnectFailed: nothing answers there, or what answers speaks no WebSocket.
            ServerRefused: the server declined, with an HTTP status.
        """
        if resume is not None:
            url = resume_url(url)
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
        transport = cls(socket)
        if resume is not None:
            await transport._ask_for(resume)
        return transport

    async def _ask_for(self, point: ResumePoint) -> None:
        command = SessionResume(
            session_id=point.session_id,
            resume_token=point.resume_token,
            last_server_event_seq=point.last_server_event_seq,
        )
        try:
            await self.send(command)
        except BaseException:
            await self.drop()
            raise

    async def send(self, command: Command) -> None:
        """Encode and send ``command``."""
        try:
            await self._socket.send(encode_command(command))
        except SocketClosed as exc:
            raise _closed(exc) from exc

    async def receive(self) -> Event | UnknownEvent:
        """Receive and decode the next event; one of a type that this client does not know is logged."""
        try:
            text = await self._socket.recv()
        except SocketClosed as exc:
            raise _closed(exc) from exc
        if isinstance(text, bytes):
            raise ProtocolError("the server sent a binary frame; events are JSON text")
        try:
            return decode_event(text)
        except WireError as exc:
            if exc.info.code is ErrorCode.UNKNOWN_EVENT_TYPE and (unknown := _unknown(text)) is not None:
                log.warning("an event of a newer server was skipped: %s", exc)
                return unknown
            raise ProtocolError(f"the server sent an event that is not in the wire contract: {exc}") from exc

    async def close(self) -> None:
        """Close the socket normally, which ends the session."""
        await self._socket.close()

    async def detach(self) -> None:
        """Close the socket as one that goes away, which leaves the session."""
        await self._socket.close(_GOING_AWAY)

    async def drop(self) -> None:
        """Break the socket."""
        self._socket.transport.abort()
        await self._socket.wait_closed()


def _refused(url: str, exc: InvalidStatus) -> ServerRefused:
    status = exc.response.status_code
    try:
        info = msgspec.json.decode(exc.response.body or b"", type=_ErrorBody).error
    except msgspec.DecodeError:
        info = None
    told = info.message if info is not None else f"HTTP status {status}"
    return ServerRefused(f"{url} refused the connection: {told}", info=info, status=status)


def _unknown(text: str) -> UnknownEvent | None:
    try:
        return msgspec.json.decode(text, type=UnknownEvent)
    except msgspec.ValidationError:
        return None


def _closed(exc: SocketClosed) -> ConnectionClosed:
    complaint = None if exc.rcvd_then_sent else exc.sent
    if complaint is not None and complaint.code in _OUR_COMPLAINTS:
        return ProtocolError(f"the server sent what cannot be taken (code {complaint.code}: {complaint.reason})")
    frame = exc.rcvd
    told = f" (code {frame.code}{': ' + frame.reason if frame.reason else ''})" if frame else ""
    return ConnectionClosed(f"the connection to the server is closed{told}", code=frame.code if frame else None)


class EngineTransport:
    """A session of an engine in the same process. Made by :meth:`open` and :meth:`resume`."""

    def __init__(self, engine: Engine, handle: SessionHandle) -> None:
        self._engine = engine
        self._handle = handle
        self._events: AsyncIterator[Event] = handle.events()
        self._let_go = False

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

    @classmethod
    async def resume(cls, engine: ResumableEngine, point: ResumePoint) -> EngineTransport:
        """Take a session of ``engine`` over.

        Raises:
            ServerRefused: it has no such session, or the token is not its.
        """
        try:
            handle = await engine.resume_session(point.session_id, point.resume_token, point.last_server_event_seq)
        except DuplexError as exc:
            raise ServerRefused(f"the engine gave no session: {exc}", info=exc.info) from exc
        return cls(engine, handle)

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
        """End the session, unless it was let go."""
        if not self._let_go:
            await self._engine.close_session(self._handle.session_id)

    async def detach(self) -> None:
        """Let go of the session; an engine that cannot give one to somebody else ends it."""
        if isinstance(self._handle, DetachableHandle):
            self._handle.detach()
        else:
            await self.close()
        self._let_go = True

    async def drop(self) -> None:
        """Let go of the session."""
        await self.detach()
