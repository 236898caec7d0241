"""The orchestrator: the duplex half's side of the stages.

Hosts the session manager and moves what stages tell to the session that it concerns; what concerns no session falls
through to the turn-based half, which is handed over as a function. Made by :class:`duplex_server.engine.omni.DuplexOmni`.
It knows no model and looks inside no payload.
"""

from __future__ import annotations

from collections.abc import Callable

from duplex_server.engine.manager import SessionManager
from duplex_server.engine.stages.host import Told


class Orchestrator:
    """Routes what stages tell to its owners."""

    def __init__(self, manager: SessionManager, fall_through: Callable[[Told], None]) -> None:
        """Route to the sessions of ``manager`` first, to ``fall_through`` else."""
        self.manager = manager
        self._fall_through = fall_through

    def route(self, told: Told) -> None:
        """Move one reply, or the loss of what a stage held, to its owner."""
        if not self.manager.deliver(told):
            self._fall_through(told)
