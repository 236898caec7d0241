"""``POST /v1/realtime/client_secrets``: short-lived keys, with which a browser opens realtime sessions and nothing else.

Owns the secrets that were given out (their hashes, never themselves), their bounds and their end, and the shapes of OpenAI's
request and answer. Mounted by :mod:`duplex_server.serving.app`; asked by :mod:`duplex_server.serving.keys`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from duplex_core.commands import SessionUpdate
from duplex_core.config import SessionConfig
from duplex_core.errors import DuplexError, ErrorCode, refuse
from duplex_core.events import session_view
from duplex_core.patch import SessionPatch
from duplex_core.wire import decode_command
from duplex_server.engine.served import ServedModel
from duplex_server.serving.errors import require_model

PREFIX = "ek_"
"""How a client secret begins, here as at OpenAI's."""
DEFAULT_SECONDS = 600
MAX_SECRETS = 10_000
"""Most secrets that are remembered."""
MAX_BODY_BYTES = 1024 * 1024
"""Largest request; who reads it sees to that."""
MAX_TOTAL_BYTES = 64 * 1024 * 1024
"""Most bytes of session configurations that are remembered with them."""
RESUME_S = 24 * 3600.0
"""How long after its end a secret still lets its client take up a session, for which it needs that session's token too."""

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<field>.*)`", re.DOTALL)


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a secret ends: so many seconds after it was made."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, msgspec.Meta(ge=10, le=7200)] = DEFAULT_SECONDS


class ClientSecretRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the request; ``session`` is read as ``session.update`` would read it."""

    expires_after: ExpiresAfter | None = None
    session: msgspec.Raw = msgspec.Raw(b"null")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a secret is good for, until ``expires_at`` in seconds since the epoch. ``size`` is what its request weighed."""

    expires_at: float
    session: SessionPatch | None
    size: int


class ClientSecrets:
    """The secrets that one server has given out and not forgotten."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        """Begin with none; ``now`` is the time in seconds since the epoch."""
        self.now = now
        self._grants: dict[bytes, Grant] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._grants)

    def create(self, session: SessionPatch | None, seconds: int, *, size: int = 0) -> tuple[str, int]:
        """A new secret, and when it ends, in seconds since the epoch.

        Raises:
            DuplexError: too many are in use.
        """
        if self._is_full(size):
            self._forget(self.now())
        if self._is_full(size):
            raise refuse(
                ErrorCode.RESOURCE_EXHAUSTED, "too many client secrets are in use; try again when some have expired"
            )
        value = PREFIX + secrets.token_urlsafe(32)
        expires_at = int(self.now()) + seconds
        self._grants[_hashed(value)] = Grant(expires_at=expires_at, session=session, size=size)
        self._bytes += size
        return value, expires_at

    def find(self, value: str, *, expired: bool = False) -> Grant | None:
        """What ``value`` is good for; ``None`` when it is none of these secrets or, unless ``expired`` will do, has ended."""
        grant = self._grants.get(_hashed(value))
        if grant is None or grant.expires_at + (RESUME_S if expired else 0.0) <= self.now():
            return None
        return grant

    def _is_full(self, size: int) -> bool:
        return len(self._grants) >= MAX_SECRETS or self._bytes + size > MAX_TOTAL_BYTES

    def _forget(self, now: float) -> None:
        """Forget those that have ended; their clients can no longer take sessions up when they come back."""
        self._grants = {key: grant for key, grant in self._grants.items() if grant.expires_at > now}
        self._bytes = sum(grant.size for grant in self._grants.values())


def answer(store: ClientSecrets, served: ServedModel, body: bytes) -> dict[str, Any]:
    """Make a secret as ``body`` asks for it.

    Raises:
        DuplexError: it asks for what cannot be, by name, or too many are in use.
    """
    request = _read(body)
    patch = _session_of(request.session)
    if patch is not None and isinstance(patch.model, str):
        require_model(served, patch.model, param="session.model")
    config = served.configured(patch)
    after = request.expires_after or ExpiresAfter()
    value, expires_at = store.create(patch, after.seconds, size=len(body))
    return {"value": value, "expires_at": expires_at, "session": _shown(config, served)}


def _read(body: bytes) -> ClientSecretRequest:
    try:
        return msgspec.json.decode(body or b"{}", type=ClientSecretRequest)
    except msgspec.ValidationError as exc:
        what, _, place = str(exc).partition(" - at `$")
        path = place.strip("`.")
        if (unknown := _UNKNOWN_FIELD.fullmatch(what)) is not None:
            param = ".".join(filter(None, (path, unknown["field"])))
            raise refuse(ErrorCode.UNKNOWN_PARAMETER, f"{param} is not a field of this request", param=param) from None
        raise refuse(ErrorCode.INVALID_VALUE, f"{path or 'the request'}: {what}", param=path or None) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise refuse(ErrorCode.INVALID_JSON, f"the body is not valid JSON: {exc}") from None


def _session_of(raw: msgspec.Raw) -> SessionPatch | None:
    """The session object, in any spelling that ``session.update`` takes."""
    if bytes(raw) == b"null":
        return None
    try:
        command = decode_command(b'{"type":"session.update","session":' + bytes(raw) + b"}")
    except DuplexError as exc:
        raise DuplexError(msgspec.structs.replace(exc.info, event_id=None)) from None
    assert isinstance(command, SessionUpdate)
    return command.session


def _shown(config: SessionConfig, served: ServedModel) -> dict[str, Any]:
    """The configuration of the sessions to come; the id is in the answer because OpenAI's clients expect one, and names none."""
    session_id = f"sess_{secrets.token_hex(12)}"
    view = session_view(session_id, config, served.capabilities, epoch=0, attachment_generation=0)
    shown: dict[str, Any] = msgspec.to_builtins(view)
    for about_a_running_session in ("epoch", "attachment_generation", "resume_token"):
        del shown[about_a_running_session]
    return shown


def _hashed(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()
