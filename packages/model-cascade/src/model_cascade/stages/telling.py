"""From what a part raises to what a client is told.

Called by the stages' workers around each request. The part's own words go to the server's log, as the cause; a client gets the
sentence that is meant for it, without addresses, keys or files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from duplex_core.errors import DuplexError, ErrorCode, error
from model_cascade.parts.errors import CancelledError, LanguageModelError, PartError


@contextmanager
def told() -> Iterator[None]:
    """Turn a part's error into one that the runtime expects; a cancellation passes as it is.

    Raises:
        DuplexError: ``engine_error`` with what a client is told, the part's error being its cause.
    """
    try:
        yield
    except CancelledError:
        raise
    except PartError as exc:
        info = error(ErrorCode.ENGINE_ERROR, exc.told)
        if isinstance(exc, LanguageModelError):
            info = msgspec.structs.replace(info, retryable=exc.retryable)
        raise DuplexError(info) from exc
