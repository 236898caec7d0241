"""A model without stages that talks at its own pace, an engine around it, and a client in the same process.

Owns :data:`TALKER`, :func:`talking` and :class:`Listener`. Nothing here uses a thread or a socket, so that all of it runs on the
virtual loop of :mod:`tests.support.virtual_loop`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from duplex_core.capabilities import Capabilities
from duplex_core.commands import Command, ConversationItemCreate, ResponseCreate
from duplex_core.config import SessionConfig
from duplex_core.events import (
    Event,
    SessionCreated,
    SessionReplaced,
    SessionResumed,
    SessionResyncRequired,
    SessionUpdated,
)
from duplex_core.hookspecs import hookimpl
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.model import Deadline, EndTurn, Interrupted, ModelInput, ModelOutput, Respond, Speak, WakeAt
from duplex_core.plugins import load_plugins
from duplex_core.spec import ModelSpec
from duplex_core.stages import StagePlan
from duplex_server import builtins
from duplex_server.engine.lease import Lifetime
from duplex_server.engine.omni import DuplexOmni, DuplexSessionHandle, EngineSettings

RATE_HZ = 16_000
PIECE_MS = 20
PIECES = 10
"""Pieces of one answer: one word and 20 ms of sound each, one every 20 ms."""
ABOUT_SOCKETS = (SessionResumed, SessionReplaced, SessionResyncRequired)
E = TypeVar("E", bound=Event)


class _Talker:
    def __init__(self) -> None:
        self._turn: Respond | None = None
        self._left = 0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if isinstance(event, Respond):
            self._turn, self._left = event, PIECES
            return self._speak(now_ms)
        if isinstance(event, Deadline):
            return self._speak(now_ms)
        if isinstance(event, Interrupted):
            self._turn = None
            return (WakeAt(key="speak", at_ms=None),)
        return ()

    def _speak(self, now_ms: float) -> Sequence[ModelOutput]:
        if self._turn is None:
            return ()
        fence = self._turn.fence
        if not self._left:
            self._turn = None
            return (EndTurn(fence=fence),)
        self._left -= 1
        piece = Speak(fence=fence, text=f"word{PIECES - self._left} ", pcm=bytes(RATE_HZ * PIECE_MS // 1000 * 2))
        return (piece, WakeAt(key="speak", at_ms=now_ms + PIECE_MS))


TALKER = ModelSpec(
    id="talker",
    summary="says ten words to everything",
    claims=lambda checkpoint: False,
    claims_text="only the name talker",
    capabilities=lambda deploy: Capabilities(input_rate_hz=RATE_HZ, output_rate_hz=RATE_HZ),
    session_config=lambda deploy: SessionConfig(model="talker", turn_detection=None),
    stage_plan=lambda checkpoint, deploy: StagePlan(),
    create_session=lambda context: _Talker(),
    max_sessions=4,
)


class _Offer:
    @hookimpl
    def duplex_register_models(self) -> list[ModelSpec]:
        return [TALKER]


@contextlib.asynccontextmanager
async def talking(**lifetime: Any) -> AsyncIterator[DuplexOmni]:
    """An engine that serves the talker and ends with all its slots free."""
    settings = EngineSettings(detector="energy", lifetime=Lifetime(**lifetime))
    async with DuplexOmni.start("talker", plugins=load_plugins([builtins, _Offer()]), settings=settings) as engine:
        yield engine
    assert engine.sessions.taken == engine.sessions.detached == 0


ASK: tuple[Command, ...] = (
    ConversationItemCreate(item=MessageItem(role=Role.USER, content=(InputText(text="say something"),))),
    ResponseCreate(),
)
"""What brings an answer about."""


class Listener:
    """Reads a handle's events and keeps them."""

    def __init__(self, handle: DuplexSessionHandle) -> None:
        self.handle = handle
        self.seen: list[Event] = []
        self._events = handle.events()

    async def next(self) -> Event | None:
        """Read one event; ``None`` when there are no more."""
        event = await anext(self._events, None)
        if event is not None:
            self.seen.append(event)
        return event

    async def until(self, kind: type[E]) -> E:
        """Read on to the next event of this kind."""
        while (event := await self.next()) is not None:
            if isinstance(event, kind):
                return event
        raise AssertionError(
            f"the events ended without a {kind.__name__}: {[type(each).__name__ for each in self.seen]}"
        )

    async def rest(self) -> list[Event]:
        """Read on to the end; what was read now."""
        begun = len(self.seen)
        while await self.next() is not None:
            pass
        return self.seen[begun:]

    async def ask(self) -> None:
        """Bring an answer about."""
        for command in ASK:
            await self.handle.submit(command)

    @property
    def numbered(self) -> list[Event]:
        """The session's own events, without those about the attachment."""
        return [event for event in self.seen if not isinstance(event, ABOUT_SOCKETS)]

    @property
    def last_seq(self) -> int:
        """Number of the last event that was read."""
        return self.seen[-1].server_event_seq

    @property
    def token(self) -> str:
        """The token that was told last."""
        told = [e.session for e in self.seen if isinstance(e, SessionCreated | SessionResumed | SessionUpdated)]
        return [each.resume_token for each in told if each.resume_token is not None][-1]

    async def resume(self, engine: DuplexOmni) -> Listener:
        """Take the session up where this listener stopped."""
        return Listener(await engine.resume_session(self.handle.session_id, self.token, self.last_seq))


async def opened(engine: DuplexOmni) -> Listener:
    """A session that was begun."""
    listener = Listener(await engine.open_session())
    await listener.until(SessionCreated)
    return listener


async def breathe(seconds: float) -> None:
    """Let time pass."""
    await asyncio.sleep(seconds)
