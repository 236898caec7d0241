"""Echo's one stage: cuts a reply into the pieces in which it is spoken. Runs on the ``thread`` runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from duplex_core.audio import pcm16_bytes, pcm16_ms
from duplex_core.ledger import TextMark
from duplex_core.testing.echo.reply import RATE_HZ, Reply

STAGE = "cut"
"""The stage's name in the plan."""


class CutWork(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of a request: a reply, and how long each piece is."""

    reply: Reply
    chunk_ms: float


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of an output: some words, some sound, and the marks of the words that end in this piece.

    Marks count from the reply's beginning, in characters and milliseconds.
    """

    text: str = ""
    pcm: bytes = b""
    marks: tuple[TextMark, ...] = ()


class Cutter:
    """The worker. Keeps nothing between requests, so one serves all sessions."""

    def run(self, payload: CutWork, emit: Callable[[Piece], None], cancelled: Callable[[], bool]) -> None:
        """Emit the pieces of ``payload.reply``, in order."""
        for piece in pieces(payload.reply, payload.chunk_ms):
            if cancelled():
                return
            emit(piece)

    def close(self) -> None:
        """Nothing is held."""


def pieces(reply: Reply, chunk_ms: float) -> Iterator[Piece]:
    """The pieces of ``reply``: words where they begin, marks where they end; a written reply goes word by word."""
    words = [word + " " for word in reply.text.split(" ")]
    words[-1] = words[-1].rstrip()
    if not reply.pcm:
        yield from (Piece(text=word) for word in words)
        return
    total_ms = pcm16_ms(len(reply.pcm), RATE_HZ)
    per_char = total_ms / max(1, len(reply.text))
    size = pcm16_bytes(chunk_ms, RATE_HZ)
    begun, ended, chars_begun, chars_ended = 0, 0, 0, 0
    for start in range(0, len(reply.pcm), size):
        pcm = reply.pcm[start : start + size]
        end_ms = pcm16_ms(start + len(pcm), RATE_HZ)
        text, marks = "", []
        while begun < len(words) and chars_begun * per_char < end_ms:
            text += words[begun]
            chars_begun += len(words[begun])
            begun += 1
        while ended < begun and (chars_ended + len(words[ended])) * per_char <= end_ms + 0.001:
            chars_ended += len(words[ended])
            marks.append(TextMark(chars=chars_ended, ms=round(chars_ended * per_char, 3)))
            ended += 1
        yield Piece(text=text, pcm=pcm, marks=tuple(marks))
