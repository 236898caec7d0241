"""Cuts audio into chunks and lets each go when it would have been spoken.

Owns the arithmetic of `stream_pcm`: chunk sizes, due times. Called by :class:`~duplex_client.base.BaseDuplexClient`.
Due times are counted from the start, never from the last chunk, so that a late one does not delay those after it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing

import msgspec

from duplex_client.timing import Clock
from duplex_core.audio import PCM16_BYTES_PER_SAMPLE, pcm16_bytes, pcm16_ms

CHUNK_LIMITS_MS = (5, 1000)


class SentChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk of the user's audio (16-bit mono PCM) and when it was spoken.

    ``offset_ms`` counts from the stream's first sample; ``starts_at_ms`` is when the chunk's first sample was spoken, on
    the client's clock: for a paced stream, real time.
    """

    pcm: bytes
    rate_hz: int
    offset_ms: float
    starts_at_ms: float


def check_chunk_ms(chunk_ms: float) -> None:
    """Refuse a chunk length that makes no sense.

    Raises:
        ValueError: it is not within 5 to 1000 ms.
    """
    low, high = CHUNK_LIMITS_MS
    if not low <= chunk_ms <= high:
        raise ValueError(f"chunk_ms is {chunk_ms:g}; it must lie in {low} to {high}")


async def cut(pcm: bytes | AsyncIterable[bytes], size: int) -> AsyncGenerator[bytes, None]:
    """``pcm`` in pieces of ``size`` bytes, the last one perhaps shorter; an async generator handed in is closed.

    Raises:
        ValueError: the whole is an odd number of bytes, so no 16-bit audio.
    """
    waiting = bytearray()
    async with aclosing(_parts(pcm)) as parts:
        async for part in parts:
            waiting += part
            while len(waiting) >= size:
                yield bytes(waiting[:size])
                del waiting[:size]
    if len(waiting) % PCM16_BYTES_PER_SAMPLE:
        raise ValueError("the audio has an odd number of bytes; 16-bit PCM is wanted")
    if waiting:
        yield bytes(waiting)


async def _parts(pcm: bytes | AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    if isinstance(pcm, bytes | bytearray | memoryview):
        yield bytes(pcm)
    elif isinstance(pcm, AsyncGenerator):
        async with aclosing(pcm):
            async for part in pcm:
                yield part
    else:
        async for part in pcm:
            yield part


async def paced_chunks(
    pcm: bytes | AsyncIterable[bytes], *, rate_hz: int, chunk_ms: float, clock: Clock, paced: bool
) -> AsyncGenerator[SentChunk, None]:
    """The chunks of ``pcm``, each given when its last sample has been spoken, as a microphone would; or all at once.

    Without pacing a chunk counts as just spoken when it comes, as a live source's has been.
    """
    size = pcm16_bytes(chunk_ms, rate_hz)
    started_ms = clock.now_ms()
    offset_ms = 0.0
    async with aclosing(cut(pcm, size)) as chunks:
        async for chunk in chunks:
            duration_ms = pcm16_ms(len(chunk), rate_hz)
            if paced:
                await clock.sleep_until(started_ms + offset_ms + duration_ms)
            starts_at_ms = started_ms + offset_ms if paced else clock.now_ms() - duration_ms
            yield SentChunk(pcm=chunk, rate_hz=rate_hz, offset_ms=offset_ms, starts_at_ms=starts_at_ms)
            offset_ms += duration_ms
