"""A session that outlives its connections, as the wire contract has it, and lines to it that break where a test says.

Owns: :class:`Session` (numbering, journal, tokens, takeover), its connections in memory (:class:`MemoryClient`) and over real
sockets (:func:`serving`), and :func:`cutting`, a TCP proxy. Called by: the tests of what a client does when a connection is
lost. Never: makes a conversation; what the session tells, the test tells.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed as SocketClosed

from duplex_client import (
    BaseDuplexClient,
    ConnectFailed,
    ConnectionChange,
    ConnectionClosed,
    ReconnectPolicy,
    Resumed,
    ResumePoint,
)
from duplex_client.link import Redial
from duplex_client.streams import Signal
from duplex_client.timing import Clock
from duplex_client.transport import Transport
from duplex_core.commands import Command, SessionClose, SessionEventAck, SessionResume
from duplex_core.errors import DuplexError, ErrorCode, refuse
from duplex_core.events import (
    Event,
    SessionClosed,
    SessionReplaced,
    SessionResyncRequired,
)
from duplex_core.wire import decode_command, encode_event
from tests.clients.scripted import SESSION_ID, closed, created, refusal, resumed


class Changes:
    """What a client tells of its connection; for its ``on_connection``."""

    def __init__(self) -> None:
        self.told: list[ConnectionChange] = []
        self._moved = Signal()

    def __call__(self, change: ConnectionChange) -> None:
        self.told.append(change)
        self._moved.raise_()

    async def reach(self, count: int) -> None:
        """Wait until so many have been told."""
        async with asyncio.timeout(10):
            while len(self.told) < count:
                await self._moved.wait()

    @property
    def kinds(self) -> list[type]:
        return [type(change) for change in self.told]

    @property
    def back(self) -> Resumed:
        """The last change, which must be a good end."""
        assert isinstance(self.told[-1], Resumed)
        return self.told[-1]


class Attachment:
    """What one connection gets to read; ``None`` is its end."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.reached = 0

    def give(self, event: Event, seq: int) -> None:
        self.reached = seq
        self.events.put_nowait(msgspec.structs.replace(event, event_id=f"event_{seq}", server_event_seq=seq))

    def end(self) -> None:
        self.events.put_nowait(None)


class Session:
    """One session with a journal of the last ``keep`` events.

    A new token is confirmed by the first command on its connection; until then the one before it is good too, since the
    new one may never have arrived. A ``strict`` session takes each token once, whatever happened.
    """

    def __init__(self, *, keep: int | None = None, strict: bool = False) -> None:
        self.told: list[Event] = []
        self.journal: deque[tuple[int, Event]] = deque(maxlen=keep)
        self.commands: list[Command] = []
        self.attachment: Attachment | None = None
        self.generation = 0
        self.over = False
        self._strict = strict
        self._tokens = {"token_1"}

    def tell(self, *events: Event) -> None:
        for event in events:
            self.told.append(event)
            seq = len(self.told)
            self.journal.append((seq, event))
            if self.attachment is not None:
                self.attachment.give(event, seq)
            if isinstance(event, SessionClosed):
                self.over = True
                self.detach(self.attachment)

    def open(self) -> Attachment:
        self.attachment, self.generation = Attachment(), 1
        self.tell(created(token="token_1"))
        return self.attachment

    def resume(self, asked: SessionResume) -> Attachment:
        if asked.session_id != SESSION_ID or asked.resume_token not in self._tokens or self.over:
            raise refuse(ErrorCode.SESSION_NOT_FOUND, "there is no such session")
        before, self.attachment = self.attachment, Attachment()
        self.generation += 1
        if before is not None:
            before.give(SessionReplaced(session_id=SESSION_ID, attachment_generation=self.generation), before.reached)
            before.end()
        token = f"token_{self.generation}"
        self._tokens = {token} if self._strict else {asked.resume_token, token}
        last = asked.last_server_event_seq
        first = self.journal[0][0] if self.journal else len(self.told) + 1
        missed = [(seq, event) for seq, event in self.journal if seq > last]
        self.attachment.give(resumed(token, replayed=len(missed)), last)
        if first > last + 1:
            gap = SessionResyncRequired(session_id=SESSION_ID, last_server_event_seq=last, first_available_seq=first)
            self.attachment.give(gap, last)
        for seq, event in missed:
            self.attachment.give(event, seq)
        return self.attachment

    def detach(self, attachment: Attachment | None) -> None:
        """This connection is gone; another one's owner stays."""
        if attachment is not None and self.attachment is attachment:
            self.attachment = None
            attachment.end()

    def take(self, command: Command) -> None:
        self.commands.append(command)
        if not self._strict:
            self._tokens = {f"token_{self.generation}"}
        if isinstance(command, SessionEventAck):
            while self.journal and self.journal[0][0] <= command.server_event_seq:
                self.journal.popleft()
        if isinstance(command, SessionClose):
            self.tell(closed())


