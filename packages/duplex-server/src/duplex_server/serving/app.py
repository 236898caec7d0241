"""The application: every route of the server.

Owns the addresses and who may use them. Made by the command line and by tests around a running engine. Routes are thin: what
they do is in :mod:`duplex_server.serving.realtime`, :mod:`duplex_server.serving.chat` and the engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Depends, FastAPI, Request, Response, WebSocket
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from duplex_core.audio import PCM_RATES_HZ, TELEPHONE_RATE_HZ, AudioEncoding
from duplex_core.authentication import Authenticator
from duplex_core.errors import DuplexError, ErrorCode, error
from duplex_server import __version__
from duplex_server.engine.omni import DuplexOmni
from duplex_server.serving import addresses, bodies, chat, client_secrets, description, realtime
from duplex_server.serving.errors import complaint, require_model, response_to
from duplex_server.serving.keys import Keys
from duplex_server.serving.origins import Origins

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class AnyName(PathConvertor):
    """The rest of an address, whatever it holds: Starlette's own leaves out what has a line break in it."""

    regex = "(?s:.*)"


register_url_convertor("any", AnyName())

READ = ["GET", "HEAD"]
"""How what is only looked at may be asked; those who watch a server often ask with HEAD."""


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
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(Origins, listed=allow_origins)

    async def authorised(request: Request) -> None:
        await keys.admit(request)

    guarded = [Depends(authorised)]
    chats = chat.Completions(engine)
    _add_operations(app, engine)
    _add_models(app, engine, guarded)

    @app.post("/v1/chat/completions", dependencies=guarded)
    async def completions(request: Request) -> Response:
        """Ordinary chat, streamed too, on the same engine and weights."""
        return await chats.answer(await chat.read(request))

    @app.post("/v1/realtime/client_secrets", dependencies=guarded)
    async def secret(request: Request) -> JSONResponse:
        """A short-lived key for a browser, in OpenAI's shapes."""
        body = await bodies.read(request, client_secrets.MAX_BODY_BYTES)
        return JSONResponse(client_secrets.answer(keys.client_secrets, engine.served, body))

    async def socket(websocket: WebSocket) -> None:
        """A conversation, in the events of OpenAI's Realtime API."""
        await realtime.attend(websocket, engine, keys)

    for address in (addresses.SOCKET, "/v1/duplex"):
        app.add_api_websocket_route(address, socket)
    _add_elsewhere(app, keys)
    return app


def _add_elsewhere(app: FastAPI, keys: Keys) -> None:
    """What is said wherever no route is; under ``/v1`` only to those who may ask there."""

    async def misdirected(request: Request, exc: Exception) -> Response:
        """Starlette found the address, and not the method."""
        assert isinstance(exc, HTTPException)
        if exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            return addresses.answer(app.routes, request.scope)
        return complaint(exc.status_code, "invalid_request", exc.detail, headers=exc.headers)

    async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
        answer = addresses.answer(app.routes, scope)
        if scope["path"].startswith("/v1/"):
            try:
                await keys.admit(HTTPConnection(scope))
            except DuplexError as exc:
                answer = response_to(exc.info)
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(answer)
        else:
            await answer(scope, receive, send)

    app.add_exception_handler(HTTPException, misdirected)
    app.router.default = elsewhere


def _add_operations(app: FastAPI, engine: DuplexOmni) -> None:
    """What operators ask, without a key."""

    @app.api_route("/", methods=READ)
    async def index() -> JSONResponse:
        """What this server is, and what it has."""
        return JSONResponse(addresses.index(app.routes, version=__version__, model=engine.served.name))

    @app.api_route("/openapi.json", methods=READ)
    async def described() -> JSONResponse:
        """What the HTTP routes take and answer, as OpenAPI 3.1."""
        return JSONResponse(description.document(app.routes, version=__version__))

    @app.api_route("/health", methods=READ)
    async def health() -> JSONResponse:
        """200 when requests are taken; 503 when the process is alive and takes none."""
        ready = engine.ready
        body = {
            "alive": True,
            "ready": ready,
            "draining": engine.sessions.draining,
            "stages_down": list(engine.stages_down),
            "model": engine.served.name,
            "sessions": engine.sessions.taken,
            "detached": engine.sessions.detached,
            "max_sessions": engine.sessions.max_sessions,
        }
        return JSONResponse(body, status_code=200 if ready else 503)

    @app.api_route("/metrics", methods=READ)
    async def metrics() -> Response:
        """What happened so far, for Prometheus."""
        return Response(generate_latest(engine.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_models(app: FastAPI, engine: DuplexOmni, guarded: list[Any]) -> None:
    """What is served, and what it can do."""
    served = engine.served
    began = int(time.time())

    def card(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": began, "owned_by": "duplex-server"}

    @app.api_route("/v1/models", methods=READ, dependencies=guarded)
    async def models() -> JSONResponse:
        """The names of the served model."""
        return JSONResponse({"object": "list", "data": [card(name) for name in served.names]})

    @app.api_route("/v1/models/{name:any}", methods=READ, dependencies=guarded)
    async def model(name: str) -> JSONResponse:
        """One of these names."""
        require_model(served, name, param="model")
        return JSONResponse(card(name))

    @app.api_route("/v1/realtime/capabilities", methods=READ, dependencies=guarded)
    async def capabilities() -> JSONResponse:
        """What the served model can do."""
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


async def _told(_request: Request, exc: Exception) -> Response:
    assert isinstance(exc, DuplexError)
    return response_to(exc.info)


async def _failed(_request: Request, _exc: Exception) -> Response:
    """Anything else; the traceback is in the log."""
    return response_to(error(ErrorCode.INTERNAL_ERROR, "the server failed to answer; its log says why"))
