"""How fast old audio stops: from the frame that decides to the last old audio on the socket, while everybody talks.

Owns the two ways of interrupting that are measured: by a command, and by speech that the server's detector hears. Called by the
command line. The times are the client's: from the moment at which it hands the frame to its socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from benchmarks.engine.child import running
from benchmarks.engine.rounds import SPEECH_S, WARM_S, Crowd, Setup, crowd, quantile
from benchmarks.engine.talker import Talker

CANCEL = b'{"type":"response.cancel"}'
CLEARED = "output_audio_buffer.cleared"
EVERY_S = 4.0
"""From one interruption of a session to its next; by then the model speaks again."""


class Interruptions(msgspec.Struct, frozen=True, kw_only=True):
    """What came of ``count`` interruptions. ``missed`` had no end of the sound after them; ``stale`` counts audio after it."""

    decided_by: str
    sessions: int
    count: int
    missed: int
    stale: int
    median_ms: float
    late_99_ms: float
    most_ms: float


class Stop(msgspec.Struct, frozen=True):
    """One interruption: when the frame that decided was sent, and when no old audio came any more; seconds."""

    decided_at: float
    over_at: float


async def by_command(sessions: int, *, times: int, core: int) -> Interruptions:
    """Every session says ``response.cancel``, at moments spread over a second."""
    stops: list[Stop] = []
    stale = 0
    async with running("engine", core=core) as child, crowd(child, Setup.ENGINE, sessions, None) as everybody:
        await asyncio.sleep(WARM_S)
        for _ in range(times):
            began = time.perf_counter()
            for talker in everybody.talkers:
                talker.forget()
            sent = await _cancel(everybody.talkers)
            await asyncio.sleep(began + EVERY_S - time.perf_counter())
            for talker, decided_at in zip(everybody.talkers, sent, strict=True):
                stop, late = _stop(talker, decided_at)
                stops += [stop] if stop is not None else []
                stale += late
    return _summary("the client's `response.cancel`", sessions, sessions * times, stops, stale)


async def _cancel(talkers: Sequence[Talker]) -> list[float]:
    """Send the command on each; when."""
    sent = []
    for talker in talkers:
        sent.append(time.perf_counter())
        talker.send(CANCEL)
        await asyncio.sleep(1.0 / len(talkers))
    return sent


async def by_speech(sessions: int, *, times: int, core: int) -> Interruptions:
    """Every session's user speaks over the answer until the detector has heard enough.

    All hear the same samples in the same pieces, so that the same piece decides in each. It is the earliest after which any
    session stopped: none can know before.
    """
    stops: list[Stop] = []
    stale = 0
    async with running("engine", core=core) as child, crowd(child, Setup.VAD, sessions, None) as everybody:
        await asyncio.sleep(WARM_S)
        for _ in range(times):
            began = time.perf_counter()
            pieces = await _speak(everybody)
            await asyncio.sleep(began + EVERY_S - time.perf_counter())
            decides = min((_pieces_before(talker) for talker in everybody.talkers if _cleared(talker)), default=0)
            for talker in everybody.talkers:
                stop, late = _stop(talker, talker.sent_appends[decides]) if decides < pieces else (None, 0)
                stops += [stop] if stop is not None else []
                stale += late
    return _summary("the server's detector", sessions, sessions * times, stops, stale)


async def _speak(everybody: Crowd) -> int:
    """Let all begin to speak with their next append, and note from there on; how many appends are speech."""
    for talker in everybody.talkers:
        talker.forget()
    everybody.speak()
    await asyncio.sleep(SPEECH_S)
    return min(len(talker.sent_appends) for talker in everybody.talkers)


def _cleared(talker: Talker) -> list[float]:
    return [at for at, event in talker.events if event["type"] == CLEARED]


def _pieces_before(talker: Talker) -> int:
    """Index of the last append before the session's answer was over."""
    over_at = _cleared(talker)[0]
    return max(index for index, at in enumerate(talker.sent_appends) if at < over_at)


def _stop(talker: Talker, decided_at: float) -> tuple[Stop | None, int]:
    """When the old answer's sound was over for this client, and how much of it came after it was said to be over."""
    over = _cleared(talker)
    if not over:
        return None, 0
    begun = [at for at, event in talker.events if event["type"] == "response.created" and at > over[0]]
    next_at = begun[0] if begun else float("inf")
    late = [at for at in talker.audio_at if over[0] < at < next_at]
    return Stop(decided_at, max([over[0], *late])), len(late)


def _summary(decided_by: str, sessions: int, count: int, stops: Sequence[Stop], stale: int) -> Interruptions:
    took = [(stop.over_at - stop.decided_at) * 1000 for stop in stops]
    return Interruptions(
        decided_by=decided_by,
        sessions=sessions,
        count=count,
        missed=count - len(stops),
        stale=stale,
        median_ms=quantile(took, 0.5),
        late_99_ms=quantile(took, 0.99),
        most_ms=max(took, default=float("nan")),
    )
