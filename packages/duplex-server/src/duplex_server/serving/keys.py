"""Who may use the server: the configured key, client secrets, an authenticator of a plugin's, or everybody.

Owns the places where a key may stand, the order in which they are asked, and what each may open. Asked for every route under
``/v1`` and every socket. Must never log a key, or compare one in a time that depends on how much of it is right.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable

from starlette.requests import HTTPConnection

from duplex_core.authentication import Authenticator, Credentials, Principal
from duplex_core.errors import DuplexError, ErrorCode, error
from duplex_server.serving.client_secrets import PREFIX, ClientSecrets

_KEY_PROTOCOL = "openai-insecure-api-key."
PROTOCOL = "realtime"
"""The subprotocol that is spoken, and that browsers offer beside the one that carries their key."""
AUTHENTICATOR_TIMEOUT_S = 10.0
"""How long an authenticator may take to know a client."""

OWNER = Principal(id="api-key")
"""Whoever shows the configured key."""
ANYBODY = Principal(id="anybody")
"""Everybody, where no key is configured and no authenticator is used."""


class Keys:
    """What clients must show, and what they may do then."""

    def __init__(
        self,
        key: str | None,
        *,
        authenticator: Authenticator | None = None,
        client_secrets: ClientSecrets | None = None,
    ) -> None:
        """Ask for ``key`` or let ``authenticator`` decide; without both everybody may in."""
        self._key = key.encode() if key is not None else None
        self._authenticator = authenticator
        self.client_secrets = client_secrets or ClientSecrets()

    async def admit(self, connection: HTTPConnection, *, realtime: bool = False, resuming: bool = False) -> Principal:
        """Who the client is.

        Args:
            connection: its request or its socket's handshake.
            realtime: whether it wants to open a realtime session, which is all that a client secret is good for.
            resuming: whether it wants to take up a session that it has the token of, for which an expired client secret will do.

        Raises:
            DuplexError: it may not.
        """
        shown = shown_keys(connection.headers.get("authorization"), connection.scope.get("subprotocols") or ())
        principal = await self._recognise(connection, shown, resuming)
        if principal.realtime_only and not realtime:
            raise _denied("this key opens realtime sessions only; ask with the server's own key")
        return principal

    async def _recognise(self, connection: HTTPConnection, shown: list[str], resuming: bool) -> Principal:
        if self._key is not None and any(_same(each, self._key) for each in shown):
            return OWNER
        for each in shown:
            if each.startswith(PREFIX):
                grant = self.client_secrets.find(each, expired=resuming)
                if grant is not None:
                    return Principal(id="client-secret", realtime_only=True, session=grant.session)
        if self._authenticator is not None:
            return await self._ask(self._authenticator, connection, shown)
        if any(each.startswith(PREFIX) for each in shown):
            raise _denied("this client secret is unknown or has expired; ask your backend for a new one")
        if self._key is None:
            return ANYBODY
        raise _denied("this server needs a key: send 'Authorization: Bearer KEY'")

    async def _ask(self, authenticator: Authenticator, connection: HTTPConnection, shown: list[str]) -> Principal:
        credentials = Credentials(
            key=shown[0] if shown else None,
            headers=dict(reversed(connection.headers.items())),
            client_host=connection.client.host if connection.client is not None else None,
            path=connection.url.path,
        )
        async with asyncio.timeout(AUTHENTICATOR_TIMEOUT_S):
            principal = await authenticator.authenticate(credentials)
        if principal is None:
            raise _denied("this server does not know you: send a valid key as 'Authorization: Bearer KEY'")
        return principal


def shown_keys(authorization: str | None, subprotocols: Iterable[str] = ()) -> list[str]:
    """The keys that a client shows.

    Args:
        authorization: its ``Authorization`` header, as HTTP servers hand it over: each byte a character.
        subprotocols: the WebSocket subprotocols that it offers; browsers can send a key in no other way.
    """
    scheme, _, token = (authorization or "").partition(" ")
    shown = [token.strip()] if scheme.lower() == "bearer" and token.strip() else []
    return shown + [name.removeprefix(_KEY_PROTOCOL) for name in subprotocols if name.startswith(_KEY_PROTOCOL)]


def _same(shown: str, key: bytes) -> bool:
    return secrets.compare_digest(shown.encode("latin-1", "replace"), key)


def _denied(message: str) -> DuplexError:
    return DuplexError(error(ErrorCode.UNAUTHORIZED, message))
