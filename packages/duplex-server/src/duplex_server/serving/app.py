"""The application: every route of the server.

Owns the addresses and who may use them. Made by the command line and by tests around a running engine. Routes are thin: what
they do is in :mod:`duplex_server.serving.realtime`, :mod:`duplex_server.serving.chat` and the engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import Depends, FastAPI, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from duplex_core.audio import PCM_RATES_HZ, TELEPHONE_RATE_HZ, AudioEncoding
from duplex_core.authentication import Authenticator
from duplex_core.errors import DuplexError, ErrorCode, error
from duplex_server.engine.omni import DuplexOmni
from duplex_server.serving import chat, client_secrets, realtime
from duplex_server.serving.errors import response_to
from duplex_server.serving.keys import Keys
from duplex_server.serving.origins import Origins

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]


def create_app(
    engine: DuplexOmni,
    *,
    api_key: str | None = None,
    authenticator: Authenticator | None = None,
    allow_origins: Sequence[str] = (),
) -> FastAPI:
    """The application around a running engine.

    Args:
        engine: running; the application neither starts nor stops it.
        api_key: the key that every route under ``/v1`` asks for.
        authenticator: knows the clients that show another key. Without it and ``api_key`` everybody may in.
        allow_origins: origins whose web pages may use the server, beside those of this machine.
    """
    keys = Keys(api_key, authenticator=authenticator)
    app = FastAPI(title="duplex-server", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(DuplexError, _told)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(Origins, listed=allow_origins)

    async def authorised(request: Request) -> None:
        await keys.admit(request)

    guarded = [Depends(authorised)]
    _add_operations(app, engine)
    _add_models(app, engine, guarded)

    @app.post("/v1/chat/completions", dependencies=guarded)
    async def completions(body: chat.ChatCompletionRequest) -> Response:
        return chat.answer(engine, body)

    @app.post("/v1/realtime/client_secrets", dependencies=guarded)
    async def secret(request: Request) -> JSONResponse:
        return JSONResponse(client_secrets.answer(keys.client_secrets, engine.served, await request.body()))

    async def socket(websocket: WebSocket) -> None:
        await realtime.attend(websocket, engine, keys)

    for address in ("/v1/realtime", "/v1/duplex"):
        app.add_api_websocket_route(address, socket)

    @app.api_route("/v1/{rest:path}", methods=METHODS, dependencies=guarded)
    async def elsewhere(rest: str) -> JSONResponse:
        return _not_here(f"/v1/{rest}")

    @app.websocket("/v1/{rest:path}")
    async def socket_elsewhere(websocket: WebSocket, rest: str) -> None:
        await websocket.send_denial_response(_not_here(f"/v1/{rest}"))

    return app


def _add_operations(app: FastAPI, engine: DuplexOmni) -> None:
    """What operators ask, without a key."""

    @app.get("/health")
    async def health() -> JSONResponse:
        """200 when requests are taken; 503 when the process is alive and takes none."""
        ready = engine.ready
        body = {
            "alive": True,
            "ready": ready,
            "draining": engine.sessions.draining,
            "model": engine.served.name,
            "sessions": engine.sessions.taken,
            "detached": engine.sessions.detached,
            "max_sessions": engine.sessions.max_sessions,
        }
        return JSONResponse(body, status_code=200 if ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(engine.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_models(app: FastAPI, engine: DuplexOmni, guarded: list[Any]) -> None:
    """What is served, and what it can do."""
    served = engine.served
    began = int(time.time())

    def card(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": began, "owned_by": "duplex-server"}

    @app.get("/v1/models", dependencies=guarded)
    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [card(name) for name in served.names]})

    @app.get("/v1/models/{name:path}", dependencies=guarded)
    async def model(name: str) -> JSONResponse:
        if not served.answers_to(name):
            message = f"there is no model {name!r} here; this server has: {', '.join(served.names)}"
            raise DuplexError(error(ErrorCode.MODEL_NOT_FOUND, message, param="model"))
        return JSONResponse(card(name))

    @app.get("/v1/realtime/capabilities", dependencies=guarded)
    async def capabilities() -> JSONResponse:
        telephone = (AudioEncoding.PCMU, AudioEncoding.PCMA)
        return JSONResponse(
            {
                "object": "realtime.capabilities",
                "model": served.name,
                "capabilities": msgspec.to_builtins(served.capabilities),
                "audio_formats": [
                    {
                        "type": encoding.value,
                        "rates": [TELEPHONE_RATE_HZ] if encoding in telephone else list(PCM_RATES_HZ),
                    }
                    for encoding in AudioEncoding
                ],
                "max_sessions": engine.sessions.max_sessions,
            }
        )


def _not_here(path: str) -> JSONResponse:
    body = {
        "error": {
            "message": f"{path} is not available on a duplex server",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_implemented",
        }
    }
    return JSONResponse(body, status_code=501)


async def _told(_request: Request, exc: Exception) -> Response:
    assert isinstance(exc, DuplexError)
    return response_to(exc.info)


async def _invalid(_request: Request, exc: Exception) -> Response:
    """A body that is not what its route takes: the first thing that is wrong with it, by name."""
    assert isinstance(exc, RequestValidationError)
    return response_to(chat.explain(exc.errors()))


async def _failed(_request: Request, _exc: Exception) -> Response:
    """Anything else; the traceback is in the log."""
    return response_to(error(ErrorCode.INTERNAL_ERROR, "the server failed to answer; its log says why"))
