"""The engine as Python programs and serving use it: sessions on top of the turn-based half.

Owns the joining of the parts: stages, detectors, observers, manager, orchestrator. The arrow runs from here to
:mod:`duplex_server.engine.chat` and never back. Must never touch a socket or JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import msgspec

from duplex_core.commands import Command
from duplex_core.errors import DuplexError, ErrorCode, ErrorInfo, error
from duplex_core.events import CloseReason, Event
from duplex_core.observers import SessionObserver, SessionObserverSpec
from duplex_core.plugins import PluginHost
from duplex_core.stages import StageReply
from duplex_server.detectors import DetectorService
from duplex_server.engine.chat import AsyncOmni, resolve
from duplex_server.engine.manager import SessionManager
from duplex_server.engine.orchestrator import Orchestrator
from duplex_server.engine.runner import SessionRunner
from duplex_server.engine.served import ModelUnavailable, ServedModel, with_transcriber

DEFAULT_DETECTOR = "silero"


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the duplex half runs. ``max_sessions`` of ``None`` is the model package's own default.

    ``transcriber`` names one for a model that does not transcribe by itself.
    """

    max_sessions: int | None = None
    detector: str = DEFAULT_DETECTOR
    transcriber: str | None = None


class DuplexSessionHandle:
    """One open session, as its client's side sees it. Made by :meth:`DuplexOmni.open_session`."""

    def __init__(self, runner: SessionRunner) -> None:
        """Hold ``runner``'s session."""
        self._runner = runner

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._runner.session_id

    @property
    def ended(self) -> bool:
        """Whether the session is over; its last events may still wait to be read."""
        return self._runner.ended.is_set()

    async def submit(self, command: Command) -> None:
        """Say something to the session; waits while it has too much to do. What follows comes as events.

        Raises:
            DuplexError: the session has ended.
        """
        await self._runner.submit(command)

    def offer(self, command: Command) -> None:
        """Say something to the session, now or not at all.

        Raises:
            DuplexError: the session has ended, or too much waits already: nothing was taken.
        """
        if not self._runner.offer(command):
            message = "events come faster than they can be taken; this one was dropped: send it again, slower"
            raise DuplexError(error(ErrorCode.RESOURCE_EXHAUSTED, message, event_id=command.event_id))

    @property
    def crowded(self) -> bool:
        """Whether so much waits that who reads the socket should let the session run first."""
        return self._runner.crowded

    def reject(self, info: ErrorInfo) -> None:
        """Have the client told of an error that kept what it sent from becoming a command."""
        self._runner.reject(info)

    def events(self) -> AsyncIterator[Event]:
        """Every event in order, numbered, from ``session.created`` to ``session.closed``, after which it ends.

        A session has one reader; reading a second time raises ``RuntimeError``.
        """
        return self._runner.outbox.read()

    def close(self, reason: CloseReason = CloseReason.CLIENT) -> None:
        """Ask the session to end; ``session.closed`` is its last event. Idempotent."""
        self._runner.close(reason)

    async def wait_ended(self) -> None:
        """Wait until the session is over and its slot free."""
        await self._runner.ended.wait()

    async def aclose(self) -> None:
        """End the session and wait until its slot is free. Idempotent."""
        self.close()
        await self.wait_ended()


