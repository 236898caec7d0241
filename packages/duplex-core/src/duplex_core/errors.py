"""What can go wrong, named once for the machine, the wire, the server and the clients.

An :class:`ErrorInfo` is what a client is told; a :class:`DuplexError` is the exception that carries one. Codes are a
closed enumeration, so that a client can match on them and a test can walk them.
"""

from __future__ import annotations

import enum

import msgspec


class ErrorType(enum.Enum):
    """OpenAI's three classes of error."""

    INVALID_REQUEST = "invalid_request_error"
    SERVER = "server_error"
    RATE_LIMIT = "rate_limit_error"


class ErrorCode(enum.Enum):
    """Every code that an ``error`` event, a failed response or a refused connection can carry."""

    # The event itself
    INVALID_JSON = "invalid_json"
    INVALID_EVENT = "invalid_event"
    UNKNOWN_EVENT_TYPE = "unknown_event_type"
    UNSUPPORTED_EVENT = "unsupported_event"
    EVENT_TOO_LARGE = "event_too_large"
    BINARY_FRAME = "binary_frame"
    # Its contents
    INVALID_VALUE = "invalid_value"
    UNKNOWN_PARAMETER = "unknown_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    INVALID_AUDIO = "invalid_audio"
    EMPTY_AUDIO = "empty_audio"
    INPUT_AUDIO_BUFFER_COMMIT_EMPTY = "input_audio_buffer_commit_empty"
    ITEM_NOT_FOUND = "item_not_found"
    ITEM_EXISTS = "item_already_exists"
    CALL_NOT_FOUND = "call_id_not_found"
    # The state of the conversation
    ACTIVE_RESPONSE = "conversation_already_has_active_response"
    NO_ACTIVE_RESPONSE = "response_cancel_not_active"
    SESSION_CLOSED = "session_closed"
    # Capacity and lifetime
    RESOURCE_EXHAUSTED = "resource_exhausted"
    SLOW_READER = "slow_reader"
    SHUTDOWN = "shutdown"
    SESSION_NOT_FOUND = "session_not_found"
    MODEL_NOT_FOUND = "model_not_found"
    UNAUTHORIZED = "invalid_api_key"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    # The engine
    ENGINE_ERROR = "engine_error"
    CONTEXT_FULL = "context_length_exceeded"
    INTERNAL_ERROR = "internal_error"


_TYPES = {
    ErrorCode.RESOURCE_EXHAUSTED: ErrorType.RATE_LIMIT,
    ErrorCode.SLOW_READER: ErrorType.SERVER,
    ErrorCode.SHUTDOWN: ErrorType.SERVER,
    ErrorCode.ENGINE_ERROR: ErrorType.SERVER,
    ErrorCode.INTERNAL_ERROR: ErrorType.SERVER,
}
_RETRYABLE = frozenset({ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.SHUTDOWN, ErrorCode.ENGINE_ERROR})


MAX_MESSAGE_CHARS = 2000
MAX_PARAM_CHARS = 500
"""Longest message and param: an error may quote what a client sent, which may be megabytes."""


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One error as a client sees it.

    ``param`` names the offending field as a path (``session.audio.input.format``); ``event_id`` is the id of the client
    event that caused it, when it had one; ``retryable`` says that the same call may succeed later.
    """

    type: ErrorType
    code: ErrorCode
    message: str
    param: str | None = None
    event_id: str | None = None
    retryable: bool = False


def error(code: ErrorCode, message: str, *, param: str | None = None, event_id: str | None = None) -> ErrorInfo:
    """Build the :class:`ErrorInfo` for ``code``; its class and whether it is retryable follow from the code.

    Of a long message or param the middle is left out.
    """
    return ErrorInfo(
        type=_TYPES.get(code, ErrorType.INVALID_REQUEST),
        code=code,
        message=_shortened(message, MAX_MESSAGE_CHARS),
        param=None if param is None else _shortened(param, MAX_PARAM_CHARS),
        event_id=event_id,
        retryable=code in _RETRYABLE,
    )


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}…{text[1 - most // 2 :]}"


class DuplexError(Exception):
    """An error that a client can be told; ``info`` says what."""

    def __init__(self, info: ErrorInfo) -> None:
        """Wrap ``info``."""
        super().__init__(info.message)
        self.info = info


def refuse(code: ErrorCode, message: str, *, param: str | None = None) -> DuplexError:
    """Build the exception that refuses a command; whoever knows the command's ``event_id`` adds it."""
    return DuplexError(error(code, message, param=param))
