"""The user of the demo: what it says, spoken beforehand, and a microphone that is never off.

Owns the lines (synthesised by the second voice, or recorded from people) and when each of their samples is spoken. The
microphone gives silence between lines, as a real one does; the server must find the speech in it by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from duplex_client.audio import SESSION_RATE_HZ, resample_pcm, voiced_span
from duplex_client.pacing import SentChunk
from duplex_core.audio import pcm16_bytes, pcm16_ms
from model_cascade.parts.voices import load_voice
from tests.support import clips

VOICE = "nano-gb"
CHUNK_MS = 20.0

QUESTION = "What is the capital of France?"
PROVOCATIONS = (
    "Please tell me a long story about a brave little dog.",
    "Please tell me everything that you know about the moon.",
    "Please count slowly from one to twenty.",
)
"""Each asks for a long answer; the next one is tried when an answer was over before it could be interrupted."""
INTERRUPTION = "Wait, please stop. What color is the sky?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Something to say.

    Attributes:
        name: What it is for.
        text: Its words.
        pcm: 16-bit mono at the session's rate, trimmed: it begins with the first voiced sample and ends with the last.
    """

    name: str
    text: str
    pcm: bytes

    @property
    def duration_ms(self) -> float:
        """From the first voiced sample to the last."""
        return pcm16_ms(len(self.pcm), SESSION_RATE_HZ)


def trimmed(pcm: bytes, rate_hz: int) -> bytes:
    """Speech without the silence around it, at the session's rate."""
    whole = resample_pcm(pcm, rate_hz, SESSION_RATE_HZ)
    begin_ms, end_ms = voiced_span(whole, SESSION_RATE_HZ)
    return whole[pcm16_bytes(begin_ms, SESSION_RATE_HZ) : pcm16_bytes(end_ms, SESSION_RATE_HZ)]


def spoken(lines: Sequence[tuple[str, str]]) -> list[Line]:
    """Speak lines, given as (name, text), with the second voice."""
    voice = load_voice(VOICE)
    return [
        Line(name=name, text=text, pcm=trimmed(voice.synthesize(text).tobytes(), voice.sample_rate_hz))
        for name, text in lines
    ]


def recorded(folder: Path) -> list[Line]:
    """What people said, from Debian's `pocketsphinx-testdata`.

    Raises:
        ClipsMissing: the recordings are not in `folder`.
    """
    return [Line(name=clip.name, text=clip.transcript, pcm=trimmed(clip.pcm(), 16_000)) for clip in clips.load(folder)]


class Utterance:
    """A line while it is being said. Moments are in ms on the client's clock, and known once it has begun."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.offset_ms: float | None = None
        self.begins_ms: float | None = None
        self.begun = asyncio.Event()

    @property
    def ends_ms(self) -> float | None:
        """When its last voiced sample is spoken."""
        return None if self.begins_ms is None else self.begins_ms + self.line.duration_ms

    def place(self, stream_starts_ms: float) -> None:
        """The stream's first sample was spoken then, so this line's samples have their moments too."""
        if self.offset_ms is not None and self.begins_ms is None:
            self.begins_ms = stream_starts_ms + self.offset_ms
            self.begun.set()


class Microphone:
    """An endless source for `stream_pcm`: lines when there are any, else silence."""

    def __init__(self) -> None:
        self._waiting: list[Utterance] = []
        self._placing: list[Utterance] = []
        self._given_ms = 0.0

    def say(self, line: Line) -> Utterance:
        """Say a line as soon as the one before it has been said."""
        utterance = Utterance(line)
        self._waiting.append(utterance)
        return utterance

    async def pieces(self) -> AsyncIterator[bytes]:
        """The audio, for `stream_pcm`, in whole chunks of 20 ms so that a line begins at its chunk's first sample."""
        size = pcm16_bytes(CHUNK_MS, SESSION_RATE_HZ)
        while True:
            pcm = bytes(size)
            if self._waiting:
                utterance = self._waiting.pop(0)
                utterance.offset_ms = self._given_ms
                self._placing.append(utterance)
                pcm = utterance.line.pcm
                pcm += bytes(-len(pcm) % size)
            self._given_ms += pcm16_ms(len(pcm), SESSION_RATE_HZ)
            yield pcm

    def sent(self, chunk: SentChunk) -> None:
        """For `stream_pcm`'s `on_chunk`: now it is known when each sample is spoken."""
        for utterance in self._placing:
            utterance.place(chunk.starts_at_ms - chunk.offset_ms)
        self._placing = [utterance for utterance in self._placing if not utterance.begun.is_set()]
