"""How fast MiniCPM-o answers and how many sessions it holds, measured over the socket of a server that runs.

Owns what is measured and the report; expects nothing. Called by the suite that runs on hardware, and by a test that shows on a
tiny checkpoint and a CPU that the figures are there. It relies on no weights: random ones speak all the time, as long as they
may, which is the most that a unit can cost; real ones listen and answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import math
import shutil
from collections.abc import Sequence
from typing import Any

import msgspec

from duplex_core.testing.speech import burst
from tests.minicpmo.served import INPUT_HZ, Conversation, call
from tests.support.serving import Served

UNIT_S = 1.0
LISTEN = "response.listen"
AUDIO = "response.output_audio.delta"
TEXT = "response.output_audio_transcript.delta"
ASK_AFTER_S = 5.0
"""A model that has not begun to answer until then is asked to."""
PIECES = 4
"""Of an answer, each about a second, over which the real-time factor is taken."""
MISSED_AT_MOST = 0.02
"""Share of units that may be late before sessions count as too many."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: the median, what 95 of 100 are below, and the longest."""

    p50: float
    p95: float
    most: float
    count: int


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What some sessions at once were like.

    Attributes:
        sessions: how many.
        unit_latency_s: from the last of a second of sound to the first that is told of what was decided about it.
        unit_to_first_audio_s: from the end of the second in which an answer begins to its first sound; once a session.
        missed_units: seconds of which nothing was told before the next one was over.
        units: seconds that were sent in all sessions.
        held: whether the sessions were served in time.
    """

    sessions: int
    unit_latency_s: Spread | None
    unit_to_first_audio_s: Spread | None
    missed_units: int
    units: int
    held: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, as it is written to the report's file.

    Attributes:
        weights: `random`, or the checkpoint's folder.
        profile: the deploy profile.
        start_s: from the start of the server until all stages were up.
        devices: accelerators: their names, and MiB in use before the server, idle with it, and under most sessions.
        real_time_factor: seconds that a second of answer takes when nothing is waited for.
        loads: one for each number of sessions.
        sessions_held: most sessions that were served in time.
        not_run: what the report says nothing about, and why.
    """

    weights: str
    profile: str
    start_s: float
    devices: list[dict[str, Any]]
    real_time_factor: float | None
    loads: list[Load]
    sessions_held: int
    not_run: list[str]


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of some seconds; ``None`` of none."""
    if not values:
        return None
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.95)]
    return Spread(p50=round(at[0], 4), p95=round(at[1], 4), most=round(ordered[-1], 4), count=len(ordered))


async def load(served: Served, sessions: int, *, seconds: int) -> Load:
    """Hold so many sessions at once, each for some seconds: two of speech, the rest of silence."""
    async with contextlib.AsyncExitStack() as calls:
        callers = [await calls.enter_async_context(_call(served, seed=number)) for number in range(sessions)]
        sent = await asyncio.gather(
            *(_send_units(caller, seconds, later=number / sessions) for number, caller in enumerate(callers))
        )
        await asyncio.sleep(UNIT_S)
        for caller in callers:
            await caller.close()
    latencies = [each for caller, begun in zip(callers, sent, strict=True) for each in latencies_of(caller, begun)]
    firsts = [first_audio(caller, begun) for caller, begun in zip(callers, sent, strict=True)]
    missed = sum(latency >= UNIT_S for latency in latencies)
    return Load(
        sessions=sessions,
        unit_latency_s=spread([latency for latency in latencies if latency < UNIT_S]),
        unit_to_first_audio_s=spread([first for first in firsts if first is not None]),
        missed_units=missed,
        units=len(latencies),
        held=missed <= MISSED_AT_MOST * len(latencies),
    )


def _call(served: Served, *, seed: int) -> contextlib.AbstractAsyncContextManager[Conversation]:
    """A session that is sent audio by hand, and that no detector interrupts."""
    options = {"greedy": False, "seed": seed}
    return call(served, microphone=False, options=options, input={"turn_detection": None})


async def _send_units(caller: Conversation, seconds: int, *, later: float) -> list[float]:
    """Send units in real time, ``later`` by part of one; when the last of each was sent."""
    speech = burst(2000.0, INPUT_HZ)
    silence = bytes(2 * INPUT_HZ)
    sent: list[float] = []
    due = caller.now_s + later * UNIT_S
    for pcm in (speech[: len(silence)], speech[len(silence) :], *[silence] * (seconds - 2)):
        due += UNIT_S
        await asyncio.sleep(due - caller.now_s)
        sent.append(caller.now_s)
        await caller.append(pcm)
    return sent


def latencies_of(caller: Conversation, sent: Sequence[float]) -> list[float]:
    """For each unit, seconds until something is told of a decision."""
    told = decisions(caller)
    return [next((at_s for at_s in told if at_s >= begun), math.inf) - begun for begun in sent]


def decisions(caller: Conversation) -> list[float]:
    """When each unit's decision was told: it listens, or words are said; without any words its sound tells."""
    told: list[float] = []
    worded = sounded = 0
    for at_s, event in caller.seen:
        match event["type"]:
            case type_ if type_ == LISTEN:
                told.append(at_s)
            case type_ if type_ == TEXT:
                worded += 1
                told.append(at_s)
            case type_ if type_ == AUDIO:
                sounded += 1
                if sounded > worded:
                    worded = sounded
                    told.append(at_s)
            case _:
                pass
    return told


