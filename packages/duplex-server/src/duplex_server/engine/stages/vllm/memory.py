"""Who holds how much of the engine's KV cache, and who is set aside when somebody else needs it.

vLLM never evicts a request that waits for its next append, and waits for ever when only such requests hold the cache. So no
append is submitted before its blocks are free: requests that are waiting for their next append are ended, the one idle longest
first, and fed again when their turn comes. Pure books; called by :mod:`.session` through the driver. Must never know the
engine or a clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class Cache:
    """The blocks of one engine's KV cache."""

    __slots__ = ("_block", "_blocks", "_busy", "_held")

    def __init__(self, positions: int, block: int) -> None:
        """``positions`` in blocks of ``block``; whoever holds any holds whole blocks."""
        self._block = block
        self._blocks = positions // block
        self._held: OrderedDict[Hashable, int] = OrderedDict()
        self._busy: set[Hashable] = set()

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self._blocks - sum(self._held.values())

    @property
    def used(self) -> float:
        """The share of the blocks that is held."""
        return 1.0 - self.free / self._blocks if self._blocks else 0.0

    def lacking(self, key: Hashable, positions: int) -> int:
        """How many blocks must come free before ``key`` can hold ``positions``; 0 or less is none."""
        return self._needed(positions) - self._held.get(key, 0) - self.free

    def victims(self, key: Hashable, positions: int) -> tuple[Hashable, ...] | None:
        """Whom to set aside so that ``key`` can hold ``positions``, idle longest first; ``None``: not even all would do."""
        lacking = self.lacking(key, positions)
        chosen: list[Hashable] = []
        for other, blocks in self._held.items():
            if lacking <= 0:
                break
            if other != key and other not in self._busy:
                chosen.append(other)
                lacking -= blocks
        return tuple(chosen) if lacking <= 0 else None

    def claim(self, key: Hashable, positions: int) -> None:
        """``key`` works with up to ``positions`` from now on, until :meth:`rest`.

        Raises:
            ValueError: they are not free.
        """
        if self.lacking(key, positions) > 0:
            raise ValueError(f"{positions} positions are not free in the KV cache")
        self._held[key] = max(self._held.get(key, 0), self._needed(positions))
        self._busy.add(key)

    def hand_over(self, key: Hashable, other: Hashable) -> None:
        """What ``key`` holds is ``other``'s from now on, which is not set aside before it drops it."""
        self._held[other] = self._held.pop(key, 0)
        self._busy.discard(key)
        self._busy.add(other)

    def fits(self, positions: int, beside: Hashable) -> bool:
        """Whether ``positions`` could be held beside what ``beside`` holds, if nobody else held anything."""
        return self._needed(positions) + self._held.get(beside, 0) <= self._blocks

    def rest(self, key: Hashable, positions: int) -> None:
        """``key`` holds ``positions`` and does nothing: it may be set aside."""
        self._busy.discard(key)
        if key in self._held:
            self._held[key] = self._needed(positions)
            self._held.move_to_end(key)

    def drop(self, key: Hashable) -> None:
        """``key`` holds nothing any more. Idempotent."""
        self._busy.discard(key)
        self._held.pop(key, None)

    def _needed(self, positions: int) -> int:
        return -(-positions // self._block)
