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

from fastapi import WebSocket, WebSocketDisconnect

from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error
from duplex_core.events import CloseReason, ErrorEvent
from duplex_core.wire import decode_command, encode_event
from duplex_server.engine.omni import DuplexOmni, DuplexSessionHandle
from duplex_server.serving.errors import response_to
from duplex_server.serving.keys import PROTOCOL, Keys

log = logging.getLogger(__name__)

LINGER_S = 5.0
"""How long a client that reads slowly is given to take its last events, once its session is over."""

_FALSE = frozenset({"0", "false", "no", "off"})
_CLOSE_NORMAL = 1000
_CLOSE_POLICY = 1008
_CLOSE_FAILED = 1011
_CLOSE_TRY_LATER = 1013


async def attend(websocket: WebSocket, engine: DuplexOmni, keys: Keys) -> None:
    """Serve one WebSocket from its handshake to its end."""
    offered: list[str] = websocket.scope.get("subprotocols", [])
    if not keys.admit(websocket.headers.get("authorization"), offered):
        denied = error(ErrorCode.UNAUTHORIZED, "this server needs a key: send 'Authorization: Bearer KEY'")
        await websocket.send_denial_response(response_to(denied))
        return
    await websocket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
    handle = await _opened(websocket, engine)
    if handle is None:
        return
    try:
        await _converse(websocket, handle)
    finally:
        handle.close(CloseReason.DISCONNECTED)


async def _opened(websocket: WebSocket, engine: DuplexOmni) -> DuplexSessionHandle | None:
    """The socket's session; ``None`` when it is refused, which the client has been told then."""
    query = websocket.query_params
    try:
        if query.get("duplex", "1").lower() in _FALSE:
            message = (
                "only duplex sessions are served here, no turn-based realtime handler is mounted; leave duplex out"
            )
            raise DuplexError(error(ErrorCode.UNSUPPORTED_PARAMETER, message, param="duplex"))
        if query.get("autostart", "1").lower() in _FALSE:
            message = "sessions cannot be resumed on this server; leave autostart out to open a new one"
            raise DuplexError(error(ErrorCode.UNSUPPORTED_PARAMETER, message, param="autostart"))
        return await engine.open_session(query.get("model"))
    except DuplexError as exc:
        await _refuse(websocket, exc.info)
        return None


async def _refuse(websocket: WebSocket, info: ErrorInfo) -> None:
    """Say why there is no session, and close."""
    told = encode_event(ErrorEvent(error=info), event_id=f"event_{secrets.token_hex(8)}", seq=1)
    code = _CLOSE_FAILED if info.code is ErrorCode.INTERNAL_ERROR else _CLOSE_POLICY
    if info.retryable:
        code = _CLOSE_TRY_LATER
    with contextlib.suppress(WebSocketDisconnect):
        await websocket.send_text(told)
        await websocket.close(code, info.code.value)


async def _converse(websocket: WebSocket, handle: DuplexSessionHandle) -> None:
    """Move events and commands until the client is gone or has got ``session.closed``."""
    reader = asyncio.create_task(_read(websocket, handle), name=f"{handle.session_id} reader")
    writer = asyncio.create_task(_write(websocket, handle), name=f"{handle.session_id} writer")
    ended = asyncio.create_task(handle.wait_ended(), name=f"{handle.session_id} end")
    try:
        await asyncio.wait((reader, writer, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and not reader.done():
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED, timeout=LINGER_S)
        if writer.done() and await writer:
            with contextlib.suppress(WebSocketDisconnect):
                await websocket.close(_CLOSE_NORMAL)
    finally:
        tasks = (reader, writer, ended)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("the socket of %s failed", handle.session_id, exc_info=outcome)


async def _read(websocket: WebSocket, handle: DuplexSessionHandle) -> None:
    """Take what the client sends until it is gone."""
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text: str | None = message.get("text")
        if text is None:
            info = error(ErrorCode.BINARY_FRAME, "a binary frame; every event is one text frame of JSON")
            handle.reject(info)
            continue
        try:
            handle.offer(decode_command(text))
        except DuplexError as exc:
            handle.reject(exc.info)
        if handle.crowded:
            await asyncio.sleep(0)


async def _write(websocket: WebSocket, handle: DuplexSessionHandle) -> bool:
    """Send what the session tells; whether the client has got all of it, ``session.closed`` last."""
    try:
        async for event in handle.events():
            await websocket.send_text(encode_event(event, event_id=event.event_id, seq=event.server_event_seq))
    except WebSocketDisconnect:
        return False
    return True