def first_audio(caller: Conversation, sent: Sequence[float]) -> float | None:
    """From the end of the unit in which the first answer begins to its first sound."""
    answer = next(iter(caller.answers()), None)
    if answer is None or answer.first_audio_s is None:
        return None
    before = [at_s for at_s in sent if at_s <= answer.created_s]
    return answer.first_audio_s - before[-1] if before else None


async def real_time_factor(served: Served, *, seconds: int) -> float | None:
    """Seconds that one second of an answer takes, when the sound under it is all there already; ``None`` of a short answer."""
    async with _call(served, seed=0) as caller:
        await caller.append(burst(2000.0, INPUT_HZ) + bytes(2 * INPUT_HZ * (seconds - 2)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_AFTER_S):
                await caller.until("response.created")
        if not caller.answers():
            await caller.send("response.create")
        enough = [asyncio.create_task(caller.until(AUDIO, count=PIECES)), asyncio.create_task(caller.answered(1))]
        await asyncio.wait(enough, return_when=asyncio.FIRST_COMPLETED)
        for each in enough:
            each.cancel()
        await asyncio.gather(*enough, return_exceptions=True)
        sounds = [(at_s, event) for at_s, event in caller.seen if event["type"] == AUDIO]
        await caller.close()
    if len(sounds) < 2:
        return None
    lasts_s: float = sum(event["metadata"]["audio_duration_ms"] / 1000 for _, event in sounds[1:])
    return (sounds[-1][0] - sounds[0][0]) / lasts_s


async def sessions_held(served: Served, most: int, *, seconds: int) -> list[Load]:
    """Loads of 1, 2, 4 and so on sessions up to ``most``, until there are too many."""
    loads: list[Load] = []
    number = 1
    while number <= most:
        loads.append(await load(served, number, seconds=seconds))
        if not loads[-1].held:
            break
        number = most if number < most < 2 * number else 2 * number
    return loads


async def devices() -> list[dict[str, Any]]:
    """Accelerators by what ``nvidia-smi`` says: name, MiB in use, MiB in all; none where it is not installed."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ("--query-gpu=index,name,memory.used,memory.total", "--format=csv,noheader,nounits")
    process = await asyncio.create_subprocess_exec("nvidia-smi", *asked, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    rows = csv.reader(io.StringIO(told.decode()), skipinitialspace=True)
    return [
        {"index": int(index), "name": name, "used_mib": int(used), "total_mib": int(total)}
        for index, name, used, total in rows
    ]


async def report(
    served: Served,
    *,
    weights: str,
    profile: str,
    start_s: float,
    before: list[dict[str, Any]],
    most: int,
    seconds: int = 12,
) -> Report:
    """Measure everything."""
    idle = await devices()
    factor = await real_time_factor(served, seconds=seconds)
    loads = await sessions_held(served, most, seconds=seconds)
    full = await devices()
    not_run = []
    if weights == "random":
        not_run.append("real weights: what is said, and when the model listens, was not looked at")
    if not full:
        not_run.append("an accelerator: nvidia-smi is not installed; times are those of a CPU")
    return Report(
        weights=weights,
        profile=profile,
        start_s=round(start_s, 1),
        devices=[
            {"name": each["name"], "total_mib": each["total_mib"]}
            | {"before_mib": first["used_mib"], "idle_mib": second["used_mib"], "loaded_mib": each["used_mib"]}
            for first, second, each in zip(before, idle, full, strict=True)
        ],
        real_time_factor=None if factor is None else round(factor, 4),
        loads=loads,
        sessions_held=max((each.sessions for each in loads if each.held), default=0),
        not_run=not_run,
    )
