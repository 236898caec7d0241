"""The turn rule: what is answered to a history. Pure; called by the session for each response.

Speech is answered by itself and how long it was, text by itself, a tool's result by what it is. Text has no voice of its own
here: it is hummed, at a steady pace, so that playback, marks and interruptions can be tried on it too.
"""

from __future__ import annotations

import array
import functools
import math
import sys

import msgspec

from duplex_core.audio import pcm16_bytes, pcm16_ms
from duplex_core.config import Modality, SessionConfig
from duplex_core.items import FunctionCallOutputItem, InputAudio, Item, MessageItem, Role, item_text
from duplex_core.model import ResponseCause
from duplex_core.testing.echo.silence import is_silent
from duplex_core.testing.echo.tools import Call, wanted_call

RATE_HZ = 16000
"""The rate of what echo hears and says."""
HUM_MS_PER_CHAR = 40.0
"""How long one character is hummed: about the pace of speech."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What to say.

    ``pcm`` is 16-bit mono at :data:`RATE_HZ`, empty for a written answer. ``cut`` says that words were left out.
    """

    text: str
    pcm: bytes = b""
    cut: bool = False


def reply_to(history: tuple[Item, ...], config: SessionConfig, cause: ResponseCause) -> Reply | Call | None:
    """The answer to the end of ``history``; ``None`` is to keep listening, since nothing was said."""
    last = history[-1] if history else None
    if cause is ResponseCause.IDLE or last is None:
        return _say("Are you there?", b"", config)
    if isinstance(last, FunctionCallOutputItem):
        return _say(f"The tool gave {last.output}", b"", config)
    text, pcm = item_text(last), _speech(last)
    if pcm:
        if is_silent(pcm):
            return None
        return _say(f"You said {pcm16_ms(len(pcm), RATE_HZ):.0f} milliseconds.", pcm, config)
    return wanted_call(text, config) or _say(text, b"", config)


def _speech(item: Item) -> bytes:
    if not isinstance(item, MessageItem) or item.role is not Role.USER:
        return b""
    return b"".join(part.audio or b"" for part in item.content if isinstance(part, InputAudio))


def _say(text: str, pcm: bytes, config: SessionConfig) -> Reply:
    words = f"{config.instructions} {text}".split()
    kept = words[: config.max_output_tokens]
    said = " ".join(kept)
    cut = len(kept) < len(words)
    if config.modality is Modality.TEXT:
        return Reply(text=said, cut=cut)
    sound = pcm or _hum(len(said) * HUM_MS_PER_CHAR)
    if cut and pcm:
        sound = sound[: pcm16_bytes(pcm16_ms(len(pcm), RATE_HZ) * len(kept) / len(words), RATE_HZ)]
    return Reply(text=said, pcm=sound, cut=cut)


def _hum(ms: float) -> bytes:
    size = pcm16_bytes(ms, RATE_HZ)
    period = _period()
    return (period * (size // len(period) + 1))[:size]


@functools.cache
def _period() -> bytes:
    """One period of a 250 Hz tone."""
    samples = array.array("h", (round(3000 * math.sin(2 * math.pi * step / 64)) for step in range(64)))
    if sys.byteorder == "big":
        samples.byteswap()
    return samples.tobytes()
