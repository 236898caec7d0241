"""Who sits where: sessions and chat requests on the replicas of a stage.

Owns the seats of one stage and the line of chat requests before them. Pure: it is told what happens and says who gets where.
Used by :mod:`.pool`. Must never let more sit on a replica than it has seats, move anyone who sits, or let chats take sessions'
seats or sessions chats'.
"""

from __future__ import annotations

from collections import OrderedDict

from duplex_core.errors import ErrorCode, refuse
from duplex_core.stages import Purpose
from duplex_server.engine.stages.processes.driver import Seats


class Seating:
    """The seats of one stage. Those who sit are known by the id of their session or chat request."""

    def __init__(self, stage: str, seats: Seats, *, line: int) -> None:
        """No replica is up, and nobody sits. At most ``line`` chat requests wait."""
        self._stage = stage
        self._most = {Purpose.SESSION: seats.sessions, Purpose.CHAT: seats.chats}
        self._line_most = line
        self._taken: dict[int, dict[str, Purpose]] = {}
        self._where: dict[str, int] = {}
        self._line: OrderedDict[str, None] = OrderedDict()

    @property
    def up(self) -> int:
        """How many replicas are up."""
        return len(self._taken)

    @property
    def waiting(self) -> int:
        """How many chat requests wait in line."""
        return len(self._line)

    def taken(self, purpose: Purpose) -> int:
        """How many seats of a kind are taken."""
        return sum(self._sitting(replica, purpose) for replica in self._taken)

    def where(self, sitter: str) -> int | None:
        """The replica on which somebody sits."""
        return self._where.get(sitter)

    def waits(self, sitter: str) -> bool:
        """Whether a chat request waits in line."""
        return sitter in self._line

    def place(self, session_id: str) -> int:
        """Give a session a seat on the replica where the fewest sit; the replica.

        Raises:
            DuplexError: no replica is up, or every seat is taken.
        """
        if not self._taken:
            raise refuse(ErrorCode.ENGINE_ERROR, f"the model's stage {self._stage} is down; it is being started again")
        replica = self._free(Purpose.SESSION)
        if replica is None:
            most = self._most[Purpose.SESSION] * len(self._taken)
            raise refuse(ErrorCode.RESOURCE_EXHAUSTED, f"all {most} seats of the model's stage {self._stage} are taken")
        self._sit(session_id, replica, Purpose.SESSION)
        return replica

    def join(self, chat_id: str) -> int | None:
        """Give a chat request a seat, or the last place in the line; the replica, if it has a seat.

        Raises:
            DuplexError: the line is full, or the stage takes no chat requests at all.
        """
        if not self._most[Purpose.CHAT]:
            raise refuse(ErrorCode.RESOURCE_EXHAUSTED, f"the model's stage {self._stage} takes no chat requests")
        replica = None if self._line else self._free(Purpose.CHAT)
        if replica is not None:
            self._sit(chat_id, replica, Purpose.CHAT)
            return replica
        if len(self._line) >= self._line_most:
            raise refuse(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"{self._line_most} chat requests wait for the model's stage {self._stage} already; try again later",
            )
        self._line[chat_id] = None
        return None

    def leave(self, sitter: str) -> int | None:
        """Whoever sits or waits goes; the replica, if it sat. The line moves with :meth:`seated`."""
        self._line.pop(sitter, None)
        replica = self._where.pop(sitter, None)
        if replica is not None:
            del self._taken[replica][sitter]
        return replica

    def seated(self) -> list[tuple[str, int]]:
        """Seat those at the head of the line for whom there is a seat now: each with its replica."""
        moved: list[tuple[str, int]] = []
        while self._line and (replica := self._free(Purpose.CHAT)) is not None:
            chat_id, _ = self._line.popitem(last=False)
            self._sit(chat_id, replica, Purpose.CHAT)
            moved.append((chat_id, replica))
        return moved

    def replica_up(self, replica: int) -> None:
        """Its seats are there, and empty."""
        self._taken[replica] = {}

    def replica_down(self, replica: int) -> dict[str, Purpose]:
        """Its seats are gone: who sat there."""
        lost = self._taken.pop(replica, {})
        for sitter in lost:
            del self._where[sitter]
        return lost

    def clear_line(self) -> list[str]:
        """Nobody waits any more: who did."""
        waited = list(self._line)
        self._line.clear()
        return waited

    def _sit(self, sitter: str, replica: int, purpose: Purpose) -> None:
        self._taken[replica][sitter] = purpose
        self._where[sitter] = replica

    def _sitting(self, replica: int, purpose: Purpose) -> int:
        return sum(each is purpose for each in self._taken[replica].values())

    def _free(self, purpose: Purpose) -> int | None:
        """The replica with a free seat of this kind where the fewest sit, the first of several."""
        free = [each for each in self._taken if self._sitting(each, purpose) < self._most[purpose]]
        return min(free, key=lambda each: (len(self._taken[each]), each), default=None)
