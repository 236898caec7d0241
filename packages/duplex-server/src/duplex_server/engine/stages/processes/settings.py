"""The times and bounds by which worker processes are watched. Pure values; made where a runtime is registered, and by tests."""

from __future__ import annotations

import msgspec


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long things may take. All times are in seconds.

    Attributes:
        start_s: from the start of a process until it is ready, with its weights loaded.
        ping_s: between two questions whether a process is there.
        hang_s: how long a process may leave them unanswered, thus the longest step that is taken for work.
        stop_s: how long a process may take to end when it is asked to; it is killed after that.
        backoff_s: how long after its death a replica is started again; twice as long after each further death.
        backoff_most_s: the longest of these.
        steady_s: after this long a replica counts as recovered, and the next wait is ``backoff_s`` again.
        line: chat requests that may wait for a seat.
    """

    start_s: float = 900.0
    ping_s: float = 1.0
    hang_s: float = 30.0
    stop_s: float = 5.0
    backoff_s: float = 0.5
    backoff_most_s: float = 30.0
    steady_s: float = 60.0
    line: int = 64

    def backoff(self, deaths: int) -> float:
        """How long to wait after this many deaths in a row, from 1."""
        return float(min(self.backoff_most_s, self.backoff_s * 2 ** min(deaths - 1, 30)))
