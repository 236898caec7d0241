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
from benchmarks.engine.rounds import PERIOD, PIECE_S, WARM_S, Setup, crowd, quantile
from benchmarks.engine.talker import Talker

CANCEL = b'{"type":"response.cancel"}'
CLEARED = "output_audio_buffer.cleared"
GROUPS = 5
"""Groups that speak one after the other, so that there are some two hundred interruptions a second and not a thousand."""
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

    All send the same samples in the same pieces, so that the same piece of the speech decides in each. It is the earliest
    after which any session stopped: none can know before.
    """
    stops: list[Stop] = []
    stale = 0
    async with running("engine", core=core) as child, crowd(child, Setup.VAD, sessions, None) as everybody:
        await asyncio.sleep(WARM_S)
        for _ in range(times):
            for talker in everybody.talkers:
                talker.forget()
            begins = everybody.speak(GROUPS)
            await asyncio.sleep((GROUPS + 1) * PERIOD * PIECE_S + EVERY_S)
            pairs = list(zip(everybody.talkers, begins, strict=True))
            decides = min((_pieces_before(talker) - begin for talker, begin in pairs if _cleared(talker)), default=0)
            for talker, begin in pairs:
                stop, late = _stop(talker, talker.sent_appends[begin + decides])
                stops += [stop] if stop is not None else []
                stale += late
    return _summary("the server's detector", sessions, sessions * times, stops, stale)


def _cleared(talker: Talker) -> list[float]:
    return [at for at, event in talker.events if event["type"] == CLEARED]


def _pieces_before(talker: Talker) -> int:
    """Number of the last append before the session's answer was over."""
    over_at = _cleared(talker)[0]
    return max(number for number, at in enumerate(talker.sent_appends) if at < over_at)


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
