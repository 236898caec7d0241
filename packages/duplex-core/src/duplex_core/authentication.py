"""Who may use a server: the contract between the server, which asks, and a plugin, which knows.

Owns what is asked (:class:`Credentials`), what is answered (:class:`Principal`) and by whom. Asked once for each socket and each
HTTP request, before anything of it is read, and never for a frame. Credentials are never logged by the server, and an
authenticator must not log them either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

from duplex_core.patch import SessionPatch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a client shows.

    Attributes:
        key: the token after ``Bearer`` in its ``Authorization`` header, else the one in the subprotocols that OpenAI's browser
            clients send; ``None`` when there is neither.
        headers: its HTTP headers, names in lower case; of several with one name, the first.
        client_host: the address that it connects from, which may be a proxy's; ``None`` when it is not known.
        path: the path that it asks for, such as ``/v1/realtime``.
    """

    key: str | None = dataclasses.field(repr=False)
    headers: Mapping[str, str] = dataclasses.field(repr=False)
    client_host: str | None
    path: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a client is, once it is known.

    Attributes:
        id: names it in logs and to session observers; never a secret.
        realtime_only: whether it may open realtime sessions and nothing else: no chat, no keys for others, no lists.
        session: changes of the configuration with which each of its sessions begins; the client can change it again.
    """

    id: str
    realtime_only: bool = False
    session: SessionPatch | None = None


class Authenticator(Protocol):
    """Knows clients by what they show. Called on the server's event loop, for many clients at a time."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Who this is; ``None`` refuses the client.

        It must not block the loop: what does belongs into ``asyncio.to_thread``. What it raises refuses the client with status
        500 and is logged; no answer within ten seconds is taken for a failure too.
        """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticatorSpec:
    """An authenticator that a package offers. ``create`` is called once, off the event loop, by a server that is to use it."""

    id: str
    summary: str
    create: Callable[[], Authenticator]
