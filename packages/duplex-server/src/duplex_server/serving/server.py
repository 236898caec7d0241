"""The listening process: its socket, its signals, its end.

Owns the uvicorn server and what SIGTERM and SIGINT mean: no new session, running ones told within the drain time, then a
clean exit; a second signal ends it at once. Called by the command line. Must never start listening twice or swallow a
signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from duplex_core.wire import MAX_EVENT_BYTES
from duplex_server.engine.omni import DuplexOmni
from duplex_server.serving.connection import Connection

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

FRAME_LIMIT = 4 * MAX_EVENT_BYTES
"""Largest frame that is read at all, in bytes. An event beyond ``MAX_EVENT_BYTES`` is an error and the socket stays; a frame
beyond this closes the socket with 1009, since reading it would be the harm."""
STUCK_CLIENT_MS = 30_000
"""How long the kernel keeps trying to hand data to a client that takes none, where the platform lets us say so."""
EXIT_GRACE_S = 3
"""How long connections get to finish once all sessions have ended."""


class ListenError(OSError):
    """The address cannot be listened on; the message says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises:
        ListenError: the port is taken or forbidden, or there is no such address here.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as exc:
        raise ListenError(f"there is no address {host!r} to listen on: {exc.strerror}") from exc
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STUCK_CLIENT_MS)
        listener.bind(address)
        listener.listen(1024)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise ListenError(
                f"port {port} of {host} is taken; stop what listens there or choose another --port"
            ) from exc
        raise ListenError(f"cannot listen on port {port} of {host}: {exc.strerror or exc}") from exc
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _NoFault(logging.Filter):
    """Drops what uvicorn logs as errors and is none of the server's.

    It complains after each refusal of a socket that has a body of its own, and tells, with a traceback, of each client that
    sends what is not UTF-8; such a client is told itself, by the code that its socket is closed with.
    """

    _MESSAGES = frozenset(
        {"ASGI callable returned without completing handshake.", "Invalid UTF-8 sequence received from client."}
    )

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log ``record``."""
        return record.msg not in self._MESSAGES


_NO_FAULT = _NoFault()


class _ClosedForTheApplication:
    """Tells the application that a client is gone whose socket uvicorn closes by itself.

    It does so when no pong comes, and when a frame is too large or breaks the protocol; what the application sends after that
    it takes for the application's fault. To the application it is a connection that broke.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or one socket."""

        async def told(message: Message) -> None:
            try:
                await send(message)
            except RuntimeError as exc:
                if message["type"] not in {"websocket.send", "websocket.close"}:
                    raise
                raise ConnectionAbortedError("the socket was closed below the application") from exc

        await self._app(scope, receive, told if scope["type"] == "websocket" else send)


class Server(uvicorn.Server):
    """Uvicorn, listening on a socket that is given to it, with signals left to :func:`serve`."""

    def __init__(self, app: FastAPI, on_ready: Callable[[], None]) -> None:
        """Prepare to serve ``app``; ``on_ready`` is called once, when requests are taken."""
        config = uvicorn.Config(
            _ClosedForTheApplication(app),
            http="h11",  # the other one, httptools, holds a request's headers whatever their size
            ws=Connection,
            ws_max_size=FRAME_LIMIT,
            ws_per_message_deflate=False,  # audio in base64 hardly shrinks, and each socket would hold a compressor
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=EXIT_GRACE_S,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_NO_FAULT)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests."""
        await super().startup(sockets)
        self._on_ready()


async def serve(
    engine: DuplexOmni, app: FastAPI, listener: socket.socket, *, drain_s: float, on_ready: Callable[[], None]
) -> None:
    """Serve until a signal asks for the end, then end within about ``drain_s`` seconds.

    Args:
        engine: running; its sessions are ended here, the engine itself is the caller's.
        app: what answers.
        listener: from :func:`listen`; closed when this returns.
        drain_s: how long running sessions and chat requests get to end by themselves.
        on_ready: called once, when requests are taken.
    """
    server = Server(app, on_ready)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set():
            log.warning("asked again to stop: ending at once")
            server.force_exit = server.should_exit = True
        stop.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for each in signals:
        loop.add_signal_handler(each, asked)
    ending = asyncio.create_task(_end(engine, server, stop, drain_s))
    try:
        await server.serve([listener])
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending


async def _end(engine: DuplexOmni, server: Server, stop: asyncio.Event, drain_s: float) -> None:
    """Wait to be asked, let what runs end, then let the server go."""
    await stop.wait()
    log.info("stopping: no new sessions; %d sessions have %.0f s to end", engine.sessions.taken, drain_s)
    await engine.shutdown(drain_s)
    server.should_exit = True
