"""The ``torch`` runtime, measured: what it adds to a step, and what becomes of frames that come in their own rhythm.

Owns the measurements. Needs torch in the stage's worker process, and not here. Called by the command line. Must never compare
what was not measured in the same process, one shortly after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import sys
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from benchmarks.engine.rounds import quantile
from benchmarks.stages.batched_report import Added, Row
from benchmarks.stages.frames import FRAME_MS, SAMPLES, Bare, Frame, Took
from duplex_core.fence import Fence
from duplex_core.stages import Lane, Resources, StageNews, StageOutput, StageRequest, StageSpec, StageStats
from duplex_core.tensors import Tensor
from duplex_server.engine.stages.processes.pool import Pool
from duplex_server.engine.stages.processes.runtime import start
from duplex_server.engine.stages.processes.settings import ProcessSettings

DRIVER = "duplex_server.engine.stages.batched.driver:BatchedDriver"
HIDDEN = 768
WARM_STEPS = 20
TOGETHER_MS = 50.0
"""How long a step waits for slots without work where all are meant to take part: never, since each has some by then."""
PACED_MS = 2.0


class Stage:
    """A running stage with one session in each of its slots."""

    def __init__(self, sessions: int) -> None:
        """Before it runs."""
        self.pool: Pool
        self.names = [f"session-{index}" for index in range(sessions)]
        self.misses = 0
        noise = random.Random(0)  # noqa: S311 - sound
        samples = array("f", [noise.uniform(-1, 1) for _ in range(SAMPLES)])
        self._frame = Frame(samples=Tensor(dtype="float32", shape=(SAMPLES,), data=samples))
        self._answers: dict[str, asyncio.Future[StageOutput]] = {}

    def news(self, news: StageNews) -> None:
        """What the stage tells."""
        if isinstance(news, StageOutput):
            self.misses += sum(each.deadline_misses for each in news.metrics)
            self._answers.pop(news.request_id).set_result(news)
        elif not isinstance(news, StageStats):
            raise TypeError(f"the stage has failed: {news}")

    def ask(self, who: str, payload: Any = None) -> asyncio.Future[StageOutput]:
        """Submit a request, by default a frame; the future is the answer."""
        request_id = str(time.perf_counter_ns()) + who
        self._answers[request_id] = asyncio.get_running_loop().create_future()
        request = StageRequest(
            stage="network",
            request_id=request_id,
            fence=Fence(session_id=who),
            lane=Lane.OUTPUT,
            payload=payload or self._frame,
        )
        answer = self._answers[request_id]
        self.pool.submit(request)
        return answer

    async def bare(self, steps: int) -> Took:
        """A step of the loop that knows no runtime."""
        answer = await self.ask(self.names[0], Bare(steps=steps, samples=self._frame.samples))
        assert isinstance(answer.payload, Took)
        return answer.payload

    async def queued(self, steps: int) -> Took:
        """A step while the work of all further steps waits already."""
        ends: list[float] = []
        cpu = self._cpu_s()
        answers = [self.ask(who) for _ in range(steps + 1) for who in self.names]
        for answer in answers:
            answer.add_done_callback(lambda _: ends.append(time.perf_counter()))
        await asyncio.gather(*answers)
        await asyncio.sleep(0)
        took = ends[-1] - ends[len(self.names) - 1]
        return Took(ms=took * 1000 / steps, cpu_ms=(self._cpu_s() - cpu) * 1000 / (steps + 1))

    async def rounds(self, steps: int) -> Took:
        """From one step to the next where each session sends its next frame when it has its answer."""

        async def one(who: str) -> None:
            for _ in range(steps):
                await self.ask(who)

        began, cpu = time.perf_counter(), self._cpu_s()
        await asyncio.gather(*map(one, self.names))
        took, used = time.perf_counter() - began, self._cpu_s() - cpu
        return Took(ms=took * 1000 / steps, cpu_ms=used * 1000 / steps)

    async def paced(self, seconds: float) -> list[float]:
        """Each session sends a frame every 80 ms, in a phase of its own: milliseconds from each frame to its answer."""
        took: list[float] = []
        phases = random.Random(1)  # noqa: S311 - the same phases in every run

        def ask(who: str) -> asyncio.Future[StageOutput]:
            began = time.perf_counter()
            answer = self.ask(who)
            answer.add_done_callback(lambda _: took.append((time.perf_counter() - began) * 1000))
            return answer

        async def one(who: str, phase_s: float) -> None:
            began = time.perf_counter() + phase_s
            answers = []
            for turn in range(int(seconds * 1000 / FRAME_MS)):
                await asyncio.sleep(max(0.0, began + turn * FRAME_MS / 1000 - time.perf_counter()))
                answers.append(ask(who))
            await asyncio.gather(*answers)

        self.misses = 0
        await asyncio.gather(*(one(who, phases.random() * FRAME_MS / 1000) for who in self.names))
        await asyncio.sleep(0)
        return took

    def _cpu_s(self) -> float:
        """Processor time of the stage's process so far; the clock's number is what ``clock_getcpuclockid(3)`` makes of its id."""
        (pid,) = self.pool.pids
        return time.clock_gettime((~pid << 3) | 2)


@contextlib.asynccontextmanager
async def running(sessions: int, *, core: int, gather_ms: float) -> AsyncIterator[Stage]:
    """A stage whose process has ``core`` to itself, as far as this benchmark goes."""
    spec = StageSpec(
        name="network",
        factory="benchmarks.stages.network:Network",
        runtime="torch",
        options={"hidden": HIDDEN, "gather_ms": gather_ms},
        payloads="benchmarks.stages.frames:Payload",
        resources=Resources(devices=("cpu",), sessions=sessions, chats=0),
    )
    stage = Stage(sessions)
    stage.pool = await start(spec, stage.news, driver=DRIVER, settings=ProcessSettings())
    try:
        for pid in stage.pool.pids:
            os.sched_setaffinity(pid, {core})
        for who in stage.names:
            stage.pool.place(who)
        yield stage
    finally:
        await stage.pool.aclose()


async def measure(counts: Sequence[int], *, steps: int, repeats: int, seconds: float, core: int) -> list[Row]:
    """A row for each number of sessions. The ways to step take turns, so that they stand side by side in time."""
    rows = []
    for sessions in counts:
        taken: dict[str, list[Took]] = {"bare": [], "queued": [], "rounds": []}
        async with running(sessions, core=core, gather_ms=TOGETHER_MS) as stage:
            ways: dict[str, Callable[[int], Awaitable[Took]]]
            ways = {"bare": stage.bare, "queued": stage.queued, "rounds": stage.rounds}
            for way in ways.values():
                await way(WARM_STEPS)
            for _ in range(repeats):
                for name, way in ways.items():
                    taken[name].append(await way(steps))
        async with running(sessions, core=core, gather_ms=PACED_MS) as stage:
            await stage.paced(0.5)
            took = await stage.paced(seconds)
            misses = stage.misses
        row = Row(
            sessions=sessions,
            bare=_median(taken["bare"]),
            queued=_median(taken["queued"]),
            rounds=_median(taken["rounds"]),
            added=added(taken["bare"], taken["queued"]),
            frames=len(took),
            misses=misses,
            answer_50_ms=quantile(took, 0.5),
            answer_99_ms=quantile(took, 0.99),
        )
        print(f"{sessions:3} sessions: {row.bare.cpu_ms:.2f} ms a step, and {row.added.cpu:.1%}", file=sys.stderr)
        rows.append(row)
    return rows


def added(bare: Sequence[Took], queued: Sequence[Took]) -> Added:
    """What the runtime adds, from measurements that were made in pairs."""
    pairs = list(zip(bare, queued, strict=True))
    return Added(
        clock=statistics.median(mine.ms / alone.ms - 1 for alone, mine in pairs),
        cpu=statistics.median(mine.cpu_ms / alone.cpu_ms - 1 for alone, mine in pairs),
    )


def _median(taken: Sequence[Took]) -> Took:
    return Took(
        ms=statistics.median(each.ms for each in taken), cpu_ms=statistics.median(each.cpu_ms for each in taken)
    )
