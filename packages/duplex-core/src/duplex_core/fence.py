"""The fence that every asynchronous result carries, so that a stale one is recognised in one place."""

from __future__ import annotations

import msgspec


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """Where in a session something belongs.

    ``epoch`` is the interruption fence: it rises at every cancel, clear and barge-in, and nothing made under an older
    one may reach the client. ``turn`` counts the model's turns; it rises when a response opens.
    """

    session_id: str
    epoch: int = 0
    turn: int = 0

    def next_epoch(self) -> Fence:
        """The fence after an interruption."""
        return msgspec.structs.replace(self, epoch=self.epoch + 1)

    def next_turn(self) -> Fence:
        """The fence of the turn that opens next."""
        return msgspec.structs.replace(self, turn=self.turn + 1)

    def admits(self, other: Fence) -> bool:
        """Whether a result made under ``other`` is still wanted now that this fence is in force."""
        return other.session_id == self.session_id and other.epoch == self.epoch
