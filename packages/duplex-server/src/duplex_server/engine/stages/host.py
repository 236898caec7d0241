"""The stages of one served model: started, reached by name, watched, stopped.

Owns the running stages and the clocks of the requests to them. Called by both halves of the engine: they submit and abort
here, and give the one function to which every reply goes. Must never look inside a payload, know a session, or decide what
a failure means.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from duplex_core.errors import ErrorCode, error
from duplex_core.fence import Fence
from duplex_core.stages import RunningStage, StageFailed, StagePlan, StageReply, StageRequest, StageRuntimeSpec
from duplex_server.engine.metrics import EngineMetrics

log = logging.getLogger(__name__)

Reply = Callable[[StageReply], None]


class StageStartError(RuntimeError):
    """The stages of a model could not be started; the message says which one and why."""


class StageHost:
    """Every stage of one model."""

    def __init__(self, runtimes: Mapping[str, StageRuntimeSpec], reply: Reply, metrics: EngineMetrics) -> None:
        """Make a host without stages; ``reply`` is called on the event loop with every reply."""
        self._runtimes = runtimes
        self._reply = reply
        self._metrics = metrics
        self._stages: dict[str, RunningStage] = {}
        self._begun: dict[tuple[str, str, str], float] = {}

    async def start(self, plan: StagePlan) -> None:
        """Start the stages of ``plan``, in its order; when one fails, those that run are stopped.

        Raises:
            StageStartError: an unknown runtime, or a stage that did not start.
        """
        for stage in plan.stages:
            if stage.runtime not in self._runtimes:
                known = ", ".join(sorted(self._runtimes))
                raise StageStartError(f"stage {stage.name} wants the runtime {stage.runtime!r}; installed are: {known}")
        try:
            for stage in plan.stages:
                began = asyncio.get_running_loop().time()
                try:
                    self._stages[stage.name] = await self._runtimes[stage.runtime].start(stage, self._replied)
                except Exception as exc:
                    raise StageStartError(f"stage {stage.name} did not start: {exc}") from exc
                log.info("stage %s is up after %.1f s", stage.name, asyncio.get_running_loop().time() - began)
        except BaseException:
            await self.aclose()
            raise

    def submit(self, request: StageRequest) -> None:
        """Give work to a stage; one that is not healthy answers with a fatal failure.

        Raises:
            LookupError: the plan has no such stage: a fault of the model package.
        """
        stage = self._stages.get(request.stage)
        if stage is None:
            raise LookupError(f"there is no stage {request.stage!r}; the plan has: {', '.join(self._stages) or 'none'}")
        loop = asyncio.get_running_loop()
        if not stage.healthy():
            loop.call_soon(self._reply, _refused(request))
            return
        self._begun[_key(request.fence, request.stage, request.request_id)] = loop.time()
        stage.submit(request)

    def abort(self, fence: Fence, stage: str, request_id: str) -> None:
        """Stop one request; nothing happens when it has ended already."""
        self._begun.pop(_key(fence, stage, request_id), None)
        running = self._stages.get(stage)
        if running is not None:
            running.abort(fence.session_id, request_id)

    def healthy(self) -> bool:
        """Whether every stage takes requests."""
        return all(stage.healthy() for stage in self._stages.values())

    async def aclose(self) -> None:
        """Stop the stages, the last one first, each also when another fails to or this is cancelled. Idempotent."""
        async with contextlib.AsyncExitStack() as stack:
            for stage in self._stages.values():
                stack.push_async_callback(stage.aclose)
            self._stages.clear()

    def _replied(self, reply: StageReply) -> None:
        if isinstance(reply, StageFailed) or reply.final:
            began = self._begun.pop(_key(reply.fence, reply.stage, reply.request_id), None)
            if began is not None:
                elapsed = asyncio.get_running_loop().time() - began
                self._metrics.stage_seconds.labels(stage=reply.stage).observe(elapsed)
        self._reply(reply)


def _key(fence: Fence, stage: str, request_id: str) -> tuple[str, str, str]:
    return (fence.session_id, stage, request_id)


def _refused(request: StageRequest) -> StageFailed:
    return StageFailed(
        stage=request.stage,
        request_id=request.request_id,
        fence=request.fence,
        lane=request.lane,
        error=error(ErrorCode.ENGINE_ERROR, f"stage {request.stage} is down"),
        fatal=True,
    )
