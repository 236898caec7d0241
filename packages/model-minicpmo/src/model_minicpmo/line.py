"""The line of units: those that were cut from what was heard and seen, and which of them is being decided.

Owned by the session. Owns their order, which of them an interruption has made void, and that an interruption stays pending until
a unit has carried it. Never: gives work to a stage or knows of answers.
"""

from __future__ import annotations

from collections import deque

import msgspec

from duplex_core.fence import Fence
from model_minicpmo.rules.units import UnitBuffer, silence


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that was cut and waits for its turn.

    Attributes:
        fence: what its decision will be about.
        text: words to take in before its sound; `written` are those of them that a client wrote in items.
        asked: an answer is waited for with it.
        listened: it is only to be listened to: the beginning of what was given at once.
        given: something in it was given for an answer, and did not come from microphone or camera.
        interrupted: the turn is to be closed in it.
        stands_in: it is there for that alone, in the place of a unit that failed.
    """

    serial: int
    pcm: bytes
    pictures: tuple[bytes, ...]
    fence: Fence
    text: str = ""
    written: str = ""
    asked: bool = False
    listened: bool = False
    given: bool = False
    interrupted: bool = False
    stands_in: bool = False

    @property
    def for_answer(self) -> bool:
        """Whether there can be no answer without it, where one is waited for."""
        return self.asked or self.given or self.stands_in


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
        self._owed: Cut | None = None
        self._serial = 0
        self._void_to = 0

    @property
    def behind(self) -> bool:
        """Whether there are units that are not decided."""
        return self.deciding is not None or bool(self._waiting)

    @property
    def waiting(self) -> int:
        """How many units wait, beside the one that is being decided."""
        return len(self._waiting)

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
        given: bool = False,
        text: str = "",
        written: str = "",
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
                written=written,
                asked=asked,
                listened=listened,
                given=given,
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
        self._pay()
        self.deciding = self._waiting.popleft()
        return self.deciding

    def failed(self) -> None:
        """The unit that was being decided will not be. An interruption that it was to carry is carried by the next one."""
        cut, self.deciding = self.deciding, None
        if cut is not None and cut.interrupted:
            self._owed = cut

    def _pay(self) -> None:
        """Have the next unit carry the interruption that is owed; before a question silence does, but not time and again."""
        owed, self._owed = self._owed, None
        first = self._waiting[0]
        if owed is None or first.interrupted:
            return
        if (first.asked or first.given) and not owed.stands_in:
            self._serial += 1
            quiet = Cut(
                serial=self._serial, pcm=silence(), pictures=(), fence=owed.fence, interrupted=True, stands_in=True
            )
            self._waiting.appendleft(quiet)
        else:
            self._waiting[0] = msgspec.structs.replace(first, interrupted=True)

    def withdraw(self) -> None:
        """Forget what microphone and camera gave and no stage has; what a question or an interruption needs of it is kept."""
        self.buffer.forget()
        kept = []
        for cut in self._waiting:
            if cut.asked or cut.given:
                kept.append(cut)
            elif cut.interrupted:
                kept.append(msgspec.structs.replace(cut, pcm=silence(), pictures=()))
        self._waiting = deque(kept)

    def void(self) -> None:
        """An interruption: no unit cut so far means anything."""
        self._void_to = self._serial
        self.interrupted = True

    def is_void(self, cut: Cut) -> bool:
        """Tell whether a unit was cut before the last interruption."""
        return cut.serial <= self._void_to
