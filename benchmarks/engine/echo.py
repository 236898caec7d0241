"""The measure: a WebSocket that does nothing with what it gets, on the server's own stack.

Owns the least that a server of such conversations must do: take the same text frames and send as many back, as large as the
engine's. No JSON is read, no base64, no sample touched. Run by :mod:`benchmarks.engine.server`.
"""

from __future__ import annotations

from fastapi import FastAPI, WebSocket, WebSocketDisconnect

LONG = 1000
"""Characters from which on a frame is one that carries audio."""


def create_app() -> FastAPI:
    """The application. The path is the engine's; ``audio`` and ``other`` are the sizes of the answers, in characters."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.websocket("/v1/realtime")
    async def echo(websocket: WebSocket, audio: int, other: int) -> None:
        await websocket.accept()
        long, short = "a" * audio, "b" * other
        try:
            while True:
                text = await websocket.receive_text()
                await websocket.send_text(long if len(text) > LONG else short)
        except WebSocketDisconnect:
            return

    return app
