"""When a session lapses: the rule alone."""

from __future__ import annotations

import math

import pytest

from duplex_server.engine.lease import Lapse, Lease, LeaseTerms, end_of, lapsed

TERMS = LeaseTerms(disconnect_grace_s=30.0, idle_ttl_s=900.0)


@pytest.mark.parametrize(
    ("lease", "at", "why"),
    [
        (Lease(heard_at=100.0), 1000.0, Lapse.IDLE),
        (Lease(heard_at=100.0, alone_since=100.0), 130.0, Lapse.DISCONNECTED),
        (Lease(heard_at=100.0, alone_since=500.0), 530.0, Lapse.DISCONNECTED),
        (Lease(heard_at=100.0, alone_since=980.0), 1000.0, Lapse.IDLE),
        (Lease(heard_at=100.0, alone_since=970.0), 1000.0, Lapse.DISCONNECTED),
    ],
)
def test_the_sooner_of_the_two_terms_ends_a_lease(lease: Lease, at: float, why: Lapse) -> None:
    assert end_of(lease, TERMS) == (at, why)
    assert lapsed(lease, TERMS, at - 0.01) is None
    assert lapsed(lease, TERMS, at - 0.0005) is why, "alarms ring early"
    assert lapsed(lease, TERMS, at) is why
    assert lapsed(lease, TERMS, at + 1e6) is why


def test_a_lease_that_never_ends_has_no_end() -> None:
    terms = LeaseTerms(disconnect_grace_s=math.inf, idle_ttl_s=math.inf)
    lease = Lease(heard_at=1.0, alone_since=1.0)
    assert end_of(lease, terms)[0] == math.inf
    assert lapsed(lease, terms, 1e12) is None


def test_the_defaults_are_half_a_minute_and_a_quarter_of_an_hour() -> None:
    assert (LeaseTerms().disconnect_grace_s, LeaseTerms().idle_ttl_s) == (30.0, 900.0)


@pytest.mark.parametrize("times", [(-1.0, 900.0), (30.0, 0.0), (math.nan, 900.0), (30.0, math.nan)])
def test_what_is_no_time_is_refused(times: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="cannot be kept"):
        LeaseTerms(disconnect_grace_s=times[0], idle_ttl_s=times[1])
