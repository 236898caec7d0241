"""How long to wait before a lost connection is tried again, and which losses are worth trying at all. Pure.

Owns :class:`ReconnectPolicy`, the arithmetic of the waits and the judgement of failures. Called by
:mod:`duplex_client.link`. It reads no clock and draws no random number: the caller passes both in.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from duplex_client.errors import (
    ConnectFailed,
    ConnectionClosed,
    DuplexClientError,
    ProtocolError,
    ReconnectFailed,
    ServerRefused,
    SessionExpired,
    SessionReplaced,
    WaitTimeout,
)

Rng = Callable[[], float]
"""Draws from [0, 1), as ``random.random`` does."""

_PASSING_CODES = frozenset({None, 1001, 1005, 1006, 1011, 1012, 1013, 1014})
"""Close codes that speak of the way or of the server's moment, not of the session: a server or proxy that restarts, is
full, or lost its patience with a silent line. ``None`` is a socket that went without a word. RFC 6455 section 7.4 and the
IANA registry of close codes."""
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class ReconnectPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a client behaves when its connection is lost.

    The wait before an attempt is drawn evenly from zero to a ceiling, so that the clients of a server that restarts do
    not come back all at once; the ceiling grows with each attempt.

    Attributes:
        first_ms: The ceiling before the first attempt.
        factor: By how much it grows; 1 or more.
        longest_ms: Where it stops growing.
        give_up_after_s: How long a session may be out of reach before it is given up. More than the server's disconnect
            grace (30 s by default) is of no use.
        settled_after_s: A connection that lasted this long starts the next loss with ``first_ms`` again; one that broke
            sooner goes on with the grown ceiling.

    Raises:
        ValueError: a value that makes no sense.
    """

    first_ms: float = 200.0
    factor: float = 2.0
    longest_ms: float = 5000.0
    give_up_after_s: float = 30.0
    settled_after_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if not 0.0 < self.first_ms <= self.longest_ms:
            raise ValueError(f"first_ms is {self.first_ms:g}; it must lie above 0 and up to longest_ms")
        if self.factor < 1.0:
            raise ValueError(f"factor is {self.factor:g}; it must be 1 or more")
        if self.give_up_after_s < 0.0 or self.settled_after_s < 0.0:
            raise ValueError("give_up_after_s and settled_after_s cannot be negative")


def ceiling_ms(policy: ReconnectPolicy, attempt: int) -> float:
    """The longest wait before attempt number ``attempt``, counted from 0, in ms."""
    try:
        return min(policy.longest_ms, policy.first_ms * policy.factor**attempt)
    except OverflowError:
        return policy.longest_ms


def delay_ms(policy: ReconnectPolicy, attempt: int, rng: Rng) -> float:
    """The wait before attempt number ``attempt``, in ms: ``rng`` times the ceiling."""
    return ceiling_ms(policy, attempt) * rng()


def may_pass(failure: DuplexClientError) -> bool:
    """Whether a loss, or a failed attempt to resume, may be over the next time.

    A close with a code that speaks of the session or of the client (1000, 1008, any of an application's own) is meant; so
    is an error that the server does not call retryable, such as a wrong key or a session that is gone.
    """
    match failure:
        case ProtocolError() | SessionReplaced() | SessionExpired() | ReconnectFailed():
            return False
        case ConnectionClosed():
            return failure.code in _PASSING_CODES
        case ServerRefused(info=None):
            return failure.status in _PASSING_STATUS
        case ServerRefused():
            return failure.retryable
        case _:
            return isinstance(failure, ConnectFailed | WaitTimeout)