# -- in memory ---------------------------------------------------------------------------------------------------------


class Line:
    """A connection in memory that breaks after ``events`` events or ``commands`` commands, or when it is told to."""

    def __init__(
        self, session: Session, attachment: Attachment, *, events: int | None = None, commands: int | None = None
    ) -> None:
        self._session, self._attachment = session, attachment
        self._events, self._commands = events, commands
        self._broken = asyncio.Event()
        self.end: str | None = None

    def mend(self) -> None:
        """Break by itself no more."""
        self._events = self._commands = None

    def cut(self) -> None:
        self._broken.set()
        self._session.detach(self._attachment)

    async def send(self, command: Command) -> None:
        if self._commands == 0:
            self.cut()
        if self._broken.is_set() or self._session.attachment is not self._attachment:
            raise ConnectionClosed("the line is broken")
        if self._commands is not None:
            self._commands -= 1
        await asyncio.sleep(0)
        self._session.take(command)

    async def receive(self) -> Event:
        if self._events == 0:
            self.cut()
        if self._events is not None:
            self._events -= 1
        arrived = asyncio.ensure_future(self._attachment.events.get())
        broken = asyncio.ensure_future(self._broken.wait())
        try:
            await asyncio.wait((arrived, broken), return_when=asyncio.FIRST_COMPLETED)
            event = arrived.result() if arrived.done() and not broken.done() else None
        finally:
            arrived.cancel()
            broken.cancel()
        if event is None:
            raise ConnectionClosed("the line is broken")
        return event

    def _let_go(self, how: str) -> None:
        self.end = self.end or how
        self.cut()

    async def close(self) -> None:
        self._let_go("close")

    async def detach(self) -> None:
        self._let_go("detach")

    async def drop(self) -> None:
        self._let_go("drop")


Fault = Callable[[Session, Attachment], Line]
"""Makes the line of one connection."""


def whole(session: Session, attachment: Attachment) -> Line:
    """A line that does not break by itself."""
    return Line(session, attachment)


def cut_after(*, events: int | None = None, commands: int | None = None) -> Fault:
    return lambda session, attachment: Line(session, attachment, events=events, commands=commands)


class MemoryClient(BaseDuplexClient):
    """A client of ``session``, whose connections are ``lines`` in order, then whole ones; an exception is a failed attempt."""

    def __init__(
        self,
        session: Session,
        *lines: Fault | Exception,
        clock: Clock,
        policy: ReconnectPolicy | None = None,
        rng: float = 0.5,
        heartbeat_s: float | None = None,
        ack_every: int | None = None,
    ) -> None:
        super().__init__(clock=clock, heartbeat_s=heartbeat_s, ack_every=ack_every)
        self.world, self.policy, self.rng = session, policy or ReconnectPolicy(), rng
        self.plan: Iterator[Fault | Exception] = iter(lines)
        self.dialled: list[ResumePoint | None] = []
        self.lines: list[Line] = []

    async def _open(self, resume: ResumePoint | None) -> Transport:
        self.dialled.append(resume)
        await asyncio.sleep(0)
        fault = next(self.plan, whole)
        if isinstance(fault, Exception):
            raise fault
        if resume is None:
            attachment = self.world.open()
        else:
            try:
                attachment = self.world.resume(
                    SessionResume(
                        session_id=resume.session_id,
                        resume_token=resume.resume_token,
                        last_server_event_seq=resume.last_server_event_seq,
                    )
                )
            except DuplexError as exc:
                attachment = Attachment()
                attachment.give(refusal(exc.info.code, exc.info.message), 1)
                attachment.end()
        self.lines.append(fault(self.world, attachment))
        return self.lines[-1]

    def _redial(self) -> Redial:
        return Redial(dial=self._open, policy=self.policy, rng=lambda: self.rng, attempt_timeout_s=5.0)


