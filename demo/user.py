"""The user of the demo: what it says, spoken beforehand, and a microphone that is never off.

Owns the lines (synthesised by the second voice, or recorded from people) and when each of their samples is spoken. The
microphone gives silence between lines, as a real one does; the server must find the speech in it by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duplex_client.audio import SESSION_RATE_HZ, resample_pcm, to_float, to_pcm, voiced_span
from duplex_client.pacing import SentChunk
from duplex_core.audio import pcm16_bytes, pcm16_ms
from model_cascade.parts.voices import load_voice
from tests.support import clips

VOICE = "nano-gb"
CHUNK_MS = 20.0
FRAME = 480
"""Samples over which loudness is measured."""
LEVEL_DB = -24.0
"""How loud the scripted user's voice is while it sounds, below full scale: about as loud as the model's first voice."""

QUESTION = "What is the capital of France?"
PROVOCATIONS = (
    "Tell me a long story about a dog.",
    "Please tell me all about the planet Mars.",
    "Please explain how the moon moves around the earth.",
)
"""Each asks for a long answer; the next one is tried when an answer was over before it could be interrupted."""
INTERRUPTION = "Please stop and tell me the color of the sky."


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Something to say.

    Attributes:
        name: What it is for.
        text: Its words.
        pcm: 16-bit mono at the session's rate, without the silence around it.
        voiced_ms: The first voiced sample and the last, from the beginning of `pcm`. Where it is doubtful which sample
            that is, the one that makes latencies longer: the first that is within 40 dB of the loudest, and the last that
            is within 30 dB.
    """

    name: str
    text: str
    pcm: bytes
    voiced_ms: tuple[float, float]


def line(name: str, text: str, pcm: bytes, rate_hz: int) -> Line:
    """Make a line of speech at any rate.

    Raises:
        ValueError: there is no sound in it.
    """
    whole = resample_pcm(pcm, rate_hz, SESSION_RATE_HZ)
    begin_ms, end_ms = voiced_span(whole, SESSION_RATE_HZ, floor_db=-40.0)
    if begin_ms >= end_ms:
        raise ValueError(f"there is no sound in “{text}”")
    trimmed = whole[pcm16_bytes(begin_ms, SESSION_RATE_HZ) : pcm16_bytes(end_ms, SESSION_RATE_HZ)]
    _, loud_end_ms = voiced_span(trimmed, SESSION_RATE_HZ, floor_db=-30.0)
    return Line(name=name, text=text, pcm=trimmed, voiced_ms=(0.0, loud_end_ms))


def spoken(lines: Sequence[tuple[str, str]]) -> list[Line]:
    """Speak lines, given as (name, text), with the second voice."""
    voice = load_voice(VOICE)
    rate_hz = voice.sample_rate_hz
    return [line(name, text, at_level(voice.synthesize(text).tobytes()), rate_hz) for name, text in lines]


def at_level(pcm: bytes, level_db: float = LEVEL_DB) -> bytes:
    """The same sound, as loud as the model's: its RMS, pauses within it left out, at ``level_db`` below full scale."""
    samples = to_float(pcm)
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    powers = np.mean(frames**2, axis=1)
    voiced = powers[powers >= powers.max(initial=0.0) * 10.0**-3.0]
    loudness = float(np.sqrt(np.mean(voiced))) if voiced.size else 0.0
    return to_pcm(samples * (10.0 ** (level_db / 20.0) / loudness)) if loudness else pcm


def recorded(folder: Path) -> list[Line]:
    """What people said, from Debian's `pocketsphinx-testdata`.

    Raises:
        ClipsMissing: the recordings are not in `folder`.
    """
    return [line(clip.name, clip.transcript, clip.pcm(), 16_000) for clip in clips.load(folder)]


class Utterance:
    """A line while it is being said.

    Attributes:
        line: What is said.
        begun: Set when the first of it has been sent; the moments are known from then on.
        begins_ms: When its first voiced sample is spoken, on the client's clock.
        ends_ms: When its last voiced sample is spoken.
    """

    def __init__(self, said: Line, offset_ms: float) -> None:
        self.line = said
        self.begun = asyncio.Event()
        self.begins_ms = self.ends_ms = float("nan")
        self._offset_ms = offset_ms

    def place(self, stream_starts_ms: float) -> None:
        """The stream's first sample was spoken then, so this line's samples have their moments too."""
        starts_ms = stream_starts_ms + self._offset_ms
        self.begins_ms, self.ends_ms = (starts_ms + voiced_ms for voiced_ms in self.line.voiced_ms)
        self.begun.set()


class Microphone:
    """An endless source for `stream_pcm`: lines when there are any, else silence."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Line, asyncio.Future[Utterance]]] = []
        self._placing: list[Utterance] = []
        self._given_ms = 0.0

    async def say(self, said: Line) -> Utterance:
        """Say a line, behind those that wait; returns when it has begun."""
        taken: asyncio.Future[Utterance] = asyncio.get_running_loop().create_future()
        self._waiting.append((said, taken))
        utterance = await taken
        await utterance.begun.wait()
        return utterance

    async def pieces(self) -> AsyncIterator[bytes]:
        """The audio, for `stream_pcm`, in whole chunks of 20 ms so that a line begins at its chunk's first sample."""
        size = pcm16_bytes(CHUNK_MS, SESSION_RATE_HZ)
        while True:
            pcm = bytes(size)
            if self._waiting:
                said, taken = self._waiting.pop(0)
                pcm = said.pcm + bytes(-len(said.pcm) % size)
                utterance = Utterance(said, self._given_ms)
                self._placing.append(utterance)
                if not taken.done():
                    taken.set_result(utterance)
            self._given_ms += pcm16_ms(len(pcm), SESSION_RATE_HZ)
            yield pcm

    def sent(self, chunk: SentChunk) -> None:
        """For `stream_pcm`'s `on_chunk`: now it is known when each sample is spoken."""
        for utterance in self._placing:
            utterance.place(chunk.starts_at_ms - chunk.offset_ms)
        self._placing.clear()
