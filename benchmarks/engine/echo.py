"""The measure: a WebSocket that does nothing with what it gets, on the server's own stack.

Owns the least that a server of such conversations must do: take the same text frames and send as many back, as large as the
engine's. No JSON is read, no base64, no sample touched. Asked to, it speaks by its own clock, as whoever has something to say
must, and does not wait to be spoken to. Run by :mod:`benchmarks.engine.server`.
"""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, WebSocket, WebSocketDisconnect

from benchmarks.engine.sound import PIECE_MS

LONG = 1000
"""Characters from which on a frame is one that carries audio."""


def create_app() -> FastAPI:
    """The application. The path is the engine's.

    ``audio`` and ``other`` are the sizes of the answers, in characters. With ``paced`` no frame of audio is answered: one goes out
    every 100 ms from the first that came on.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.websocket("/v1/realtime")
    async def echo(websocket: WebSocket, audio: int, other: int, paced: bool = False) -> None:
        await websocket.accept()
        long, short = "a" * audio, "b" * other
        speaking: asyncio.Task[None] | None = None
        try:
            while True:
                text = await websocket.receive_text()
                if len(text) <= LONG:
                    await websocket.send_text(short)
                elif not paced:
                    await websocket.send_text(long)
                elif speaking is None:
                    speaking = asyncio.create_task(speak(websocket, long))
        except WebSocketDisconnect:
            return
        finally:
            if speaking is not None:
                speaking.cancel()

    return app


async def speak(websocket: WebSocket, text: str) -> None:
    """Send ``text`` every 100 ms until this is cancelled."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        await websocket.send_text(text)
        due += PIECE_MS / 1000
        await asyncio.sleep(due - loop.time())
