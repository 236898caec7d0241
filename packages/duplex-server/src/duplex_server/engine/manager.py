"""The session manager: who may have a session, and that every slot comes back.

Owns the slots and the running sessions. Called by the orchestrator and, through it, by serving and in-process clients. A
slot is a place in the count and a seat on every stage; it is given back on every path: refused, failed or cancelled while
opening, closed, crashed. Must never reuse a session id.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence

from duplex_core.authentication import Principal
from duplex_core.config import SessionConfig
from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error
from duplex_core.events import CloseReason
from duplex_core.machine.session import SessionMachine
from duplex_core.observers import SessionObserver
from duplex_core.patch import SessionPatch
from duplex_core.stages import StageLost
from duplex_server.detectors import Detectors
from duplex_server.engine.attachment import Attachment
from duplex_server.engine.departed import Departed, SessionOver
from duplex_server.engine.lease import Lifetime
from duplex_server.engine.metrics import EngineMetrics
from duplex_server.engine.reaper import Reaper
from duplex_server.engine.runner import Draining, SessionRunner
from duplex_server.engine.served import ServedModel
from duplex_server.engine.stages.host import StageHost, Told, owner_of
from duplex_server.engine.ticks import Ticks
from duplex_server.engine.watching import Watch

log = logging.getLogger(__name__)


class _Slot:
    """One admitted session's place; freed once, however often it is asked to be."""

    def __init__(self, session_id: str, freed: Callable[[str], None]) -> None:
        self.session_id = session_id
        self.lost: ErrorInfo | None = None
        """Why the session cannot begin: a stage has lost its seat already."""
        self._freed = freed
        self._held = True

    def free(self) -> None:
        if self._held:
            self._held = False
            self._freed(self.session_id)


