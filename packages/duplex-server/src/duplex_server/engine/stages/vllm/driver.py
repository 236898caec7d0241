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
from collections.abc import Hashable
from typing import TYPE_CHECKING, cast

from duplex_core.stages import Purpose, StageRequest, StageSpec
from duplex_core.workers import EngineProgram
from duplex_server.engine.stages.loading import StageLoadError, make
from duplex_server.engine.stages.processes.driver import Seats, Sink
from duplex_server.engine.stages.vllm.environment import forks_die_with_me, prepare
from duplex_server.engine.stages.vllm.memory import Cache

if TYPE_CHECKING:  # these import vllm, which reads the environment that start() prepares
    from duplex_server.engine.stages.vllm.platform import Engine, Stream
    from duplex_server.engine.stages.vllm.session import Session

log = logging.getLogger(__name__)

TELL_S = 1.0
"""How often the server is told the engine's figures."""


class _Turn:
    """A session's place in the line for the KV cache. Compared by identity."""

    __slots__ = ("session", "woken")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.woken = asyncio.Event()


class VllmDriver:
    """One replica of a stage on vLLM."""

    stage: str
    engine: Engine

    def __init__(self, sink: Sink) -> None:
        """Give results to ``sink``; :meth:`start` loads everything."""
        self.sink = sink
        self._program: EngineProgram | None = None
        self._cache: Cache
        self._sessions: dict[str, Session | None] = {}
        self._line: list[_Turn] = []
        self._counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Future[None]] = set()
        self._dead = False
        self._spare = asyncio.Lock()

    async def start(self, spec: StageSpec, device: str, seats: Seats) -> None:
        """Make the program, and start its engine on ``device``; blocks the loop while weights load.

        Raises:
            StageLoadError: the plan, the program's settings or the device do not fit.
        """
        self.stage = spec.name
        forks_die_with_me()
        try:
            prepare(os.environ, device)
        except ValueError as exc:
            raise StageLoadError(str(exc)) from exc
        try:
            from duplex_server.engine.stages.vllm import platform  # noqa: PLC0415 - heavy, and reads the environment
        except ImportError as exc:
            raise StageLoadError(
                f"it runs on vLLM, which cannot be imported: {exc}. Install the model's package with its engine "
                "(docs/installing-engines.md)"
            ) from exc
        self._program = cast("EngineProgram", make(spec))
        try:
            settings = self._program.settings()
            self.engine = platform.start(settings, seats.total, device, spec.resources.memory_bytes, spare=1)
            await self.engine.install(settings.decider)
        except platform.EngineStartError as exc:
            raise StageLoadError(str(exc)) from exc
        self._cache = Cache(self.engine.positions, self.engine.block)
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
        if self._program is not None:
            self._program.close()

    # -- what the sessions ask for (:class:`.session.Host`) ------------------------------------------------------------

    async def claim(self, session: Session, positions: int) -> None:
        """Wait until ``session`` may hold ``positions``: sessions before chats, then in the order asked.

        Others that wait for their next append are set aside for it, the one idle longest first.
        """
        if not self._line and await self._granted(session, positions):
            return
        turn = _Turn(session)
        place = len(self._line)
        if session.first:
            place = next((index for index, each in enumerate(self._line) if not each.session.first), place)
        self._line.insert(place, turn)
        try:
            while True:
                turn.woken.clear()
                if self._line[0] is turn and await self._granted(session, positions):
                    return
                await turn.woken.wait()
        finally:
            self._line.remove(turn)
            self._wake()

    async def _granted(self, session: Session, positions: int) -> bool:
        """Take the blocks if they can be had now; it is known at once whether they can."""
        victims = self._cache.victims(session, positions)
        if victims is None:
            return False
        endings = [cast("Session", each).set_aside() for each in victims]
        self._cache.claim(session, positions)
        for ending in endings:
            if ending is not None:
                await asyncio.shield(ending)
        return True

    async def spare(self) -> None:
        """Wait for the one request that the engine has to spare, until :meth:`let_go`."""
        await self._spare.acquire()

    def hand_over(self, session: Session, old: Hashable) -> None:
        """Let what ``session`` holds be ``old``'s, beside what it claims next."""
        self._cache.hand_over(session, old)

    def let_go(self, old: Hashable) -> None:
        """What was kept is not needed any more."""
        self._cache.drop(old)
        self._spare.release()
        self._wake()

    def fits(self, positions: int, beside: Hashable) -> bool:
        """Whether a session could ever hold ``positions`` beside what is kept for it."""
        return self._cache.fits(positions, beside)

    def rest(self, session: Session, positions: int) -> None:
        """It waits for its next append."""
        self._cache.rest(session, positions)
        self._wake()

    def drop(self, session: Session) -> None:
        """It holds nothing in the engine."""
        self._cache.drop(session)
        self._wake()

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

    def _wake(self) -> None:
        """Something has come free: let the first in line look."""
        if self._line:
            self._line[0].woken.set()

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
            self.sink.stats(self.engine.gauges() | {"kv_used": self._cache.used}, counts=counts)
