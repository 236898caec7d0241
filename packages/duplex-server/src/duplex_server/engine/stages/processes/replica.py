"""One replica of a stage: its process, and after that one's death the next.

Owns the replica's states, its watchdog and its restarts. Used by :mod:`.pool`, which is told when the replica is up, what it
says, and when it is lost. Must never know a session or a request.

======== ============================================= ==================
state    it is                                         leads to
======== ============================================= ==================
STARTING a process that loads                          UP, DOWN, CLOSED
UP       a process that works                          DOWN, CLOSED
DOWN     lost; when its process is gone there is a     STARTING, CLOSED
         wait, and then the next one is started
CLOSED   at its end; a process may still be ending
======== ============================================= ==================
"""

from __future__ import annotations

import asyncio
import enum
import logging
from typing import Protocol

from duplex_core.stages import StageSpec
from duplex_server.engine.stages.loading import StageLoadError
from duplex_server.engine.stages.processes.driver import Seats
from duplex_server.engine.stages.processes.framing import Buffer
from duplex_server.engine.stages.processes.messages import Dead, FromWorker, Ping, Pong, Ready, Start, Stop, ToWorker
from duplex_server.engine.stages.processes.process import WorkerProcess
from duplex_server.engine.stages.processes.settings import ProcessSettings

log = logging.getLogger(__name__)


class State(enum.Enum):
    """What a replica is doing."""

    STARTING = "starting"
    UP = "up"
    DOWN = "down"
    CLOSED = "closed"


class Owner(Protocol):
    """Who has the replicas."""

    def replica_up(self, index: int) -> None:
        """It takes work; it holds nobody."""

    def replica_down(self, index: int) -> None:
        """It was up, and everything in it is gone."""

    def replica_failed(self, index: int) -> None:
        """It could not be started again; the next attempt comes."""

    def replica_says(self, index: int, message: FromWorker, buffers: list[bytearray]) -> None:
        """A message that is the owner's."""


