"""The stages of one served model: started, reached by name, linked, watched, stopped.

Owns the running stages and what is open on them (:mod:`.flows`). Called by both halves of the engine: they take seats, submit
and abort here, and give the one function to which all news goes. Must never look inside a payload, know a session, or decide
what a failure means.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import assert_never

from duplex_core.errors import DuplexError, ErrorCode, error, refuse
from duplex_core.fence import Fence
from duplex_core.stages import (
    LinkKind,
    RunningStage,
    StageFailed,
    StageLost,
    StageMetrics,
    StageNews,
    StageOutput,
    StagePlan,
    StageReply,
    StageRequest,
    StageRuntimeSpec,
    StageSpec,
    StageStats,
)
from duplex_server.engine.metrics import EngineMetrics
from duplex_server.engine.stages.flows import Deliver, FlowAction, Flows, Give, Withdraw, down
from duplex_server.engine.stages.starting import accelerators, start_together

log = logging.getLogger(__name__)

TELL_S = 15.0
"""How often it is said that a stage still starts."""

Told = StageReply | StageLost
"""What is told of the stages to those who have work there."""


def owner_of(told: Told) -> str:
    """The session, or the chat request, whom it concerns."""
    return told.session_id if isinstance(told, StageLost) else told.fence.session_id


class StageStartError(RuntimeError):
    """The stages of a model could not be started; the message says which one and why."""


def check(plan: StagePlan, runtimes: Mapping[str, StageRuntimeSpec]) -> None:
    """Refuse a plan with a stage that could not start as it is described, before any is loaded.

    Raises:
        StageStartError: an unknown runtime, or one that lacks something in a stage's description.
    """
    for stage in plan.stages:
        runtime = runtimes.get(stage.runtime)
        if runtime is None:
            known = ", ".join(sorted(runtimes))
            raise StageStartError(f"stage {stage.name} wants the runtime {stage.runtime!r}; installed are: {known}")
        if runtime.check is not None:
            try:
                runtime.check(stage)
            except Exception as exc:
                raise StageStartError(f"stage {stage.name} cannot start: {exc}") from exc


@contextlib.contextmanager
def _told_meanwhile(stage: str) -> Iterator[None]:
    """Say now and then that a stage still starts: large weights take minutes, and nobody should think that it hangs."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def tell() -> None:
        while True:
            await asyncio.sleep(TELL_S)
            log.info("stage %s is still starting, for %.0f s now", stage, loop.time() - began)

    telling = loop.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()


