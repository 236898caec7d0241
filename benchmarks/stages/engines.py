"""The ``vllm`` runtime, measured: what it adds to a step over a bare loop of the same appends on the same engine.

Owns the measurements. Needs vllm in this process, where one stage's driver runs as its worker process would run it, so that a
bare loop can use the very same engine; a second one runs behind a real worker process. Called by the command line. Must never
compare what was not measured one shortly after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.stages.engines_report import Row
from duplex_core.fence import Fence
from duplex_core.stages import Lane, Resources, StageNews, StageOutput, StageRequest, StageSpec, StageStats
from duplex_core.workers import Append, Sampling
from duplex_server.engine.stages.processes.pool import Pool
from duplex_server.engine.stages.processes.runtime import start
from duplex_server.engine.stages.processes.settings import ProcessSettings
from tests.support import vllm_pipeline as pipeline
from tests.support.vllm_driven import Driven

DRIVER = "duplex_server.engine.stages.vllm.driver:VllmDriver"
CONTEXT = 1024
FED = 4
WARM = 5
MOST_SESSIONS = 4

Way = Callable[[int, int, int, bool], Awaitable[float]]
"""Runs ``(sessions, appends, tokens, hidden)`` and gives the milliseconds that an append of a session took."""


def append(tokens: int, hidden: bool) -> Append:
    """Four ids, and tokens after them."""
    return Append(ids=tuple(range(1, FED + 1)), sampling=Sampling(max_tokens=tokens), hidden=hidden)


async def in_turn(sessions: int, appends: int, one: Callable[[str], Awaitable[Any]]) -> float:
    """Each session does its appends one after the other, all sessions at once; milliseconds an append."""

    async def session(name: str) -> None:
        for _ in range(appends):
            await one(name)

    began = time.perf_counter()
    await asyncio.gather(*(session(f"s{index}") for index in range(sessions)))
    return (time.perf_counter() - began) * 1000 / appends


class Bare:
    """The loop that knows no runtime: vLLM's own resumable requests, with what each append needs and nothing else."""

    def __init__(self, engine: Any) -> None:
        """Use the engine that a driver has started."""
        self._engine = engine

    async def run(self, sessions: int, appends: int, tokens: int, hidden: bool) -> float:
        """Append to ``sessions`` requests at once."""
        from vllm import SamplingParams  # noqa: PLC0415 - heavy
        from vllm.engine.protocol import StreamingInput  # noqa: PLC0415
        from vllm.inputs.engine import tokens_input  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        queues: dict[str, asyncio.Queue[Any]] = {f"s{index}": asyncio.Queue() for index in range(sessions)}
        last: dict[str, list[int]] = {name: [] for name in queues}
        contexts = dict.fromkeys(queues, 0)
        keys = iter(range(1_000_000_000, 2_000_000_000))

        async def inputs(name: str) -> AsyncIterator[Any]:
            while True:
                yield await queues[name].get()

        def params(number: int, key: int) -> Any:
            wanted = {"stream": 1_000_000 + number, "key": key, "hidden": True, "decider": None} if hidden else None
            return SamplingParams(
                max_tokens=tokens,
                temperature=0.0,
                output_kind=RequestOutputKind.DELTA,
                detokenize=False,
                extra_args={"duplex": wanted} if wanted else None,
            )

        base = time.perf_counter_ns()
        outputs = {name: self._engine.generate(inputs(name), params(0, 0), f"bare-{base}-{name}") for name in queues}

        async def one(name: str) -> None:
            key = next(keys)
            prompt = tokens_input([*last[name], *range(1, FED + 1)])
            queues[name].put_nowait(StreamingInput(prompt=prompt, sampling_params=params(int(name[1:]), key)))
            chosen: list[int] = []
            while True:
                part = (await anext(outputs[name])).outputs[0]
                chosen += part.token_ids
                if part.finish_reason:
                    break
            count = len(last[name]) + FED + len(chosen) - 1
            if hidden:
                ((shape, *_),) = await self._engine.collective_rpc("duplex_collect", args=(key, contexts[name], count))
                assert shape, "the hidden states are there"
            contexts[name] += count
            last[name] = chosen[-1:]

        try:
            return await in_turn(sessions, appends, one)
        finally:
            for each in outputs.values():
                await each.aclose()


