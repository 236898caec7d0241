"""Errors as HTTP answers, in OpenAI's shape.

Owns the status codes and the body. Used by every route and by the socket's refusals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

from duplex_core.errors import ErrorCode, ErrorInfo, ErrorType, refuse
from duplex_server.engine.served import ServedModel

_STATUS = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.ORIGIN_NOT_ALLOWED: 403,
    ErrorCode.MODEL_NOT_FOUND: 404,
    ErrorCode.SESSION_NOT_FOUND: 404,
    ErrorCode.EVENT_TOO_LARGE: 413,
    ErrorCode.RESOURCE_EXHAUSTED: 429,
    ErrorCode.INTERNAL_ERROR: 500,
    ErrorCode.SHUTDOWN: 503,
    ErrorCode.ENGINE_ERROR: 503,
}


def status_of(info: ErrorInfo) -> int:
    """The HTTP status for an error; what is not listed is the client's fault: 400."""
    return _STATUS.get(info.code, 400)


def body_of(info: ErrorInfo) -> dict[str, Any]:
    """The JSON body for an error."""
    return {
        "error": {
            "message": info.message,
            "type": info.type.value,
            "param": info.param,
            "code": info.code.value,
        }
    }


def response_to(info: ErrorInfo) -> JSONResponse:
    """The whole answer for an error; a retryable one says when to try again."""
    headers = {"Retry-After": "1"} if info.retryable else None
    return JSONResponse(body_of(info), status_code=status_of(info), headers=headers)


def complaint(status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An answer about the request itself, for which the protocol of the conversation has no code."""
    told = {"message": message, "type": ErrorType.INVALID_REQUEST.value, "param": None, "code": code}
    return JSONResponse({"error": told}, status_code=status, headers=dict(headers or {}))


def require_model(served: ServedModel, name: str, *, param: str) -> None:
    """Refuse a client that asks, in ``param``, for another model.

    Raises:
        DuplexError: ``model_not_found``.
    """
    if not served.answers_to(name):
        message = f"there is no model {name!r} here; this server has: {', '.join(served.names)}"
        raise refuse(ErrorCode.MODEL_NOT_FOUND, message, param=param)
