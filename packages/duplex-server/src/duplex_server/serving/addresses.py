"""What is said at an address that is known and was asked in the wrong way, at one that is not known, and at ``/``.

Owns these answers: status, sentence, and the headers that go with the status. Used by :mod:`duplex_server.serving.app` for
whatever no route took; it looks at the application's own routes, so that none needs to be named twice. Serves nothing itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute

from duplex_server.serving.errors import complaint

if TYPE_CHECKING:
    from starlette.types import Scope

SOCKET = "/v1/realtime"
"""Where conversations are held."""


def answer(routes: Sequence[BaseRoute], scope: Scope) -> JSONResponse:
    """What to say to a request, or to a WebSocket's handshake, that none of ``routes`` takes."""
    path: str = scope["path"]
    methods, sockets = _methods(routes, path), any(_leads(route, path) for route in _sockets(routes))
    if scope["type"] == "websocket":
        return _no_socket(path, methods)
    if sockets and not methods:
        return _only_socket(path)
    if methods:
        return _wrong_method(scope["method"], path, methods)
    if path.startswith("/v1/"):
        message = f"{path} is not available on a duplex server; GET / lists what is"
        return complaint(HTTPStatus.NOT_IMPLEMENTED, "not_implemented", message)
    return complaint(HTTPStatus.NOT_FOUND, "not_found", f"there is no {path} here; GET / lists what there is")


def index(routes: Sequence[BaseRoute], *, version: str, model: str) -> dict[str, Any]:
    """What the server is and where its routes are, for people who open its address in a browser."""
    return {
        "name": "duplex-server",
        "version": version,
        "model": model,
        "about": f"Conversations with a speech model: connect a Realtime API client to the WebSocket {SOCKET}.",
        "routes": {each: about for route in routes for each, about in _described(route)},
        "documentation": "the folder docs/ of the project: getting-started.md, wire-protocol.md, operating.md",
    }


def _methods(routes: Sequence[BaseRoute], path: str) -> list[str]:
    """The methods with which ``path`` may be asked, over all routes that lead there."""
    found = [route.methods or () for route in routes if isinstance(route, Route) and _leads(route, path)]
    return sorted(set().union(*found))


def _sockets(routes: Sequence[BaseRoute]) -> list[WebSocketRoute]:
    return [route for route in routes if isinstance(route, WebSocketRoute)]


def _leads(route: Route | WebSocketRoute, path: str) -> bool:
    return route.path_regex.match(path) is not None


def _described(route: BaseRoute) -> Iterator[tuple[str, str]]:
    """``route`` as the index shows it: how it is asked, and the first sentence of what it does."""
    if not isinstance(route, Route | WebSocketRoute):
        return
    about = (inspect.getdoc(route.endpoint) or "").partition("\n")[0]
    if isinstance(route, WebSocketRoute):
        yield f"WebSocket {route.path}", about
        return
    for method in sorted((route.methods or set()) - {"HEAD"}):
        yield f"{method} {route.path_format}", about


def _only_socket(path: str) -> JSONResponse:
    message = (
        f"{path} is a WebSocket: connect to it with a Realtime API client (ws://… or wss://…). If you did, something on the way, "
        "such as a proxy, has taken the headers Upgrade and Connection out of the request"
    )
    headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
    return complaint(HTTPStatus.UPGRADE_REQUIRED, "upgrade_required", message, headers=headers)


def _wrong_method(method: str, path: str, methods: list[str]) -> JSONResponse:
    message = f"{method} is no way to ask {path}; use {' or '.join(each for each in methods if each != 'HEAD')}"
    headers = {"Allow": ", ".join(methods)}
    return complaint(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", message, headers=headers)


def _no_socket(path: str, methods: list[str]) -> JSONResponse:
    if not methods:
        message = f"there is no WebSocket at {path}; conversations are held at {SOCKET}"
        return complaint(HTTPStatus.NOT_FOUND, "not_found", message)
    ways = " or ".join(each for each in methods if each != "HEAD")
    message = f"{path} is no WebSocket: ask it with {ways}; conversations are held at {SOCKET}"
    return complaint(HTTPStatus.BAD_REQUEST, "not_a_websocket", message)
