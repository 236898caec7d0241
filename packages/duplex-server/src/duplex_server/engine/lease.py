"""How long a session lives without its client: a pure rule.

Owns the two terms and the moment at which a session lapses under them. Read by the reaper, which sets its alarm by it, and by
the session runner, which judges again before it ends anything. Reads no clock: ``now`` is an argument, in seconds of whatever
clock the lease was written with.
"""

from __future__ import annotations

import enum
import math

import msgspec

EARLY_S = 0.001
"""How much early an alarm may ring (clocks are coarse) and a lease still counts as over."""


class Lapse(enum.Enum):
    """Why a session has lapsed; the value is told in ``session.expired``."""

    DISCONNECTED = "disconnect_grace"
    IDLE = "idle_ttl"


class LeaseTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of every session of an engine, in seconds; ``math.inf`` is for ever.

    ``disconnect_grace_s`` runs while nobody has the session, ``idle_ttl_s`` from the client's last command.
    """

    disconnect_grace_s: float = 30.0
    idle_ttl_s: float = 900.0

    def __post_init__(self) -> None:
        """Refuse what is no time.

        Raises:
            ValueError: a negative grace, an idle time that is not above 0, or no number.
        """
        if not (self.disconnect_grace_s >= 0 and self.idle_ttl_s > 0):
            raise ValueError(
                f"a session cannot be kept for {self.disconnect_grace_s:g} s without its client and "
                f"{self.idle_ttl_s:g} s without a word of it; give times above 0, or inf"
            )


class Lifetime(LeaseTerms, frozen=True, kw_only=True):
    """How long a session, and what it has told, are kept: its lease's terms and the bounds of its journal.

    The default of ``journal_bytes`` is some eighty seconds of 24 kHz audio, more than can be on its way when a connection breaks.
    """

    journal_events: int = 4096
    journal_bytes: int = 4 * 1024 * 1024


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """What the terms are counted from.

    ``heard_at`` is the time of the client's last command, or of the opening; ``alone_since`` is when the last client let go, or
    when an attachment was given out that nobody has read or spoken through yet, and ``None`` while a client has the session.
    """

    heard_at: float
    alone_since: float | None = None


def end_of(lease: Lease, terms: LeaseTerms) -> tuple[float, Lapse]:
    """When the lease ends if nothing more happens, and why."""
    idle = lease.heard_at + terms.idle_ttl_s
    gone = math.inf if lease.alone_since is None else lease.alone_since + terms.disconnect_grace_s
    return (gone, Lapse.DISCONNECTED) if gone <= idle else (idle, Lapse.IDLE)


def lapsed(lease: Lease, terms: LeaseTerms, now: float) -> Lapse | None:
    """Why the lease has ended by ``now``; ``None`` while it runs."""
    at, why = end_of(lease, terms)
    return why if at <= now + EARLY_S else None
