"""How long a client waits before it tries again, and when it does not try at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_client import (
    CommandRefused,
    ConnectFailed,
    ConnectionClosed,
    ProtocolError,
    ReconnectFailed,
    ReconnectPolicy,
    ServerRefused,
    SessionExpired,
    SessionReplaced,
    WaitTimeout,
)
from duplex_client.backoff import ceiling_ms, delay_ms, may_pass
from duplex_core.errors import ErrorCode, error

POLICY = ReconnectPolicy(first_ms=100.0, factor=2.0, longest_ms=1000.0)


def test_the_wait_doubles_up_to_its_ceiling() -> None:
    assert [ceiling_ms(POLICY, n) for n in range(6)] == [100.0, 200.0, 400.0, 800.0, 1000.0, 1000.0]


def test_the_wait_is_the_drawn_share_of_the_ceiling() -> None:
    assert delay_ms(POLICY, 2, lambda: 0.25) == 100.0
    assert delay_ms(POLICY, 2, lambda: 0.0) == 0.0


@given(
    first=st.floats(0.001, 1e4),
    more=st.floats(0.0, 1e6),
    factor=st.floats(1.0, 1e9),
    attempt=st.integers(0, 10_000),
    draw=st.floats(0.0, 1.0, exclude_max=True),
)
def test_no_wait_is_longer_than_the_longest_however_many_attempts(
    first: float, more: float, factor: float, attempt: int, draw: float
) -> None:
    policy = ReconnectPolicy(first_ms=first, factor=factor, longest_ms=first + more)
    waits = delay_ms(policy, attempt, lambda: draw)
    assert 0.0 <= waits <= policy.longest_ms
    assert ceiling_ms(policy, attempt) <= ceiling_ms(policy, attempt + 1)


@pytest.mark.parametrize("wrong", [{"first_ms": 0.0}, {"first_ms": 6000.0}, {"factor": 0.5}, {"give_up_after_s": -1.0}])
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ReconnectPolicy(**wrong)


@pytest.mark.parametrize("code", [None, 1001, 1005, 1006, 1011, 1012, 1013, 1014])
def test_a_socket_that_breaks_or_a_server_that_restarts_is_tried_again(code: int | None) -> None:
    assert may_pass(ConnectionClosed("gone", code=code))


@pytest.mark.parametrize("code", [1000, 1002, 1003, 1007, 1008, 1009, 1010, 3000, 4001])
def test_a_close_that_was_meant_is_the_end(code: int) -> None:
    assert not may_pass(ConnectionClosed("gone", code=code))


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_server_that_cannot_now_is_asked_again(status: int) -> None:
    assert may_pass(ServerRefused("not now", status=status))


@pytest.mark.parametrize("status", [None, 301, 400, 401, 403, 404, 501])
def test_a_server_that_will_not_is_not_asked_again(status: int | None) -> None:
    assert not may_pass(ServerRefused("no", status=status))


@pytest.mark.parametrize("code", ErrorCode)
def test_what_the_server_says_of_itself_counts_more_than_the_status(code: ErrorCode) -> None:
    info = error(code, "told")
    assert may_pass(ServerRefused("no", info=info, status=503)) is info.retryable
    assert may_pass(ServerRefused("no", info=info, status=401)) is info.retryable


def test_each_kind_of_failure_is_judged() -> None:
    assert may_pass(ConnectFailed("nobody"))
    assert may_pass(WaitTimeout("late"))
    for final in (ProtocolError("x"), SessionReplaced("x"), SessionExpired("x"), ReconnectFailed("x")):
        assert not may_pass(final)
    assert not may_pass(CommandRefused(error(ErrorCode.ENGINE_ERROR, "retryable, and no connection")))
