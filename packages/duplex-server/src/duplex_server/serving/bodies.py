"""The bodies of requests: that they are JSON, that they are not too large, and what to say when they are not.

Owns these checks, the same for every route that takes a body. Used by :mod:`duplex_server.serving.app`. Must never hold more of a
body than its route allows.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request

from duplex_core.errors import DuplexError, ErrorCode, error

JSON_TYPE = "application/json"


def require_json(request: Request, shape: str) -> None:
    """Refuse a request whose body is not said to be JSON; ``shape`` says what the body is to be.

    Raises:
        DuplexError: its ``Content-Type`` is missing or another.
    """
    given = request.headers.get("content-type")
    if given is None:
        message = f"the request has no Content-Type; send {shape}, with the header 'Content-Type: {JSON_TYPE}'"
        raise DuplexError(error(ErrorCode.INVALID_VALUE, message))
    kind = given.partition(";")[0].strip().lower()
    if kind != JSON_TYPE and not (kind.startswith("application/") and kind.endswith("+json")):
        message = f"the body is said to be {given[:200]!r}; send {shape}, with the header 'Content-Type: {JSON_TYPE}'"
        raise DuplexError(error(ErrorCode.INVALID_VALUE, message))


async def read(request: Request, most: int) -> bytes:
    """The body, ``most`` bytes at the most.

    Raises:
        DuplexError: it is larger.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise DuplexError(error(ErrorCode.EVENT_TOO_LARGE, f"the body is larger than {_size(most)}"))
    return bytes(body)


def json_object(body: bytes, shape: str) -> dict[str, Any]:
    """The body as a JSON object; ``shape`` says what it is to be.

    Raises:
        DuplexError: it is empty, no JSON, or no object.
    """
    if not body.strip():
        raise DuplexError(error(ErrorCode.INVALID_VALUE, f"the body is empty; send {shape}"))
    try:
        read: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        why = "it is nested too deeply" if isinstance(exc, RecursionError) else exc
        raise DuplexError(error(ErrorCode.INVALID_JSON, f"the body is not valid JSON ({why}); send {shape}")) from None
    if not isinstance(read, dict):
        message = f"the body is JSON, but {_KINDS.get(type(read), 'a number')} and no object; send {shape}"
        raise DuplexError(error(ErrorCode.INVALID_VALUE, message))
    return read


_KINDS: dict[type, str] = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}


def _size(most: int) -> str:
    return f"{most // (1024 * 1024)} MiB" if most % (1024 * 1024) == 0 else f"{most // 1024} KiB"
