"""What a worker process of the ``vllm`` runtime runs: the engine of one replica, and the sessions on it.

Owns the engine, its KV cache's books, and the sessions that are placed. A
:class:`~duplex_server.engine.stages.processes.driver.Driver`, made and called by the process's entry. Must never let a session
wait for another's next append, and never outlive its engine.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from typing import TYPE_CHECKING, cast

from duplex_core.stages import Purpose, StageRequest, StageSpec
from duplex_core.workers import EngineProgram
from duplex_server.engine.stages.loading import StageLoadError, make
from duplex_server.engine.stages.processes.driver import Seats, Sink
from duplex_server.engine.stages.vllm.environment import forks_die_with_me, prepare
from duplex_server.engine.stages.vllm.memory import Cache
from duplex_server.engine.stages.vllm.room import Room

if TYPE_CHECKING:  # these import vllm, which reads the environment that start() prepares
    from duplex_server.engine.stages.vllm.platform import Engine, Stream
    from duplex_server.engine.stages.vllm.session import Session

log = logging.getLogger(__name__)

TELL_S = 1.0
"""How often the server is told the engine's figures."""


class VllmDriver:
    """One replica of a stage on vLLM."""

    stage: str
    engine: Engine
    room: Room

    def __init__(self, sink: Sink) -> None:
        """Give results to ``sink``; :meth:`start` loads everything."""
        self.sink = sink
        self._program: EngineProgram | None = None
        self._sessions: dict[str, Session | None] = {}
        self._counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Future[None]] = set()
        self._dead = False

    async def start(self, spec: StageSpec, device: str, seats: Seats) -> None:
        """Make the program, and start its engine on ``device``; blocks the loop while weights load.

        Raises:
            StageLoadError: the plan, the program's settings or the device do not fit.
        """
        self.stage = spec.name
        forks_die_with_me()
        try:
            prepare(os.environ, device)
            from duplex_server.engine.stages.vllm import platform  # noqa: PLC0415 - heavy, and reads the environment
        except ValueError as exc:
            raise StageLoadError(str(exc)) from exc
        except ImportError as exc:
            raise StageLoadError(
                f"it runs on vLLM, which cannot be imported: {exc}. Install the model's package with its engine "
                "(docs/installing-engines.md)"
            ) from exc
        self._program = cast("EngineProgram", make(spec, EngineProgram))
        try:
            settings = self._program.settings()
            self.engine = platform.start(settings, seats.total, device, spec.resources.memory_bytes, spare=1)
            await self.engine.install(settings.decider)
        except platform.EngineStartError as exc:
            raise StageLoadError(str(exc)) from exc
        self.room = Room(Cache(self.engine.positions, self.engine.block))
        if self.engine.positions < self.engine.max_model_len:
            raise StageLoadError(
                f"its KV cache holds {self.engine.positions} positions, and one context alone is "
                f"{self.engine.max_model_len}: give it more memory, or a smaller max_model_len"
            )
        wanted = seats.total * self.engine.max_model_len
        if self.engine.positions < wanted:
            log.warning(
                "stage %s: the KV cache holds %d positions, and every seat's whole context would be %d: sessions will be set "
                "aside and computed again when it is full",
                *(spec.name, self.engine.positions, wanted),
            )
        for work in (self._watch(), self._tell()):
            self._keep(asyncio.ensure_future(work))

    def place(self, session_id: str) -> None:
        """A session, or a chat request, begins; its first request says which."""
        self._sessions[session_id] = None

    def release(self, session_id: str) -> None:
        """It is over."""
        session = self._sessions.pop(session_id)
        if session is not None:
            session.close()

    def submit(self, request: StageRequest) -> None:
        """Queue a request of one that is placed."""
        from duplex_server.engine.stages.vllm.session import Session  # noqa: PLC0415 - heavy

        session_id = request.fence.session_id
        session = self._sessions[session_id]
        if session is None:
            assert self._program is not None
            first = request.purpose is Purpose.SESSION
            session = self._sessions[session_id] = Session(self, session_id, self._program, first=first)
        session.submit(request)

    def abort(self, session_id: str, request_id: str | None = None) -> None:
        """Stop one request of a session, or all."""
        session = self._sessions[session_id]
        if session is not None:
            session.abort(request_id)

    async def stop(self) -> None:
        """End the sessions, then the engine."""
        sessions = [each for each in self._sessions.values() if each is not None]
        for session in sessions:
            session.close()
        for session in sessions:
            await session.ended()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if hasattr(self, "engine"):
            self.engine.shutdown()
            del self.engine  # while there is still an interpreter for what vLLM does then
        if self._program is not None:
            self._program.close()

    # -- what the sessions ask for (:class:`.session.Host`) ------------------------------------------------------------

    def end(self, stream: Stream) -> asyncio.Future[None]:
        """End a request in the engine."""
        ending = asyncio.ensure_future(stream.close())
        self._keep(ending)
        return ending

    def died(self, reason: str) -> None:
        """The engine is gone, and with it the use of this process."""
        if not self._dead:
            self._dead = True
            self.sink.dead(f"stage {self.stage}: {reason}")

    def count(self, what: str, number: int = 1) -> None:
        """Something happened."""
        self._counts[what] += number

    def _keep(self, task: asyncio.Future[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """Notice the engine's death, also when nobody waits for it."""
        self.died(await self.engine.died())

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            counts, self._counts = dict(self._counts), Counter()
            self.sink.stats(self.engine.gauges() | {"kv_used": self.room.used}, counts=counts)
