"""Which web pages may use the server: those of this machine, and those that the operator lists.

Owns the check of the ``Origin`` header, by which browsers say whose page is asking, and the headers with which a browser is told
that it may read the answer. Wrapped around the application. What is no browser sends no ``Origin`` and is not concerned.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from duplex_core.errors import ErrorCode, error
from duplex_server.serving.errors import response_to

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Origins(CORSMiddleware):
    """Refuses pages that are neither of this machine nor listed, and tells browsers about the others."""

    def __init__(self, app: ASGIApp, listed: Sequence[str] = ()) -> None:
        """Let pages of ``listed`` origins in (``https://talk.example.com``); ``*`` is any."""
        super().__init__(app, allow_methods=("*",), allow_headers=("*",), allow_origins=())
        self._listed = {_normal(each) for each in listed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request or a handshake on, unless a page asks that may not."""
        if scope["type"] in {"http", "websocket"} and scope["path"].startswith("/v1/"):
            origin = HTTPConnection(scope).headers.get("origin")
            if origin is not None and not self.is_allowed_origin(origin):
                await self._refuse(origin, scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    def is_allowed_origin(self, origin: str) -> bool:
        """Whether a page of this origin may in."""
        if "*" in self._listed or _normal(origin) in self._listed:
            return True
        try:
            host = urlsplit(origin).hostname
        except ValueError:
            return False
        return host is not None and (is_loopback(host) or host.endswith(".localhost"))

    @staticmethod
    async def _refuse(origin: str, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"pages of {origin} may not use this server; its operator can allow them with --allow-origin {origin}"
        denied = response_to(error(ErrorCode.ORIGIN_NOT_ALLOWED, message))
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(denied)
        else:
            await denied(scope, receive, send)


def _normal(origin: str) -> str:
    return origin.strip().rstrip("/").lower()
