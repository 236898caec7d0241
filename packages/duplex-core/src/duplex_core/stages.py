"""Where a model's work is done: plans of stages, requests to them and their outputs.

A model package describes its pipeline as a :class:`StagePlan`; the server starts each :class:`StageSpec` on a runtime and
moves :class:`StageRequest` and :class:`StageOutput` between model sessions and stages. Payloads are typed by the model
package alone; nobody else looks inside. Nothing here imports a runtime.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from duplex_core.errors import ErrorInfo
from duplex_core.fence import Fence


class Lane(enum.Enum):
    """Which half of the conversation a piece of work belongs to."""

    INPUT = "input"
    """Understanding the user: survives an interruption of the answer."""
    OUTPUT = "output"
    """Making the answer: aborted, and its late results dropped, when the epoch advances."""


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline.

    ``factory`` is an import path ``package.module:callable`` that is resolved where the stage runs and called with
    ``options`` as keyword arguments; it returns what the runtime named by ``runtime`` asks for (the ``thread`` runtime:
    a :class:`StageWorker`). ``concurrency`` is the number of sessions worked on at once.
    """

    name: str
    factory: str
    runtime: str = "thread"
    options: Mapping[str, Any] = {}
    concurrency: int = 1
    replicas: int = 1


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of one model, in the order in which they start."""

    stages: tuple[StageSpec, ...] = ()


class StageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Work for one stage. ``request_id`` is unique within the session."""

    stage: str
    request_id: str
    fence: Fence
    lane: Lane
    payload: Any


class StageOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a stage's answer. ``final`` ends the request; a final output may have ``payload=None``."""

    stage: str
    request_id: str
    fence: Fence
    lane: Lane
    payload: Any
    final: bool = False


class StageFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A request ended without its final output. ``fatal`` says that the stage itself died."""

    stage: str
    request_id: str
    fence: Fence
    lane: Lane
    error: ErrorInfo
    fatal: bool = False


StageReply = StageOutput | StageFailed


class StagePort(Protocol):
    """A running stage as the orchestrator sees it. All methods are called on the event loop and never block."""

    def submit(self, request: StageRequest) -> None:
        """Queue ``request``. Every request gets exactly one final output or one failure, unless it is aborted.

        Requests of one session run one at a time, in the order submitted.
        """

    def abort(self, session_id: str, request_id: str | None = None) -> None:
        """Stop one request, or all of a session's. No output of it is delivered after this call returns."""

    def healthy(self) -> bool:
        """Whether the stage takes requests."""


class RunningStage(StagePort, Protocol):
    """What a runtime gives for one started stage: its port, and the way to stop it."""

    async def aclose(self) -> None:
        """Stop the stage and release what it holds. Requests still open get no reply. Called once, on the event loop."""


StartStage = Callable[[StageSpec, Callable[[StageReply], None]], Awaitable[RunningStage]]
"""Start one stage; replies are handed to the second argument, on the event loop that called."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageRuntimeSpec:
    """A place where stages can run, which a :class:`StageSpec` names in ``runtime``.

    Attributes:
        id: what a stage's ``runtime`` says: ``thread``, ``vllm``...
        summary: one line for people; it says what a stage's ``factory`` must return on this runtime.
        start: called on the event loop for each stage of the served model, in the order of the plan. It returns when the
            stage takes requests, with its weights loaded; loading must not block the loop. What it raises stops the
            server's start. A stage that dies later answers its open requests with ``StageFailed(fatal=True)`` and is no
            longer ``healthy``.
    """

    id: str
    summary: str
    start: StartStage


class StageWorker(Protocol):
    """What a factory of the ``thread`` runtime returns. Constructed, called and closed off the event loop."""

    def run(self, payload: Any, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
        """Work on one request: ``emit`` each piece, stop soon after ``cancelled()`` becomes true, return when done.

        Raises:
            DuplexError: something that can be expected to go wrong did (a service that cannot be reached, a request that the
                model refuses). The client is told its ``info``; the log gets one line with its cause. Anything else that is
                raised is a fault of the worker: the client is told that the stage failed, and the log gets the traceback.
        """

    def close(self) -> None:
        """Release what the worker holds."""
