"""What a client gives the model in items, instead of as it comes: words, pictures and recordings, each item taken once.

Owned by the session. Owns which items are known, and into which units their pictures and sound are put. Never: cuts what comes
from the microphone, or decides which unit answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duplex_core.items import InputAudio, InputImage, InputText, Item, MessageItem, Role, picture_bytes
from model_minicpmo.rules.units import UNIT_BYTES


def own_instructions(answer: str, session: str) -> str:
    """Give the instructions of one answer, where they are not the session's, which stand in the prompt."""
    return "" if answer == session else answer


class GivenUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of what was given: 16-bit mono PCM of 1 s, nothing when there is no sound for it, and the pictures seen in it."""

    pcm: bytes = b""
    pictures: tuple[bytes, ...] = ()


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What was given since the model was asked last.

    ``seconds`` are units of 16-bit mono PCM at 16 kHz, each recording's last one filled up with silence.
    """

    text: str = ""
    pictures: tuple[bytes, ...] = ()
    seconds: tuple[bytes, ...] = ()

    def units(self, pictures_per_unit: int) -> list[GivenUnit]:
        """Put it into units: at least one, the last of which is to be answered."""
        most = pictures_per_unit
        seen = [self.pictures[at : at + most] for at in range(0, len(self.pictures), most)] if most else []
        before = [GivenUnit(pictures=group) for group in seen[:-1]]
        before += [GivenUnit(pcm=second) for second in self.seconds[:-1]]
        last = GivenUnit(pcm=self.seconds[-1] if self.seconds else b"", pictures=seen[-1] if seen else ())
        return [*before, last]


class GivenItems:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._owed = Given()

    def heard(self, item_id: str) -> None:
        """Its sound came from the microphone and has been heard."""
        self._known.add(item_id)

    def owe(self, text: str, pictures: tuple[bytes, ...]) -> None:
        """It was taken, and its unit failed: it is given again with the next question."""
        before = self._owed
        both = "\n".join(filter(None, (before.text, text)))
        self._owed = Given(text=both, pictures=before.pictures + pictures)

    def take(self, history: Sequence[Item]) -> Given:
        """Give what is owed, and what is in the items that are new in a history, but for the model's own."""
        owed, self._owed = self._owed, Given()
        words: list[str] = [owed.text] if owed.text else []
        pictures: list[bytes] = list(owed.pictures)
        seconds: list[bytes] = []
        for item in history:
            if not isinstance(item, MessageItem) or item.role is Role.ASSISTANT or item.id is None:
                continue
            for part in () if item.id in self._known else item.content:
                match part:
                    case InputText(text=text):
                        words.append(text)
                    case InputImage(image_url=url):
                        pictures.append(picture_bytes(url))
                    case InputAudio(audio=bytes() as pcm):
                        whole = (pcm[at : at + UNIT_BYTES] for at in range(0, len(pcm), UNIT_BYTES))
                        seconds += (second.ljust(UNIT_BYTES, b"\0") for second in whole)
                    case InputAudio(transcript=str() as transcript):
                        words.append(transcript)
                    case _:
                        pass
            self._known.add(item.id)
        return Given(text="\n".join(words), pictures=tuple(pictures), seconds=tuple(seconds))
