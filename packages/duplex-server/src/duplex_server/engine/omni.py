"""The engine as Python programs and serving use it: sessions on top of the turn-based half.

Owns the joining of the parts: stages, detectors, observers, manager, orchestrator. The arrow runs from here to
:mod:`duplex_server.engine.chat` and never back. Must never touch a socket or JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

import msgspec

from duplex_core.authentication import Principal
from duplex_core.observers import SessionObserver, SessionObserverSpec
from duplex_core.patch import SessionPatch
from duplex_core.plugins import PluginHost
from duplex_server.engine.chat import AsyncOmni, resolve
from duplex_server.engine.detecting import load_detectors
from duplex_server.engine.handle import DuplexSessionHandle
from duplex_server.engine.lease import Lifetime
from duplex_server.engine.manager import SessionManager
from duplex_server.engine.orchestrator import Orchestrator
from duplex_server.engine.served import ModelUnavailable, ServedModel, session_limit, with_transcriber
from duplex_server.engine.stages.host import Told

__all__ = ["DEFAULT_DETECTOR", "DuplexOmni", "DuplexSessionHandle", "EngineSettings"]

DEFAULT_DETECTOR = "silero"


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the duplex half runs.

    Attributes:
        max_sessions: most sessions at a time; ``None`` is the model package's own default.
        detector: the speech detector.
        end_of_turn: the end-of-turn detector for sessions under ``semantic_vad``; without one they go by words and silence.
        transcriber: one for a model that does not transcribe by itself.
        lifetime: how long a session is kept without its client, and how much of what it told.
    """

    max_sessions: int | None = None
    detector: str = DEFAULT_DETECTOR
    lifetime: Lifetime = Lifetime()
    end_of_turn: str | None = None
    transcriber: str | None = None


class DuplexOmni(AsyncOmni):
    """A served model for conversations, and for chat requests beside them."""

    def __init__(
        self,
        served: ServedModel,
        plugins: PluginHost,
        settings: EngineSettings | None = None,
        observers: Sequence[SessionObserverSpec] = (),
    ) -> None:
        """Prepare the engine; nothing is loaded before :meth:`start` enters it.

        Raises:
            ModelUnavailable: the model cannot have the transcriber that the settings name.
        """
        self._settings = settings or EngineSettings()
        if self._settings.transcriber is not None:
            served = with_transcriber(served, plugins, self._settings.transcriber)
        super().__init__(served, plugins)
        self._observers = (*plugins.observers.values(), *observers)
        self._orchestrator: Orchestrator | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        model: ServedModel | str | None = None,
        *,
        plugins: PluginHost | None = None,
        deploy: Mapping[str, Any] | None = None,
        profile: str | None = None,
        settings: EngineSettings | None = None,
        observers: Sequence[SessionObserverSpec] = (),
    ) -> AsyncIterator[Self]:
        """Load a model and its detectors and hold them until the ``async with`` block ends; then all sessions end.

        Args:
            model: a prepared model, or what ``duplex-server serve`` takes; ``None`` is the embedded default.
            plugins: what is installed; looked up when not given.
            deploy: deploy settings, when ``model`` is not prepared yet.
            profile: the deploy profile that they stand over; ``None`` is the model's default.
            settings: how many sessions, which detectors.
            observers: who looks on at every session, beside the plugins' observers.

        Raises:
            PluginError: no installed package serves the model.
            ModelUnavailable: it cannot be served with these settings, or a detector or an observer does not start.
            StageStartError: a stage did not start.
            DeployError: a deploy setting is wrong, or there is no such profile.
        """
        host, served = resolve(model, plugins, deploy, profile)
        engine = cls(served, host, settings, observers)
        async with engine._running():
            yield engine

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        """Hold the detectors, then the stages, then the sessions."""
        chosen = self._settings
        detectors = await load_detectors(
            self.plugins, speech=chosen.detector, end_of_turn=chosen.end_of_turn, metrics=self.metrics
        )
        try:
            observers = [_started(spec) for spec in self._observers]
            manager = SessionManager(
                served=self.served,
                stages=self._stages,
                detectors=detectors,
                observers=observers,
                metrics=self.metrics,
                max_sessions=session_limit(self.served, chosen.max_sessions),
                lifetime=chosen.lifetime,
            )
            self._orchestrator = Orchestrator(manager, super()._on_told)
            async with super()._running():
                try:
                    yield
                finally:
                    await manager.shutdown()
        finally:
            await detectors.aclose()

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

    async def open_session(
        self,
        model: str | None = None,
        *,
        patch: SessionPatch | None = None,
        principal: Principal | None = None,
    ) -> DuplexSessionHandle:
        """Admit and start a session. Cancelled or failed, it leaves no slot behind.

        A session that is neither read nor spoken to through its handle ends after the grace for a lost client.

        Args:
            model: the model that the client wants, which must be the one that is served; ``None`` is that one.
            patch: changes of the model's own configuration with which the session begins.
            principal: who opens it, for those who watch sessions; ``None`` where nobody was asked.

        Raises:
            DuplexError: no slot is free, the server stops, the engine is down, another model is asked for, or ``patch`` cannot
                be served.
        """
        return DuplexSessionHandle(*await self.sessions.open(model, patch=patch, principal=principal))

    async def resume_session(self, session_id: str, token: str, last_seq: int) -> DuplexSessionHandle:
        """Take a running session over, from whoever has it or from nobody.

        The new handle's events begin with ``session.resumed``, which has the token for the next time; then come those after
        ``last_seq``, in order. Who had the session reads ``session.replaced`` and nothing more.

        Args:
            session_id: its id.
            token: ``resume_token`` as it was told last; it is spent by this.
            last_seq: ``server_event_seq`` of the last event that arrived.

        Raises:
            SessionOver: it has ended not long ago, and the token is its; the exception has its last event.
            DuplexError: there is no such session, the token is not its, or no such event was ever sent. Whoever had the session
                has it still.
        """
        return DuplexSessionHandle(*self.sessions.resume(session_id, token, last_seq))

    def get_session(self, session_id: str) -> DuplexSessionHandle | None:
        """The running session with this id, or ``None``. The handle says things and ends it, and reads nothing."""
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

    def _on_told(self, told: Told) -> None:
        """What concerns a session goes to the session; all else falls through to the turn-based half."""
        if self._orchestrator is None:
            super()._on_told(told)
        else:
            self._orchestrator.route(told)


def _started(spec: SessionObserverSpec) -> SessionObserver:
    """An observer, made.

    Raises:
        ModelUnavailable: it could not be made: a server whose recorder does not record must not start.
    """
    try:
        return spec.create()
    except Exception as exc:
        raise ModelUnavailable(f"the session observer {spec.id} did not start: {exc}") from exc