class InProcess:
    """The runtime's driver, in this process."""

    def __init__(self, stage: Driven) -> None:
        """Use a stage that runs."""
        self._stage = stage

    async def run(self, sessions: int, appends: int, tokens: int, hidden: bool) -> float:
        """One request for each append, as a program makes it."""
        names = [f"s{index}" for index in range(sessions)]
        for name in names:
            self._stage.driver.place(name)
        work = pipeline.Work(appends=(append(tokens, hidden),))
        try:
            return await in_turn(sessions, appends, lambda name: self._stage.ask(name, work))
        finally:
            for name in names:
                self._stage.driver.release(name)
            self._stage.answers.clear()


class Behind:
    """The whole runtime: a pool, and a worker process."""

    def __init__(self) -> None:
        """Before it runs."""
        self.pool: Pool
        self._answers: dict[str, asyncio.Future[None]] = {}

    def news(self, news: StageNews) -> None:
        """What the stage tells."""
        if isinstance(news, StageOutput):
            if news.final:
                self._answers.pop(news.request_id).set_result(None)
        elif not isinstance(news, StageStats):
            for answer in self._answers.values():
                answer.set_exception(RuntimeError(f"the stage has failed: {news.error.message}"))
            self._answers.clear()

    async def run(self, sessions: int, appends: int, tokens: int, hidden: bool) -> float:
        """The same requests, from this process to the other."""
        names = [f"s{index}" for index in range(sessions)]
        for name in names:
            self.pool.place(name)
        work = pipeline.Work(appends=(append(tokens, hidden),))

        def ask(name: str) -> asyncio.Future[None]:
            request_id = f"{name}-{time.perf_counter_ns()}"
            answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
            fence = Fence(session_id=name)
            self.pool.submit(
                StageRequest(stage="thinker", request_id=request_id, fence=fence, lane=Lane.OUTPUT, payload=work)
            )
            return answer

        try:
            return await in_turn(sessions, appends, ask)
        finally:
            for name in names:
                self.pool.release(name)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[dict[str, Way]]:
    """The three ways, on engines of their own but for the first two, which share one."""
    with tempfile.TemporaryDirectory() as folder:
        model = pipeline.make_checkpoint(Path(folder) / "model", pipeline.THINKER_TOKENS, 0)
        options = {"model": str(model), "context": CONTEXT}
        spec = StageSpec(
            name="thinker",
            factory="tests.support.vllm_pipeline:program",
            runtime="vllm",
            options=options,
            payloads="tests.support.vllm_pipeline:Payload",
            resources=Resources(sessions=MOST_SESSIONS, chats=1, devices=("cpu",)),
        )
        behind, stage = Behind(), Driven("thinker")
        behind.pool = await start(spec, behind.news, driver=DRIVER, settings=ProcessSettings())
        try:
            await stage.start(model, sessions=MOST_SESSIONS, context=CONTEXT)
            bare = Bare(stage.driver.engine._engine)  # noqa: SLF001 - the runtime gives it to nobody
            yield {"bare": bare.run, "driver": InProcess(stage).run, "process": behind.run}
        finally:
            await stage.stop()
            await behind.pool.aclose()


async def measure(kinds: Sequence[tuple[int, int, bool]], *, appends: int, repeats: int) -> list[Row]:
    """A row for each ``(sessions, tokens, hidden)``. The ways take turns, so that they stand side by side in time."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    async with running() as ways:
        for sessions, tokens, hidden in kinds:
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for way in ways.values():
                await way(sessions, WARM, tokens, hidden)
            for _ in range(repeats):
                for name, way in ways.items():
                    taken[name].append(await way(sessions, appends, tokens, hidden))
            row = Row(
                sessions=sessions,
                tokens=tokens,
                hidden=hidden,
                bare_ms=statistics.median(taken["bare"]),
                driver_ms=statistics.median(taken["driver"]),
                process_ms=statistics.median(taken["process"]),
                driver_adds=_added(taken["driver"], taken["bare"]),
                process_adds=_added(taken["process"], taken["bare"]),
            )
            told = f"{row.bare_ms:.2f} ms bare, driver {row.driver_adds:+.1%}, behind a process {row.process_adds:+.1%}"
            print(f"{sessions} sessions, {tokens} tokens{', hidden states' * hidden}: {told}", file=sys.stderr)
            rows.append(row)
    return rows


def _added(taken: Sequence[float], bare: Sequence[float]) -> float:
    """What is added to the bare loop, as a share of it: the median over rounds, each compared with what ran next to it."""
    return statistics.median(one / other for one, other in zip(taken, bare, strict=True)) - 1