class StageHost:
    """Every stage of one model."""

    def __init__(
        self, runtimes: Mapping[str, StageRuntimeSpec], tell: Callable[[Told], None], metrics: EngineMetrics
    ) -> None:
        """Make a host without stages; ``tell`` is called on the event loop with what comes of the work there."""
        self._runtimes = runtimes
        self._tell = tell
        self._metrics = metrics
        self._stages: dict[str, RunningStage] = {}
        self._flows = Flows(StagePlan())
        self._plan = StagePlan()
        self._forwarded: set[tuple[str, LinkKind]] = set()

    @property
    def open_requests(self) -> int:
        """How many requests of sessions and chats are open."""
        return len(self._flows)

    async def start(self, plan: StagePlan) -> None:
        """Start the stages of ``plan``, side by side where they share no accelerator; when one fails, those that run are stopped.

        Raises:
            StageStartError: an unknown runtime, or a stage that did not start.
        """
        check(plan, self._runtimes)
        self._flows, self._plan = Flows(plan), plan
        up: dict[str, RunningStage] = {}
        starts = [(accelerators(stage.resources.devices), partial(self._start, stage, up)) for stage in plan.stages]
        try:
            await start_together(starts, StageStartError)
        except BaseException:
            self._stages = up
            await self.aclose()
            raise
        self._stages = {stage.name: up[stage.name] for stage in plan.stages}

    async def _start(self, stage: StageSpec, up: dict[str, RunningStage]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with _told_meanwhile(stage.name):
            try:
                up[stage.name] = await self._runtimes[stage.runtime].start(stage, self._news)
            except Exception as exc:
                raise StageStartError(f"stage {stage.name} did not start: {exc}") from exc
        log.info("stage %s is up after %.1f s", stage.name, loop.time() - began)

    # -- seats --------------------------------------------------------------------------------------------------------

    def place(self, session_id: str) -> None:
        """Give a session a seat on every stage, or on none.

        Raises:
            DuplexError: a stage has no seat for it; the message names the stage and says why.
        """
        with contextlib.ExitStack() as placed:
            for name, stage in self._stages.items():
                try:
                    stage.place(session_id)
                except DuplexError as exc:
                    why = exc.info.message if name in exc.info.message else f"stage {name}: {exc.info.message}"
                    raise DuplexError(error(exc.info.code, why)) from exc
                placed.callback(stage.release, session_id)
            placed.pop_all()

    def release(self, session_id: str) -> None:
        """A session, or a chat request, is over: its work is dropped and its seats are free. Idempotent.

        Every stage is told, also when another fails to let go.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._flows.drop, session_id)
            for stage in self._stages.values():
                stack.callback(stage.release, session_id)

    # -- work ---------------------------------------------------------------------------------------------------------

    def submit(self, request: StageRequest) -> None:
        """Give work to a stage; one that is not healthy answers with a fatal failure.

        Raises:
            LookupError: the plan has no such stage: a fault of the model package.
            ValueError: a request of this session with this id is open there: a fault of the model package.
        """
        stage = self._stages.get(request.stage)
        if stage is None:
            raise LookupError(f"there is no stage {request.stage!r}; the plan has: {', '.join(self._stages) or 'none'}")
        loop = asyncio.get_running_loop()
        self._flows.begin(request, loop.time() * 1000.0)
        if not stage.healthy():
            loop.call_soon(self._news, down(request))
            return
        try:
            stage.submit(request)
        except BaseException:
            self._flows.refused(request)
            raise

    def abort(self, fence: Fence, stage: str, request_id: str) -> None:
        """Stop one request on every stage that works on it; nothing happens when it has ended already."""
        self._perform(self._flows.abort(fence.session_id, stage, request_id))

    def known(self, fence: Fence, stage: str, request_id: str) -> tuple[StageMetrics, ...]:
        """What the stages have done so far for a request that is open; empty for one that is not."""
        now_ms = asyncio.get_running_loop().time() * 1000.0
        return self._flows.known(fence.session_id, stage, request_id, now_ms)

    # -- watching and the end -----------------------------------------------------------------------------------------

    @property
    def down(self) -> tuple[str, ...]:
        """The stages that take no requests now."""
        return tuple(name for name, stage in self._stages.items() if not stage.healthy())

    def healthy(self) -> bool:
        """Whether every stage takes requests."""
        return not self.down

    def require(self) -> None:
        """Refuse when a stage is down.

        Raises:
            DuplexError: ``engine_error``, retryable, with the names of those that are.
        """
        if down := self.down:
            names = " and ".join(f"stage {name}" for name in down)
            raise refuse(ErrorCode.ENGINE_ERROR, f"{names} of the model is down; try again later")

    async def aclose(self) -> None:
        """Stop the stages, the last one first, each also when another fails to or this is cancelled. Idempotent."""
        async with contextlib.AsyncExitStack() as stack:
            for stage in self._stages.values():
                stack.push_async_callback(stage.aclose)
            self._stages.clear()

    def _news(self, news: StageNews) -> None:
        match news:
            case StageStats():
                self._metrics.measured(news)
            case StageLost():
                self._tell(news)
            case _:
                if isinstance(news, StageOutput) and news.forward is not None and news.forward.payload is not None:
                    self._look_at_link(news.stage, news.forward.kind)
                self._perform(self._flows.take(news, asyncio.get_running_loop().time() * 1000.0))

    def _look_at_link(self, source: str, kind: LinkKind) -> None:
        """Say once when a stage forwards what none takes, while links of other kinds lead from it: a slip, most likely."""
        if (source, kind) in self._forwarded:
            return
        self._forwarded.add((source, kind))
        kinds = {link.kind for stage in self._plan.stages for link in stage.inputs if link.source == source}
        if kinds and kind not in kinds:
            linked = ", ".join(sorted(each.value for each in kinds))
            log.warning("stage %s forwards %s, which goes nowhere: its links are for %s", source, kind.value, linked)

    def _perform(self, actions: Iterable[FlowAction]) -> None:
        """Carry out what the flows ask for, in order; each also when another fails."""
        with contextlib.ExitStack() as stack:
            for action in reversed(list(actions)):
                stack.callback(self._carry_out, action)

    def _carry_out(self, action: FlowAction) -> None:
        match action:
            case Give(request=request):
                self._give(request)
            case Withdraw(request=request):
                stage = self._stages.get(request.stage)
                if stage is not None:
                    stage.abort(request.fence.session_id, request.request_id)
                self._flows.withdrawn(request)
            case Deliver(reply=reply):
                self._deliver(reply)
            case _:
                assert_never(action)

    def _give(self, request: StageRequest) -> None:
        """Hand a part to its stage, unless the request that it belongs to has ended while others were handed on."""
        if not self._flows.holds(request):
            return
        stage = self._stages.get(request.stage)
        if stage is None or not stage.healthy():
            self._news(down(request))
        else:
            stage.submit(request)

    def _deliver(self, reply: StageReply) -> None:
        if isinstance(reply, StageFailed) or reply.final:
            for each in reply.metrics:
                self._metrics.stage_seconds.labels(stage=each.stage).observe(each.total_ms / 1000.0)
        self._tell(reply)
