"""The line of units: those that were cut from what was heard and seen, and which of them is being decided.

Owned by the session. Owns their order, and which of them an interruption has made void. Never: gives work to a stage or knows of
answers.
"""

from __future__ import annotations

from collections import deque

import msgspec

from duplex_core.fence import Fence
from model_minicpmo.rules.units import UnitBuffer


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that was cut and waits for its turn. `fence` is what its decision will be about."""

    serial: int
    pcm: bytes
    pictures: tuple[bytes, ...]
    fence: Fence
    text: str = ""
    asked: bool = False
    listened: bool = False
    interrupted: bool = False


class UnitLine:
    """See the module's docstring.

    Attributes:
        buffer: what was heard and seen and is no unit yet.
        deciding: the unit that the stages have been given and not decided on.
        interrupted: an interruption has come since the last unit was cut.
    """

    def __init__(self) -> None:
        self.buffer = UnitBuffer()
        self.deciding: Cut | None = None
        self.interrupted = False
        self._waiting: deque[Cut] = deque()
        self._serial = 0
        self._void_to = 0

    @property
    def behind(self) -> bool:
        """Whether there are units that are not decided."""
        return self.deciding is not None or bool(self._waiting)

    @property
    def hopeful(self) -> bool:
        """Whether one of those may still mean something."""
        return any(cut is not None and not self.is_void(cut) for cut in (self.deciding, *self._waiting))

    def cut(
        self,
        pcm: bytes,
        fence: Fence,
        *,
        asked: bool = False,
        listened: bool = False,
        text: str = "",
        seen: bool = True,
    ) -> None:
        """Put a unit at the end of the line, with the pictures of its second; without `seen` they stay for the next one."""
        self._serial += 1
        self._waiting.append(
            Cut(
                serial=self._serial,
                pcm=pcm,
                pictures=self.buffer.pictures() if seen else (),
                fence=fence,
                text=text,
                asked=asked,
                listened=listened,
                interrupted=self.interrupted,
            )
        )
        self.interrupted = False

    def ask_newest(self, fence: Fence) -> bool:
        """Make the unit at the end of the line the one that is asked; whether there is one that can be."""
        if not self._waiting or self._waiting[-1].interrupted or self.is_void(self._waiting[-1]):
            return False
        self._waiting[-1] = msgspec.structs.replace(self._waiting[-1], fence=fence, asked=True)
        return True

    def next(self) -> Cut | None:
        """Give the next unit to be decided, unless one is being decided; it is `deciding` from then on."""
        if self.deciding is not None or not self._waiting:
            return None
        self.deciding = self._waiting.popleft()
        return self.deciding

    def void(self) -> None:
        """An interruption: no unit cut so far means anything."""
        self._void_to = self._serial
        self.interrupted = True

    def is_void(self, cut: Cut) -> bool:
        """Tell whether a unit was cut before the last interruption."""
        return cut.serial <= self._void_to
