"""Stage workers run synchronously, in virtual time: the test driver's stand-in for the runtimes of a server.

Owns the workers of one model's stage plan, which any number of drivers may share, as the sessions of a server do. A request is
worked on all at once, on the caller's thread, when its turn comes, through all the stages that its plan links; its pieces are
then handed out one by one, so that a test can interrupt between any two.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from duplex_core.errors import DuplexError
from duplex_core.stages import (
    Forward,
    StagePlan,
    StageReply,
    StageRequest,
    StageSpec,
    StageWorker,
)
from duplex_core.testing.pipelines import Batched, ProgramEngine, Programmed, Threaded, Worked

RUNTIMES = ("thread", "torch", "vllm")
"""Runtimes whose workers can be run here; ``vllm`` needs an engine that the test brings along."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was worked on, and into how many pieces its answer fell."""

    request: StageRequest
    pieces: int


class StageHost:
    """The running stages of a plan. Workers are made on first use and closed by :meth:`close`."""

    def __init__(self, plan: StagePlan, engine: ProgramEngine | None = None) -> None:
        """Take a plan.

        Args:
            plan: the stages.
            engine: stands in for vLLM under stages of that runtime.

        Raises:
            ValueError: a stage asks for a runtime that cannot be run here.
        """
        known = RUNTIMES if engine is not None else RUNTIMES[:2]
        foreign = [f"{stage.name} ({stage.runtime})" for stage in plan.stages if stage.runtime not in known]
        if foreign:
            raise ValueError(
                f"only stages of {', '.join(known)} run in the test driver; replace in the plan: {foreign}"
            )
        self._plan = plan
        self._engine = engine
        self._specs = {stage.name: stage for stage in plan.stages}
        self._stages: dict[str, Worked] = {}
        self.worked: list[Done] = []
        """Every request that was worked on, in order."""

    def stage(self, name: str) -> Worked:
        """A stage, ready to be worked.

        Raises:
            KeyError: the plan has no such stage.
        """
        if name not in self._specs:
            raise KeyError(f"work was submitted to stage {name!r}, but the plan has only: {sorted(self._specs)}")
        if name not in self._stages:
            self._stages[name] = self._made(self._specs[name])
        return self._stages[name]

    def worker(self, name: str) -> StageWorker | None:
        """The worker of a ``thread`` stage; ``None`` for a stage of another runtime."""
        stage = self.stage(name)
        return stage.worker if isinstance(stage, Threaded) else None

    def work(self, request: StageRequest) -> Iterator[StageReply]:
        """The replies to a request: a piece each, then the final one, or the failure that a worker foresaw."""
        pieces: list[tuple[str, Any]] = []
        failure: DuplexError | None = None
        try:
            self._flow(request.stage, request.fence.session_id, request.payload, pieces)
        except DuplexError as exc:
            failure = exc
        self.worked.append(Done(request=request, pieces=len(pieces)))
        for made_by, piece in pieces:
            yield request.output(piece, made_by="" if made_by == request.stage else made_by)
        yield request.output(final=True) if failure is None else request.failed(failure.info)

    def release(self, session_id: str) -> None:
        """The session, or the chat request, is over."""
        for stage in self._stages.values():
            stage.release(session_id)

    def close(self) -> None:
        """Close every worker that was made."""
        for stage in self._stages.values():
            stage.close()
        self._stages.clear()

    def _flow(self, stage: str, session_id: str, payload: Any, pieces: list[tuple[str, Any]]) -> None:
        """Work in one stage, then in those that it forwards to, piece by piece."""
        emitted: list[Any] = []
        try:
            self.stage(stage).run(session_id, payload, emitted.append)
        finally:
            for piece in emitted:
                if not isinstance(piece, Forward):
                    pieces.append((stage, piece))
                elif piece.payload is not None:
                    for after in self._plan.after(stage, piece.kind):
                        self._flow(after, session_id, piece.payload, pieces)

    def _made(self, spec: StageSpec) -> Worked:
        made: Any = make_worker(spec)
        if spec.runtime == "torch":
            return Batched(made)
        if spec.runtime == "vllm":
            assert self._engine is not None, "a plan with such a stage was refused without an engine"
            return Programmed(made, self._engine)
        return Threaded(made)


def make_worker(stage: StageSpec) -> Any:
    """Resolve the stage's factory and call it, as the runtimes do."""
    module, _, name = stage.factory.partition(":")
    factory: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return factory(**stage.options)
