"""The requests of a stage that are open, by the key under which a process knows them and by session.

Owns their numbering: a key is never used again, so that whatever still comes for an older request finds nothing. Pure. Used by
:mod:`.pool`. Must never answer a request.
"""

from __future__ import annotations

import itertools

from duplex_core.stages import StageRequest


class Open:
    """One request, and when it was submitted: in seconds of the machine's monotonic clock."""

    __slots__ = ("at", "request")

    def __init__(self, request: StageRequest, at: float) -> None:
        self.request = request
        self.at = at


class Requests:
    """All open requests of one stage."""

    def __init__(self, stage: str) -> None:
        """Begin with none."""
        self._stage = stage
        self._numbers = itertools.count(1)
        self._open: dict[int, Open] = {}
        self._keys: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: StageRequest, at: float) -> int:
        """A request begins; its key.

        Raises:
            ValueError: a request of this session with this id is open.
        """
        who = request.fence.session_id
        keys = self._keys.setdefault(who, {})
        if request.request_id in keys:
            raise ValueError(f"stage {self._stage}: request {request.request_id} of {who} is open already")
        key = next(self._numbers)
        keys[request.request_id] = key
        self._open[key] = Open(request, at)
        return key

    def get(self, key: int) -> Open | None:
        """The open request with this key."""
        return self._open.get(key)

    def of(self, who: str, request_id: str | None = None) -> list[int]:
        """The keys of a session's open requests in the order in which they began, or of the one with this id."""
        keys = self._keys.get(who, {})
        if request_id is None:
            return list(keys.values())
        return [keys[request_id]] if request_id in keys else []

    def close(self, key: int) -> Open | None:
        """A request has ended; what it was, unless it had ended before."""
        closed = self._open.pop(key, None)
        if closed is not None:
            who = closed.request.fence.session_id
            keys = self._keys[who]
            del keys[closed.request.request_id]
            if not keys:
                del self._keys[who]
        return closed

    def forget(self, who: str) -> None:
        """All of a session's requests have ended."""
        for key in self.of(who):
            self.close(key)
