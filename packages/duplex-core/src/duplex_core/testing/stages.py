"""Stage workers run synchronously, in virtual time: the test driver's stand-in for the ``thread`` runtime.

Owns the workers of one model's stage plan, which any number of drivers may share, as the sessions of a server do. A worker
does all of a request's work at once, on the caller's thread, when the request's turn comes; its pieces are then handed out
one by one, so that a test can interrupt between any two.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from duplex_core.errors import DuplexError
from duplex_core.stages import StageFailed, StageOutput, StagePlan, StageReply, StageRequest, StageSpec, StageWorker

RUNTIME = "thread"
"""The one runtime whose workers can be run here."""


class Worked(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was worked on, and into how many pieces its answer fell."""

    request: StageRequest
    pieces: int


class StageHost:
    """The running stages of a plan. Workers are made on first use and closed by :meth:`close`."""

    def __init__(self, plan: StagePlan) -> None:
        """Take a plan.

        Raises:
            ValueError: a stage asks for a runtime that needs more than this one thread.
        """
        foreign = [f"{stage.name} ({stage.runtime})" for stage in plan.stages if stage.runtime != RUNTIME]
        if foreign:
            raise ValueError(f"only {RUNTIME} stages run in the test driver; replace these in the plan: {foreign}")
        self._specs = {stage.name: stage for stage in plan.stages}
        self._workers: dict[str, StageWorker] = {}
        self.worked: list[Worked] = []
        """Every request that was worked on, in order."""

    def worker(self, stage: str) -> StageWorker:
        """The worker of a stage.

        Raises:
            KeyError: the plan has no such stage.
        """
        if stage not in self._specs:
            raise KeyError(f"work was submitted to stage {stage!r}, but the plan has only: {sorted(self._specs)}")
        if stage not in self._workers:
            self._workers[stage] = make_worker(self._specs[stage])
        return self._workers[stage]

    def work(self, request: StageRequest) -> Iterator[StageReply]:
        """The replies to a request: a piece each, then the final one, or the failure that the worker foresaw."""
        pieces: list[Any] = []
        failure: DuplexError | None = None
        try:
            self.worker(request.stage).run(request.payload, pieces.append, lambda: False)
        except DuplexError as exc:
            failure = exc
        self.worked.append(Worked(request=request, pieces=len(pieces)))
        for piece in pieces:
            yield _output(request, piece, final=False)
        yield _output(request, None, final=True) if failure is None else _failed(request, failure)

    def close(self) -> None:
        """Close every worker that was made."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()


def make_worker(stage: StageSpec) -> StageWorker:
    """Resolve the stage's factory and call it, as the ``thread`` runtime does."""
    module, _, name = stage.factory.partition(":")
    factory: Callable[..., StageWorker] = getattr(importlib.import_module(module), name)
    return factory(**stage.options)


def _failed(request: StageRequest, failure: DuplexError) -> StageFailed:
    return StageFailed(
        stage=request.stage,
        request_id=request.request_id,
        fence=request.fence,
        lane=request.lane,
        error=failure.info,
    )


def _output(request: StageRequest, payload: Any, *, final: bool) -> StageOutput:
    return StageOutput(
        stage=request.stage,
        request_id=request.request_id,
        fence=request.fence,
        lane=request.lane,
        payload=payload,
        final=final,
    )
