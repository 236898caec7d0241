"""What a socket asks for in the query of its address: which model, and whether a session of its own.

Owns the parameters that are known there, with their values. Used by :mod:`duplex_server.serving.realtime`. A parameter that means
nothing here is passed over, as other servers' clients send their own; one that is known must have a value that is served.
"""

from __future__ import annotations

import msgspec
from starlette.datastructures import QueryParams

from duplex_core.errors import ErrorCode, refuse

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})
_KNOWN = ("model", "duplex", "autostart", "intent", "call_id")

_NOT_DUPLEX = "only duplex sessions are served here, no turn-based realtime handler is mounted; leave duplex out"
_TRANSCRIPTION = (
    "there are no transcription-only sessions here; leave intent out and turn transcripts on with session.update "
    "(audio.input.transcription)"
)
_CALLS = "there are no calls that a socket could join; leave call_id out, and the socket has a session of its own"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. ``resumes`` says that the socket opens no session and will take one up."""

    model: str | None = None
    resumes: bool = False


def wants_to_resume(params: QueryParams) -> bool:
    """Whether this is a socket for :func:`read` to take for one that resumes; never refuses."""
    return params.get("autostart", "").lower() in _NO


def read(params: QueryParams) -> Query:
    """What the query asks for.

    Raises:
        DuplexError: a known parameter has a value that is not known or not served, or stands there twice, by name.
    """
    for name in _KNOWN:
        if len(set(params.getlist(name))) > 1:
            raise refuse(
                ErrorCode.INVALID_VALUE, f"{name} stands in the address twice, with different values", param=name
            )
    if not _flag(params, "duplex"):
        raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, _NOT_DUPLEX, param="duplex")
    intent = params.get("intent")
    if intent == "transcription":
        raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, _TRANSCRIPTION, param="intent")
    if intent is not None:
        message = f"intent={intent[:100]!r} is not known here; leave intent out: every session is a conversation"
        raise refuse(ErrorCode.INVALID_VALUE, message, param="intent")
    if "call_id" in params:
        raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, _CALLS, param="call_id")
    return Query(model=params.get("model"), resumes=not _flag(params, "autostart"))


def _flag(params: QueryParams, name: str) -> bool:
    """A parameter that says yes, as it does when it is left out, or no."""
    value = params.get(name, "1").lower()
    if value in _YES:
        return True
    if value in _NO:
        return False
    message = f"{name}={value[:100]!r} is neither yes (1, true, yes, on) nor no (0, false, no, off)"
    raise refuse(ErrorCode.INVALID_VALUE, message, param=name)