class Replica:
    """One of a stage's replicas."""

    def __init__(
        self, index: int, spec: StageSpec, *, driver: str, seats: Seats, settings: ProcessSettings, owner: Owner
    ) -> None:
        """A replica without a process yet."""
        devices = spec.resources.devices
        self.index = index
        self.device = devices[index % len(devices)] if devices else ""
        self.state = State.DOWN
        self._name = f"{spec.name}.{index}"
        self._start = Start(spec=spec, driver=driver, device=self.device, seats=seats)
        self._settings = settings
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._process: WorkerProcess | None = None
        self._first: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason = ""
        self._was_up = False
        self._unanswered = 0
        self._deaths = 0
        self._up_since = 0.0

    @property
    def pid(self) -> int | None:
        """The process's id, where there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the first process, and wait until it is ready.

        Raises:
            StageLoadError: it did not become ready; the message says why. Nothing of it is left.
        """
        self._first = self._loop.create_future()
        try:
            self._launch()
            await self._first
        except OSError as exc:
            raise StageLoadError(f"no process can be started for it: {exc}") from exc
        finally:
            self._first = None

    def send(self, message: ToWorker, buffers: list[Buffer] | None = None) -> None:
        """Send to the process, if there is one."""
        if self._process is not None:
            self._process.send(message, buffers)

    async def aclose(self) -> None:
        """End, and wait until nothing is left: gently when it is up, else at once. Idempotent."""
        gently = self.state is State.UP
        self._become(State.CLOSED)
        process = self._process
        if process is None:
            return
        try:
            if gently:
                await self._stopped(process)
        finally:
            process.kill()
            await process.gone()

    async def _stopped(self, process: WorkerProcess) -> None:
        """Ask it to end, then by signal, then leave it to be killed."""
        process.send(Stop())
        for after, ask in ((self._settings.stop_s, process.terminate), (self._settings.stop_s / 2, process.kill)):
            try:
                async with asyncio.timeout(after):
                    await process.gone()
            except TimeoutError:
                log.warning("stage %s: process %d does not end; it is made to", self._name, process.pid)
                ask()
            else:
                return

    def _become(self, state: State, after_s: float | None = None) -> None:
        """Change the state; its timer rings ``after_s`` later."""
        self.state = state
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if after_s is not None:
            self._timer = self._loop.call_later(after_s, self._rung)

    def _rung(self) -> None:
        if self.state is State.STARTING:
            self._reason = f"it did not become ready within {self._settings.start_s:g} s"
            self._kill(self._process)
        elif self.state is State.UP:
            self._watch()
        elif self.state is State.DOWN:
            self._relaunch()

    def _launch(self) -> None:
        self._reason = ""
        self._was_up = False
        self._process = WorkerProcess(self._name, self._said, self._lose, self._gone)
        self._process.send(self._start)
        self._become(State.STARTING, self._settings.start_s)

    def _relaunch(self) -> None:
        try:
            self._launch()
        except OSError as exc:
            self._reason = f"no process can be started for it: {exc}"
            self._gone()

    def _watch(self) -> None:
        """Ask whether it is there. Turns are counted and not time, of which this process may have missed some itself."""
        if self._unanswered * self._settings.ping_s >= self._settings.hang_s:
            self._reason = f"it has not answered for {self._settings.hang_s:g} s"
            self._kill(self._process)
            self._lose()
            return
        if not self._unanswered:
            self.send(Ping())
        self._unanswered += 1
        self._become(State.UP, self._settings.ping_s)

    @staticmethod
    def _kill(process: WorkerProcess | None) -> None:
        if process is not None:
            process.kill()

    def _said(self, message: FromWorker, buffers: list[bytearray]) -> None:
        if isinstance(message, Dead):
            self._reason = message.reason
            if self._process is not None:
                self._process.doom(self._settings.stop_s)
            self._lose()
        elif self.state is State.UP:
            if isinstance(message, Pong):
                self._unanswered = 0
            else:
                self._owner.replica_says(self.index, message, buffers)
        elif isinstance(message, Ready) and self.state is State.STARTING:
            self._ready()

    def _ready(self) -> None:
        self._unanswered = 0
        self._up_since = self._loop.time()
        self._become(State.UP, self._settings.ping_s)
        first, self._first = self._first, None
        if first is not None and not first.done():
            first.set_result(None)
        elif self._deaths:
            log.warning("stage %s: process %d has taken over", self._name, self.pid)
        self._owner.replica_up(self.index)

    def _lose(self) -> None:
        """What it held is gone, although the process itself may take its time to be."""
        if self.state is State.UP:
            self._was_up = True
            if self._loop.time() - self._up_since >= self._settings.steady_s:
                self._deaths = 0
            self._become(State.DOWN)
            self._owner.replica_down(self.index)

    def _gone(self) -> None:
        """The process is gone, or none could be started: wait for the next one, unless it is not wanted any more."""
        self._lose()
        process, self._process = self._process, None
        if self.state is State.CLOSED:
            return
        why = self._why(process)
        if self._first is not None:
            self._become(State.CLOSED)
            if not self._first.done():
                self._first.set_exception(StageLoadError(self._reason or why))
            return
        self._deaths += 1
        wait_s = self._settings.backoff(self._deaths)
        what = "died" if self._was_up else "could not be started again"
        pid = 0 if process is None else process.pid
        log.error("stage %s: process %d %s: %s. The next one comes in %g s", self._name, pid, what, why, wait_s)
        self._become(State.DOWN, wait_s)
        if not self._was_up:
            self._owner.replica_failed(self.index)

    def _why(self, process: WorkerProcess | None) -> str:
        """Why there is no process any more: what it or its watcher said, or else how it ended and what it printed last."""
        if process is None:
            return self._reason
        if self._reason:
            return f"{self._reason} ({process.how_it_ended()})"
        words = process.last_words()
        return f"{process.how_it_ended()}; it printed last: {words}" if words else process.how_it_ended()
