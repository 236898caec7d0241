"""The orchestrator: the duplex half's side of the stages.

Hosts the session manager and moves each stage reply to the session that it belongs to; a reply that is no session's falls
through to the turn-based half, which is handed over as a function. Made by :class:`duplex_server.engine.omni.DuplexOmni`.
It knows no model and looks inside no payload.
"""

from __future__ import annotations

from collections.abc import Callable

from duplex_core.stages import StageReply
from duplex_server.engine.manager import SessionManager


class Orchestrator:
    """Routes replies between stages and their owners."""

    def __init__(self, manager: SessionManager, fall_through: Callable[[StageReply], None]) -> None:
        """Route to the sessions of ``manager`` first, to ``fall_through`` else."""
        self.manager = manager
        self._fall_through = fall_through

    def route(self, reply: StageReply) -> None:
        """Move one reply to its owner."""
        if not self.manager.deliver(reply):
            self._fall_through(reply)