UNREACHABLE = ConnectFailed("nobody is there")


# -- over sockets ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(session: Session) -> AsyncIterator[int]:
    """Serve ``session`` on a free port of loopback, which is given."""

    async def attached(socket: ServerConnection) -> Attachment:
        assert socket.request is not None
        if "autostart=0" not in socket.request.path:
            return session.open()
        asked = decode_command(await socket.recv())
        assert isinstance(asked, SessionResume)
        return session.resume(asked)

    async def write(socket: ServerConnection, attachment: Attachment) -> None:
        while (event := await attachment.events.get()) is not None:
            await socket.send(encode_event(event, event_id=event.event_id, seq=event.server_event_seq))
        await socket.close()

    async def handle(socket: ServerConnection) -> None:
        with contextlib.suppress(SocketClosed):
            try:
                attachment = await attached(socket)
            except DuplexError as exc:
                await socket.send(encode_event(refusal(exc.info.code, exc.info.message), event_id="event_1", seq=1))
                await socket.close(1008)
                return
            writing = asyncio.create_task(write(socket, attachment))
            try:
                async for text in socket:
                    session.take(decode_command(text))
            finally:
                session.detach(attachment)
                writing.cancel()
                await asyncio.wait([writing])
                if not writing.cancelled() and not isinstance(writing.exception(), SocketClosed):
                    writing.result()

    async with serve(handle, "127.0.0.1", 0) as sockets:
        yield next(iter(sockets.sockets)).getsockname()[1]


class Cutter:
    """A TCP proxy on loopback in front of ``port``.

    Connection ``n`` is cut, both ways and without a word, once ``limits[n]`` bytes have gone from the server to the client;
    connections beyond the list stay until :meth:`cut`. While ``up`` is not set a new connection gets nowhere.
    """

    def __init__(self, port: int, limits: tuple[int, ...]) -> None:
        self._port, self._limits = port, iter(limits)
        self._writers: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self.connections = 0
        self.up = asyncio.Event()
        self.up.set()
        self.url = ""

    def cut(self) -> None:
        """Break every connection that stands."""
        for pair in self._writers:
            for writer in pair:
                writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        limit = next(self._limits, None)
        await self.up.wait()
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, server_writer)
        self._writers.append(pair)
        up = asyncio.create_task(self._pump(reader, server_writer, None))
        down = asyncio.create_task(self._pump(server_reader, writer, limit))
        done, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        for one in pair:
            if any(task.result() for task in done):
                one.transport.abort()
            else:
                one.close()  # what is on its way arrives
        await asyncio.wait((up, down))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> bool:
        """Pass bytes on until there are no more; whether the connection is to be cut."""
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                passed = data if limit is None else data[:limit]
                limit = None if limit is None else limit - len(passed)
                writer.write(passed)
                await writer.drain()
                if limit == 0:
                    return True
            return False
        return True


@asynccontextmanager
async def cutting(port: int, *limits: int) -> AsyncIterator[Cutter]:
    """Put a :class:`Cutter` in front of ``port``."""
    cutter = Cutter(port, limits)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    try:
        cutter.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield cutter
    finally:
        server.close()
        cutter.up.set()
        cutter.cut()
        await server.wait_closed()
