"""A stage on vLLM driven in the test's own process, as its worker process drives it.

Owns the sink that records what the driver tells, and what a test asks of it. Called by the tests of the ``vllm`` runtime and its
benchmark. Imports vllm only when a stage starts. Holds no expectations.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duplex_core.errors import ErrorInfo
from duplex_core.fence import Fence
from duplex_core.stages import Forward, Lane, Purpose, Resources, StageMetrics, StageRequest, StageSpec
from duplex_core.workers import Append, Segment
from duplex_server.engine.stages.processes.driver import Seats
from duplex_server.engine.stages.vllm.driver import VllmDriver
from tests.support import vllm_pipeline as pipeline

WAIT_S = 60.0


class Failed(Exception):
    """A request failed; ``info`` says how."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class Answer:
    """What has come of one request."""

    def __init__(self, request: StageRequest) -> None:
        self.request = request
        self.at = time.monotonic()
        self.payloads: list[Any] = []
        self.forwards: list[Any] = []
        self.metrics: StageMetrics | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.some = asyncio.Event()

    @property
    def segments(self) -> list[Segment]:
        """The segments among the payloads."""
        return [each.segment for each in self.payloads if isinstance(each, pipeline.Gave)]


class Driven:
    """One driver, and its sink (:class:`~duplex_server.engine.stages.processes.driver.Sink`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: dict[int, Answer] = {}
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.gauges: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._told = asyncio.Event()
        self.driver = VllmDriver(self)
        self._numbers = itertools.count()

    async def start(
        self, model: Path, *, sessions: int = 4, chats: int = 1, memory_bytes: int | None = None, **options: Any
    ) -> None:
        """Start the tiny program's engine in this process."""
        spec = StageSpec(
            name=self.name,
            factory="tests.support.vllm_pipeline:program",
            runtime="vllm",
            options={"model": str(model), **options},
            payloads="tests.support.vllm_pipeline:Payload",
            resources=Resources(sessions=sessions, chats=chats, memory_bytes=memory_bytes),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what vllm and its own imports warn of is theirs
            await self.driver.start(spec, "cpu", Seats(sessions=sessions, chats=chats))

    async def stop(self) -> None:
        """Stop it, and let go of everything."""
        await self.driver.stop()
        del self.driver
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vllm leaves a context of its sockets to the collector
            gc.collect()

    def submit(self, session_id: str, payload: Any, purpose: Purpose = Purpose.SESSION) -> Answer:
        """Submit a request."""
        request = StageRequest(
            stage=self.name,
            request_id=f"q{next(self._numbers)}",
            fence=Fence(session_id=session_id),
            lane=Lane.OUTPUT,
            payload=payload,
            purpose=purpose,
        )
        answer = self.answers[id(request)] = Answer(request)
        self.driver.submit(request)
        return answer

    async def ask(self, session_id: str, payload: Any, purpose: Purpose = Purpose.SESSION) -> Answer:
        """Submit a request and wait for its end.

        Raises:
            Failed: it failed.
        """
        answer = self.submit(session_id, payload, purpose)
        async with asyncio.timeout(WAIT_S):
            await answer.done
        return answer

    async def append(self, session_id: str, append: Append, **work: Any) -> Segment:
        """Run one append."""
        return (await self.ask(session_id, pipeline.Work(appends=(append,), **work))).segments[0]

    async def steps(self, count: int) -> None:
        """Wait until the engine has made so many steps more: something is in the middle of its tokens."""
        wanted = self.driver.engine.steps + count
        async with asyncio.timeout(WAIT_S):
            while self.driver.engine.steps < wanted:  # noqa: ASYNC110 - vLLM tells nobody of a step
                await asyncio.sleep(0.0005)

    async def told(self) -> None:
        """Wait until the driver tells its figures next."""
        self._told.clear()
        async with asyncio.timeout(WAIT_S):
            await self._told.wait()

    def output(
        self,
        request: StageRequest,
        payload: Any,
        *,
        forward: Forward | None = None,
        final: bool = False,
        metrics: tuple[StageMetrics, ...] = (),
    ) -> None:
        """Record one piece."""
        answer = self.answers[id(request)]
        if payload is not None:
            answer.payloads.append(payload)
        if forward is not None:
            answer.forwards.append(forward.payload)
        answer.some.set()
        if final:
            (answer.metrics,) = metrics
            answer.done.set_result(None)

    def failed(self, request: StageRequest, info: ErrorInfo, *, metrics: tuple[StageMetrics, ...] = ()) -> None:
        """Record a failure."""
        answer = self.answers[id(request)]
        (answer.metrics,) = metrics
        if not answer.done.done():
            answer.done.set_exception(Failed(info))

    def submitted_at(self, request: StageRequest) -> float:
        """When it was submitted."""
        return self.answers[id(request)].at

    def stats(
        self,
        gauges: Mapping[str, float],
        *,
        counts: Mapping[str, int] | None = None,
        samples: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Record figures."""
        self.gauges = dict(gauges)
        self._told.set()
        for name, number in (counts or {}).items():
            self.counts[name] = self.counts.get(name, 0) + number

    def dead(self, reason: str) -> None:
        """Record the end."""
        if not self.reason.done():
            self.reason.set_result(reason)
