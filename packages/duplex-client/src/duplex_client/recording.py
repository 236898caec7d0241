"""Writes down what was heard: one file an answer, or the whole conversation.

Both are sinks of a :class:`~duplex_client.player.Player`, so they hold what sounded, up to the very sample at which an
interruption cut it, and nothing that was merely received.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from duplex_client.audio import SESSION_RATE_HZ, Samples, resample_pcm, write_wav
from duplex_client.pacing import SentChunk
from duplex_client.playback import Span
from duplex_client.player import HeardAnswer


def lay_out(pieces: Sequence[tuple[float, bytes, int]], *, zero_ms: float, rate_hz: int) -> Samples:
    """Put 16-bit mono pieces on one time line, by ``(starts_at_ms, pcm, rate_hz)``; gaps are silence, a later piece wins.

    Args:
        pieces: In any order of time.
        zero_ms: The instant of the line's first sample; what lies before it is cut off.
        rate_hz: The line's rate; a piece at another one is resampled, which does no harm at its edges only when it is
            long.
    """
    placed: list[tuple[int, Samples]] = []
    for starts_at_ms, pcm, piece_rate_hz in pieces:
        at = round((starts_at_ms - zero_ms) * rate_hz / 1000.0)
        samples = np.frombuffer(resample_pcm(pcm, piece_rate_hz, rate_hz), dtype="<i2")
        placed.append((max(0, at), samples[max(0, -at) :]))
    line = np.zeros(max((at + len(samples) for at, samples in placed), default=0), dtype=np.int16)
    for at, samples in placed:
        line[at : at + len(samples)] = samples
    return line


def join(pieces: Sequence[tuple[float, bytes, int]], gap_ms: float = 1.0) -> list[tuple[float, bytes, int]]:
    """Join pieces of one rate that follow each other within ``gap_ms``, so that they can be laid out as one."""
    joined: list[tuple[float, bytearray, int]] = []
    end_ms = float("-inf")
    for starts_at_ms, pcm, rate_hz in pieces:
        if joined and joined[-1][2] == rate_hz and abs(starts_at_ms - end_ms) <= gap_ms:
            joined[-1][1].extend(pcm)
        else:
            joined.append((starts_at_ms, bytearray(pcm), rate_hz))
        first_ms, whole, _ = joined[-1]
        end_ms = first_ms + len(whole) / 2 * 1000.0 / rate_hz
    return [(starts_at_ms, bytes(whole), rate_hz) for starts_at_ms, whole, rate_hz in joined]


def _pieces(spans: Sequence[Span]) -> list[tuple[float, bytes, int]]:
    return [(span.starts_at_ms, span.pcm, span.rate_hz) for span in spans]


class WavSink:
    """Writes one wav for each answer as heard: pauses in it as pauses, its end where it was cut.

    Args:
        folder: Where to; made when missing.
        stem: ``answer`` gives ``answer-1.wav``, ``answer-2.wav``… An answer of which nothing sounded gets no file.
    """

    def __init__(self, folder: Path, stem: str = "answer") -> None:
        self.written: list[tuple[str, Path]] = []
        self._folder = folder
        self._stem = stem

    def heard(self, answer: HeardAnswer) -> None:
        """Write the answer's file; ``written`` then names it by the answer's id."""
        if not answer.spans:
            return
        rate_hz = answer.spans[0].rate_hz
        path = self._folder / f"{self._stem}-{len(self.written) + 1}.wav"
        line = lay_out(join(_pieces(answer.spans)), zero_ms=answer.spans[0].starts_at_ms, rate_hz=rate_hz)
        write_wav(path, line, rate_hz)
        self.written.append((answer.response_id, path))


class ConversationRecorder:
    """Collects a conversation and writes it as one stereo wav in real time: the user left, the assistant right.

    Keeps everything in memory until then: about 6 MB a minute at 24 kHz.

    Args:
        rate_hz: Rate of the file.
    """

    def __init__(self, rate_hz: int = SESSION_RATE_HZ) -> None:
        self._rate_hz = rate_hz
        self._user: list[tuple[float, bytes, int]] = []
        self._assistant: list[tuple[float, bytes, int]] = []

    def spoke(self, chunk: SentChunk) -> None:
        """Take what the user said: for ``stream_pcm``'s ``on_chunk``."""
        self._user.append((chunk.starts_at_ms, chunk.pcm, chunk.rate_hz))

    def heard(self, answer: HeardAnswer) -> None:
        """Take what the user heard: for a player's sinks."""
        self._assistant.extend(_pieces(answer.spans))

    def line(self) -> Samples:
        """The conversation so far as samples ``(n, 2)``, from its first sound on."""
        starts = [piece[0] for piece in (*self._user[:1], *self._assistant[:1])]
        zero_ms = min(starts, default=0.0)
        sides = [lay_out(join(side), zero_ms=zero_ms, rate_hz=self._rate_hz) for side in (self._user, self._assistant)]
        both = np.zeros((max(map(len, sides)), 2), dtype=np.int16)
        for channel, samples in enumerate(sides):
            both[: len(samples), channel] = samples
        return both

    def write(self, path: Path) -> None:
        """Write the stereo wav."""
        write_wav(path, self.line(), self._rate_hz)