class SessionManager:
    """All sessions of one engine."""

    def __init__(
        self,
        *,
        served: ServedModel,
        stages: StageHost,
        detectors: Detectors,
        observers: Sequence[SessionObserver],
        metrics: EngineMetrics,
        max_sessions: int,
        lifetime: Lifetime,
    ) -> None:
        """Manage at most ``max_sessions`` sessions of ``served`` at a time, each for its ``lifetime``."""
        self._served = served
        self._stages = stages
        self._detectors = detectors
        self._observers = observers
        self._metrics = metrics
        self.max_sessions = max_sessions
        self._lifetime = lifetime
        self._taken = 0
        self._opening: dict[str, _Slot] = {}
        self._runners: dict[str, SessionRunner] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self._ticks = Ticks()
        self._reaper = Reaper(self._runners.values)
        self._departed = Departed(grace_s=lifetime.disconnect_grace_s, now=asyncio.get_running_loop().time)
        metrics.max_sessions.set(max_sessions)
        metrics.waiting.labels(queue="commands").set_function(lambda: sum(map(_commands, self._runners.values())))
        metrics.waiting.labels(queue="events").set_function(lambda: sum(map(_events, self._runners.values())))

    @property
    def taken(self) -> int:
        """Slots that are held."""
        return self._taken

    @property
    def detached(self) -> int:
        """Sessions that hold a slot and have no client now."""
        return sum(runner.tenure.detached for runner in self._runners.values())

    @property
    def draining(self) -> bool:
        """Whether no new session gets in."""
        return self._draining

    def get(self, session_id: str) -> SessionRunner | None:
        """The running session with this id."""
        runner = self._runners.get(session_id)
        return None if runner is None or runner.ended.is_set() else runner

    async def open(
        self,
        model: str | None = None,
        *,
        patch: SessionPatch | None = None,
        principal: Principal | None = None,
    ) -> tuple[SessionRunner, Attachment]:
        """Admit and start a session for ``principal``, configured with ``patch``.

        Cancelled or failed, its slot is free before that is seen.

        Raises:
            DuplexError: no slot is free, a stage has no seat for it or is down, the server stops, another model is asked for,
                ``patch`` cannot be served, or the model package failed to make its side of the session.
        """
        config = self._served.configured(patch)
        slot = self._admit(model)
        runner = None
        try:
            runner = await self._start(slot, config, principal)
        except DuplexError:
            raise
        except Exception as exc:
            log.exception("a session could not be opened")
            message = f"the session could not be opened: {type(exc).__name__}: {exc}"
            raise self._refusal(ErrorCode.INTERNAL_ERROR, message) from exc
        finally:
            del self._opening[slot.session_id]
            if runner is None:
                slot.free()
        self._metrics.admissions.labels(outcome="admitted").inc()
        return runner, runner.tenure.attach()

    def resume(self, session_id: str, token: str, last_seq: int) -> tuple[SessionRunner, Attachment]:
        """Give a session to the holder of its token, in one step: nothing has changed when it is refused.

        Raises:
            SessionOver: it has ended, and the token is its.
            DuplexError: there is no such session, the token is wrong, or no such event was ever sent.
        """
        runner = self._runners.get(session_id)
        try:
            if runner is None:
                raise self._departed.answer(session_id, token)
            attachment = runner.tenure.resume(token, last_seq)
        except DuplexError as exc:
            self._metrics.resumes.labels(outcome="over" if isinstance(exc, SessionOver) else "refused").inc()
            raise
        gap = runner.outbox.journal.first_seq > last_seq + 1
        self._metrics.resumes.labels(outcome="resync" if gap else "resumed").inc()
        return runner, attachment

    async def close(self, session_id: str, reason: CloseReason = CloseReason.CLIENT) -> None:
        """End a session and wait until it has ended. Idempotent: an id that names no session is one that has ended."""
        runner = self._runners.get(session_id)
        if runner is not None:
            runner.close(reason)
            await runner.ended.wait()

    def stop_admitting(self) -> None:
        """Let no new session in, and end each that runs as soon as it is not answering."""
        self._draining = True
        for runner in list(self._runners.values()):
            runner.post(Draining())

    async def shutdown(self, drain_s: float = 0.0) -> None:
        """End all sessions: in their own time for ``drain_s`` seconds, then at once, with reason ``shutdown``."""
        self.stop_admitting()
        if self._tasks and drain_s > 0:
            await asyncio.wait(self._tasks, timeout=drain_s)
        for runner in list(self._runners.values()):
            info = error(ErrorCode.SHUTDOWN, "the server stops; connect again later")
            runner.close(CloseReason.SHUTDOWN, info)
        self._reaper.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _admit(self, model: str | None) -> _Slot:
        if model is not None and not self._served.answers_to(model):
            message = f"there is no model {model!r} here; this server has: {', '.join(self._served.names)}"
            raise self._refusal(ErrorCode.MODEL_NOT_FOUND, message)
        self._refuse_when_draining()
        if self._taken >= self.max_sessions:
            message = f"all {self.max_sessions} session slots are taken; try again when one is free"
            raise self._refusal(ErrorCode.RESOURCE_EXHAUSTED, message)
        session_id = f"sess_{secrets.token_hex(12)}"
        try:
            self._stages.require()
            self._stages.place(session_id)
        except DuplexError as exc:
            raise self._refusal(exc.info.code, exc.info.message) from exc
        self._taken += 1
        self._metrics.sessions.set(self._taken)
        slot = self._opening[session_id] = _Slot(session_id, self._freed)
        return slot

    def _refuse_when_draining(self) -> None:
        if self._draining:
            raise self._refusal(ErrorCode.SHUTDOWN, "the server stops and takes no new session; connect again later")

    def _refusal(self, code: ErrorCode, message: str) -> DuplexError:
        self._metrics.admissions.labels(outcome=code.value).inc()
        return DuplexError(error(code, message))

    async def _start(self, slot: _Slot, config: SessionConfig, principal: Principal | None) -> SessionRunner:
        served = self._served
        session_id = slot.session_id
        # Off the loop: a model package may read something, such as a reference voice, for its session.
        model = await asyncio.to_thread(served.create_session, session_id, config=config)
        self._refuse_when_draining()
        if slot.lost is not None:
            raise self._refusal(slot.lost.code, slot.lost.message)
        machine = SessionMachine(
            session_id=session_id,
            config=config,
            capabilities=served.capabilities,
            check_options=served.check_options,
        )
        runner = SessionRunner(
            session_id=session_id,
            machine=machine,
            model=model,
            input_rate_hz=served.capabilities.input_rate_hz,
            output_rate_hz=served.capabilities.output_rate_hz,
            stages=self._stages,
            ticks=self._ticks,
            detectors=self._detectors,
            watch=Watch(self._observers),
            metrics=self._metrics,
            free_slot=slot.free,
            own_name=served.with_own_name,
            lifetime=self._lifetime,
            on_lease=self._reaper.look_at,
            principal=principal,
        )
        self._runners[session_id] = runner
        task = asyncio.create_task(runner.run(), name=session_id)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._gone(runner, done))
        return runner

    def deliver(self, told: Told) -> bool:
        """Hand what a stage tells to the session that it concerns; whether there is one."""
        runner = self.get(owner_of(told))
        if runner is not None:
            runner.post(told)
            return True
        slot = self._opening.get(owner_of(told))
        if slot is not None and isinstance(told, StageLost):
            slot.lost = told.error
        return slot is not None

    def _freed(self, session_id: str) -> None:
        try:
            self._stages.release(session_id)
        finally:
            self._taken -= 1
            self._metrics.sessions.set(self._taken)

    def _gone(self, runner: SessionRunner, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        del self._runners[runner.session_id]
        runner.finish()  # a task that is cancelled before its first step never gets to do it itself
        if (remains := runner.tenure.remains) is not None:
            self._departed.add(remains)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("the task of session %s failed", runner.session_id, exc_info=failure)


def _commands(runner: SessionRunner) -> int:
    return len(runner.mailbox)


def _events(runner: SessionRunner) -> int:
    return len(runner.outbox)