class DuplexOmni(AsyncOmni):
    """A served model for conversations, and for chat requests beside them."""

    def __init__(self, served: ServedModel, plugins: PluginHost, settings: EngineSettings | None = None) -> None:
        """Prepare the engine; nothing is loaded before :meth:`start` enters it.

        Raises:
            ModelUnavailable: the model cannot have the transcriber that the settings name.
        """
        self._settings = settings or EngineSettings()
        if self._settings.transcriber is not None:
            served = with_transcriber(served, plugins, self._settings.transcriber)
        super().__init__(served, plugins)
        self._orchestrator: Orchestrator | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        model: ServedModel | str | None = None,
        *,
        plugins: PluginHost | None = None,
        deploy: Mapping[str, Any] | None = None,
        settings: EngineSettings | None = None,
    ) -> AsyncIterator[Self]:
        """Load a model and its detector and hold them until the ``async with`` block ends; then all sessions end.

        Args:
            model: a prepared model, or what ``duplex-server serve`` takes; ``None`` is the embedded default.
            plugins: what is installed; looked up when not given.
            deploy: deploy settings, when ``model`` is not prepared yet.
            settings: how many sessions, which detector.

        Raises:
            PluginError: no installed package serves the model.
            ModelUnavailable: it cannot be served with these settings, or the detector or an observer does not start.
            StageStartError: a stage did not start.
            pydantic.ValidationError: a deploy setting is wrong.
        """
        host, served = resolve(model, plugins, deploy)
        engine = cls(served, host, settings)
        async with engine._running():
            yield engine

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        """Hold the detector, then the stages, then the sessions."""
        detectors = await self._load_detector()
        try:
            observers = [_started(spec) for spec in self.plugins.observers.values()]
            wanted = self._settings.max_sessions
            manager = SessionManager(
                served=self.served,
                stages=self._stages,
                detectors=detectors,
                observers=observers,
                metrics=self.metrics,
                max_sessions=self.served.spec.max_sessions if wanted is None else wanted,
            )
            self._orchestrator = Orchestrator(manager, super()._on_reply)
            async with super()._running():
                try:
                    yield
                finally:
                    await manager.shutdown()
        finally:
            await detectors.aclose()

    async def _load_detector(self) -> DetectorService:
        wanted = self._settings.detector
        spec = self.plugins.detectors.get(wanted)
        if spec is None:
            known = ", ".join(sorted(self.plugins.detectors)) or "none"
            raise ModelUnavailable(f"there is no speech detector {wanted!r}; installed are: {known}")
        try:
            detector = await asyncio.to_thread(spec.create)
        except Exception as exc:
            raise ModelUnavailable(f"the speech detector {wanted} did not load: {exc}") from exc
        return DetectorService(detector)

    @property
    def sessions(self) -> SessionManager:
        """The running engine's session manager.

        Raises:
            RuntimeError: the engine is not running.
        """
        if self._orchestrator is None:
            raise RuntimeError("the engine is not running; use it inside 'async with DuplexOmni.start(...)'")
        return self._orchestrator.manager

    @property
    def ready(self) -> bool:
        """Whether requests and sessions are taken."""
        return super().ready and not self.sessions.draining

    async def open_session(self, model: str | None = None) -> DuplexSessionHandle:
        """Admit and start a session. Cancelled or failed, it leaves no slot behind.

        Args:
            model: the model that the client wants, which must be the one that is served; ``None`` is that one.

        Raises:
            DuplexError: no slot is free, the server stops, the engine is down, or another model is asked for.
        """
        return DuplexSessionHandle(await self.sessions.open(model))

    def get_session(self, session_id: str) -> DuplexSessionHandle | None:
        """The running session with this id, or ``None``."""
        runner = self.sessions.get(session_id)
        return None if runner is None else DuplexSessionHandle(runner)

    async def close_session(self, session_id: str) -> None:
        """End a session and wait until its slot is free. Idempotent."""
        await self.sessions.close(session_id)

    async def shutdown(self, drain_s: float) -> None:
        """Take nothing new, and end all that runs within about ``drain_s`` seconds.

        A session ends as soon as it is not answering; what has not ended by then is told ``shutdown``.
        """
        self._stopping = True
        async with asyncio.TaskGroup() as both:
            both.create_task(self.sessions.shutdown(drain_s))
            both.create_task(self.drain(drain_s))

    def _on_reply(self, reply: StageReply) -> None:
        """A session's reply goes to the session; any other falls through to the turn-based half."""
        if self._orchestrator is None:
            super()._on_reply(reply)
        else:
            self._orchestrator.route(reply)


def _started(spec: SessionObserverSpec) -> SessionObserver:
    """An observer, made.

    Raises:
        ModelUnavailable: it could not be made: a server whose recorder does not record must not start.
    """
    try:
        return spec.create()
    except Exception as exc:
        raise ModelUnavailable(f"the session observer {spec.id} did not start: {exc}") from exc
