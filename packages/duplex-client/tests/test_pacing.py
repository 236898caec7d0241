"""Audio goes out when it would have been spoken, whatever the sizes of what comes in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from duplex_client.pacing import SentChunk, check_chunk_ms, cut, paced_chunks
from tests.clients.virtual import SelfWindingClock, VirtualClock, settle


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.mark.parametrize(
    "parts", [(b"abcdefgh",), (b"a", b"bcdefg", b"h"), (b"abcd", b"", b"efgh"), (b"abcdef", b"gh")]
)
async def test_pieces_of_any_size_become_chunks_of_one_size(parts: tuple[bytes, ...]) -> None:
    assert [chunk async for chunk in cut(pieces(*parts), 4)] == [b"abcd", b"efgh"]


async def test_the_last_chunk_may_be_shorter() -> None:
    assert [chunk async for chunk in cut(b"abcdef", 4)] == [b"abcd", b"ef"]


async def test_half_a_sample_at_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match="odd number of bytes"):
        _ = [chunk async for chunk in cut(b"abcde", 4)]


async def collect(clock: VirtualClock, pcm: bytes | AsyncIterator[bytes], *, paced: bool = True) -> list[SentChunk]:
    return [c async for c in paced_chunks(pcm, rate_hz=8000, chunk_ms=20, clock=clock, paced=paced)]


async def test_each_chunk_goes_when_its_last_sample_was_spoken() -> None:
    clock = SelfWindingClock(500.0)
    chunks = await collect(clock, bytes(320 * 2 + 160))
    assert clock.waits == [520.0, 540.0, 550.0]
    assert [(c.offset_ms, c.starts_at_ms) for c in chunks] == [(0.0, 500.0), (20.0, 520.0), (40.0, 540.0)]


async def test_a_late_chunk_delays_none_after_it() -> None:
    clock = SelfWindingClock(0.0)

    async def stalls() -> AsyncIterator[bytes]:
        for index in range(6):
            if index == 2:
                clock.time_ms += 55.0  # the sender was held up
            yield bytes(320)

    source = paced_chunks(stalls(), rate_hz=8000, chunk_ms=20, clock=clock, paced=True)
    seen = [clock.time_ms async for _ in source]
    assert clock.waits == [20.0, 40.0, 60.0, 80.0, 100.0, 120.0]
    assert seen == [20.0, 40.0, 95.0, 95.0, 100.0, 120.0]


async def test_due_times_do_not_drift_over_an_hour_of_odd_chunks() -> None:
    clock = SelfWindingClock(0.0)
    total = 0
    # 30 ms at 8 kHz, for the chunks of an hour, without holding an hour of audio
    async for chunk in paced_chunks(pieces(*[bytes(480)] * 12_000), rate_hz=8000, chunk_ms=30, clock=clock, paced=True):
        total += len(chunk.pcm)
    assert clock.time_ms == pytest.approx(total / 16, abs=1e-6)


async def test_without_pacing_nothing_waits() -> None:
    clock = SelfWindingClock(7.0)
    assert len(await collect(clock, bytes(3200), paced=False)) == 10
    assert clock.waits == []


async def test_stopping_early_closes_the_source() -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(320)
        finally:
            ended.set()

    clock = VirtualClock()

    async def run() -> None:
        async for _ in paced_chunks(endless(), rate_hz=8000, chunk_ms=20, clock=clock, paced=True):
            pass

    task = asyncio.create_task(run())
    await clock.advance(50.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()
    assert ended.is_set()


@pytest.mark.parametrize("chunk_ms", [0, 4.9, 1001, -20])
def test_a_senseless_chunk_length_is_refused(chunk_ms: float) -> None:
    with pytest.raises(ValueError, match="5 to 1000"):
        check_chunk_ms(chunk_ms)
