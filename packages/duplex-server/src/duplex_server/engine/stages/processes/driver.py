"""What does a runtime's work inside a worker process, and what it is given.

Owns the contract between :mod:`.child`, which speaks to the server, and the drivers: one for batched steps (``torch``) and one
for programs on an engine (``vllm``). A driver is made in the worker process as ``Driver(sink)`` from an import path
``package.module:Class`` that the runtime's registration names; it may import whatever is heavy. Everything here is called on the
one event loop of the process, and nothing here is thread-safe: a driver that has threads comes back to the loop before it
touches its sink. Must never know sockets, frames or the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from duplex_core.errors import ErrorInfo
from duplex_core.stages import Forward, StageMetrics, StageRequest, StageSpec


class Seats(msgspec.Struct, frozen=True, kw_only=True):
    """How much one replica holds at a time: ``resources.sessions`` and ``resources.chats`` of the stage."""

    sessions: int
    chats: int

    @property
    def total(self) -> int:
        """Seats of both kinds: no more are ever placed at a time."""
        return self.sessions + self.chats


class Sink(Protocol):
    """Where a driver's results go. What belongs to a request that has ended or was aborted is dropped there."""

    def output(
        self,
        request: StageRequest,
        payload: Any,
        *,
        forward: Forward | None = None,
        final: bool = False,
        metrics: tuple[StageMetrics, ...] = (),
    ) -> None:
        """One piece of the answer to ``request``, the very object that was submitted.

        What it holds has been sent or copied when this returns. ``payload`` is ``None`` where there is only a ``forward`` or
        the end.
        """

    def failed(self, request: StageRequest, info: ErrorInfo, *, metrics: tuple[StageMetrics, ...] = ()) -> None:
        """``request`` ends without its final output; the others go on."""

    def submitted_at(self, request: StageRequest) -> float:
        """When the server submitted ``request``, on this machine's monotonic clock (``time.monotonic()``), in seconds."""

    def stats(
        self,
        gauges: Mapping[str, float],
        *,
        counts: Mapping[str, int] | None = None,
        samples: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """For the server's metrics: values now, how often things happened, and single measurements since it was last told.

        A sample that is a time is in seconds. Tell at most a few times a second.
        """

    def dead(self, reason: str) -> None:
        """The driver cannot go on: the process ends, its sessions are lost, and another is started in its place."""


class Driver(Protocol):
    """A runtime's work in one worker process. Called on the process's event loop.

    Sessions and chat requests are alike to it: either is placed, submits, and is released; a chat request's id is the
    ``session_id`` of its requests' fences. Requests of one ``session_id`` run one at a time, in the order submitted.
    Anything that a method raises, or a callback on the loop, is the driver's death.
    """

    async def start(self, spec: StageSpec, device: str, seats: Seats) -> None:
        """Load everything; called once, before anything else. May block the loop.

        Args:
            spec: the stage; its ``factory`` is resolved and called here.
            device: the replica's entry of ``resources.devices``, empty where the plan leaves it to the runtime.
            seats: how much is ever placed at a time.

        Raises:
            StageLoadError: with a sentence for the user. Anything else that is raised reaches the user as it is, too.
        """

    def place(self, session_id: str) -> None:
        """A session, or a chat request, begins. Never one that is placed, and never more than the seats."""

    def release(self, session_id: str) -> None:
        """It has ended: stop what it has open, and forget all of it. Only one that is placed."""

    def submit(self, request: StageRequest) -> None:
        """Queue work of one that is placed. Every request ends in the sink with a final output or a failure, unless aborted."""

    def abort(self, session_id: str, request_id: str | None = None) -> None:
        """Stop one request, or all of a session's; nothing more of them needs to come. Only one that is placed."""

    async def stop(self) -> None:
        """Release what is held; the process ends afterwards. Called once, also after a failed start."""


DriverClass = Callable[[Sink], Driver]
"""What the import path of a driver names."""
