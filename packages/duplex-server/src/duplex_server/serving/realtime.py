"""The realtime socket: one WebSocket joined to one session.

Owns the attachment: reading, writing, refusing, and the end of the socket. Mounted by :mod:`duplex_server.serving.app` under
each of the addresses of the duplex handler. It decides nothing about a conversation. The socket is always read, whatever the
session does; what is wrong with a frame becomes an ``error`` event, and the session goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING

from fastapi import WebSocket, WebSocketDisconnect

from duplex_core.authentication import Principal
from duplex_core.commands import SessionResume
from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error
from duplex_core.events import CloseReason, ErrorEvent, Event
from duplex_core.wire import decode_command, encode_event, encode_event_utf8
from duplex_server.engine.departed import SessionOver
from duplex_server.engine.metrics import EngineMetrics, Tally
from duplex_server.engine.omni import DuplexOmni, DuplexSessionHandle
from duplex_server.serving import query
from duplex_server.serving.connection import direct
from duplex_server.serving.errors import require_model, response_to
from duplex_server.serving.keys import PROTOCOL, Keys
from duplex_server.serving.query import Query

if TYPE_CHECKING:
    from starlette.types import Message

log = logging.getLogger(__name__)

FIRST_COMMAND_S = 10.0
"""How long a socket that is to resume a session may take to say which."""
LINGER_S = 5.0
"""How long a client that reads slowly is given to take its last events, once its session is over."""

_CLOSE_NORMAL = 1000
_CLOSED_WITHOUT_CODE = 1005
_CLOSE_POLICY = 1008
_CLOSE_FAILED = 1011
_CLOSE_TRY_LATER = 1013

_RESUME_FIRST = "this socket opens no session (autostart=0): its first event must be session.resume"
_BINARY = error(ErrorCode.BINARY_FRAME, "a binary frame; every event is one text frame of JSON")


async def attend(websocket: WebSocket, engine: DuplexOmni, keys: Keys) -> None:
    """Serve one WebSocket from its handshake to its end."""
    resuming = query.wants_to_resume(websocket.query_params)
    try:
        principal = await keys.admit(websocket, realtime=True, resuming=resuming)
    except DuplexError as exc:
        await websocket.send_denial_response(response_to(exc.info))
        return
    offered: list[str] = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
    try:
        asked = query.read(websocket.query_params)
        handle = await (_resumed(websocket, engine, asked) if asked.resumes else _opened(engine, asked, principal))
    except SessionOver as exc:
        await _end(websocket, exc.closed, _CLOSE_NORMAL)
        return
    except DuplexError as exc:
        await _refuse(websocket, exc.info)
        return
    if handle is None:
        return
    over = False
    try:
        over = await _converse(websocket, handle, engine.metrics, fresh=not resuming)
    finally:
        if over:
            handle.close(CloseReason.DISCONNECTED)
        else:
            handle.detach()


async def _opened(engine: DuplexOmni, asked: Query, principal: Principal) -> DuplexSessionHandle:
    """A session of the socket's own.

    Raises:
        DuplexError: there is none for it.
    """
    return await engine.open_session(asked.model, patch=principal.session, principal=principal)


async def _resumed(websocket: WebSocket, engine: DuplexOmni, asked: Query) -> DuplexSessionHandle | None:
    """The session that the socket asks for; ``None`` when the client has gone before it asked.

    Raises:
        SessionOver: it has ended.
        DuplexError: it cannot have it; whoever had it has it still.
    """
    if asked.model is not None:
        require_model(engine.served, asked.model, param="model")
    command = await _first_command(websocket)
    if command is None:
        return None
    return await engine.resume_session(command.session_id, command.resume_token, command.last_server_event_seq)


async def _first_command(websocket: WebSocket) -> SessionResume | None:
    """What a socket that opens no session of its own asks for; ``None`` when the client has gone.

    Raises:
        DuplexError: it asks for something else, or for nothing in time.
    """
    try:
        async with asyncio.timeout(FIRST_COMMAND_S):
            message = await websocket.receive()
    except TimeoutError:
        late = f"{_RESUME_FIRST}, within {FIRST_COMMAND_S:g} s"
        raise DuplexError(error(ErrorCode.INVALID_EVENT, late)) from None
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    if text is None:
        raise DuplexError(_BINARY)
    command = decode_command(text)
    if not isinstance(command, SessionResume):
        raise DuplexError(error(ErrorCode.INVALID_EVENT, _RESUME_FIRST, event_id=command.event_id))
    return command


async def _refuse(websocket: WebSocket, info: ErrorInfo) -> None:
    """Say why there is no session, and close."""
    told = ErrorEvent(error=info, event_id=f"event_{secrets.token_hex(8)}", server_event_seq=1)
    code = _CLOSE_FAILED if info.code is ErrorCode.INTERNAL_ERROR else _CLOSE_POLICY
    if info.retryable:
        code = _CLOSE_TRY_LATER
    await _end(websocket, told, code, info.code.value)


async def _end(websocket: WebSocket, last: Event, code: int, reason: str | None = None) -> None:
    """Say the one thing that this socket is told, and close."""
    with contextlib.suppress(WebSocketDisconnect):
        await websocket.send_text(encode_event(last, event_id=last.event_id, seq=last.server_event_seq))
        await websocket.close(code, reason)


async def _converse(websocket: WebSocket, handle: DuplexSessionHandle, metrics: EngineMetrics, *, fresh: bool) -> bool:
    """Move events and commands until the client is gone or has got its last event; whether nobody will come back.

    That is so when the client has hung up, and when it was gone before the token of its ``fresh`` session could be told to it:
    the slot is not to be held for anybody then.
    """
    told = asyncio.Event()
    reader = asyncio.create_task(_read(websocket, handle, metrics.received_bytes), name=f"{handle.session_id} reader")
    writer = asyncio.create_task(
        _write(websocket, handle, told, metrics.sent_bytes), name=f"{handle.session_id} writer"
    )
    ended = asyncio.create_task(handle.wait_ended(), name=f"{handle.session_id} end")
    tasks = (reader, writer, ended)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and not reader.done():
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED, timeout=LINGER_S)
        if writer.done():
            if await writer:
                with contextlib.suppress(WebSocketDisconnect):
                    await websocket.close(_CLOSE_NORMAL, None if handle.attached else "session_replaced")
            else:  # the client is gone; how it went is the last thing that can be read
                await asyncio.wait((reader,), timeout=LINGER_S)
        return (fresh and not told.is_set()) or (reader.done() and await reader)
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("the socket of %s failed", handle.session_id, exc_info=outcome)
                handle.close(
                    CloseReason.ERROR, error(ErrorCode.INTERNAL_ERROR, "the server failed to serve this socket")
                )


async def _read(websocket: WebSocket, handle: DuplexSessionHandle, received: Tally) -> bool:
    """Take what the client sends until it is gone; whether it has hung up, rather than been lost.

    ``received`` counts what came in. Where the connection has a short way, only what cannot be taken at once comes here.
    """

    def take(text: str | bytes) -> None:
        received.total += len(text)
        try:
            handle.offer(decode_command(text))
        except DuplexError as exc:
            handle.reject(exc.info)

    def take_at_once(text: str | bytes) -> bool:
        if handle.crowded:
            return False
        take(text)
        return True

    way = direct(websocket.scope)
    if way is not None:
        way.listen(take_at_once)
    try:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return _is_hang_up(message)
            text: str | None = message.get("text")
            if text is None:
                handle.reject(_BINARY)
            else:
                take(text)
            if handle.crowded:
                await asyncio.sleep(0)
    finally:
        if way is not None:
            way.listen(None)


def _is_hang_up(message: Message) -> bool:
    """Whether the socket's end is the client's wish to end the session: code 1000, or a close without any code.

    The latter is told as 1005, as is a connection that broke; only the one that a client closed comes with a reason, if an empty
    one.
    """
    code = message.get("code")
    return code == _CLOSE_NORMAL or (code == _CLOSED_WITHOUT_CODE and message.get("reason") is not None)


async def _write(websocket: WebSocket, handle: DuplexSessionHandle, told: asyncio.Event, sent: Tally) -> bool:
    """Send what the session tells; whether the client has got all of it, ``session.closed`` or ``session.replaced`` last.

    ``told`` is set when the first event is out; ``sent`` counts what went out.
    """
    way = direct(websocket.scope)

    def send_at_once(event: Event) -> bool:
        try:
            text = encode_event_utf8(event, event_id=event.event_id, seq=event.server_event_seq)
        except (ValueError, TypeError):  # such an event ends this socket, and not the session in the middle of its work
            return False
        if way is None or not way.send_text(text):
            return False
        sent.total += len(text)
        told.set()
        return True

    try:
        async for event in handle.events(None if way is None else send_at_once):
            text = encode_event(event, event_id=event.event_id, seq=event.server_event_seq)
            await websocket.send_text(text)
            sent.total += len(text)
            told.set()
    except WebSocketDisconnect:
        return False
    return True
